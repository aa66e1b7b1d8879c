//! The writing side of one slice: turns stores and removals of ranks into entries. Runs on the shard that owns
//! the slice, called between requests.
//!
//! An entry exists while a rank holds it or a child of it is listed. It is listed at its parent (its length is among
//! the parent's child lengths) while a rank holds it. So children may arrive before their parents and leave after them:
//! the parent's entry is then there without ranks, and the walk does not reach past it.
//! What does not fit (memory, limits) is refused and counted; a refused block is a miss later, never a wrong hit.

use super::Shape;
use super::table::{Link, Place, Table, TableWriter};
use super::words::rank_lane;
use crate::base::RankIndex;
use crate::base::limits::{BLOCK_BYTES_MAX, RANKS_MAX};
use crate::block::BlockKey;
use crate::mailbox::KvOp;
use std::sync::Arc;

/// The one writer of a slice. Apply only operations of paths that [`super::slice_of`] gives to it.
#[derive(Debug)]
pub struct SliceWriter {
    table: TableWriter,
}

impl SliceWriter {
    pub(super) fn new(shape: Shape) -> Self {
        Self { table: TableWriter::new(shape) }
    }

    pub(super) fn table(&self) -> Arc<Table> {
        self.table.table()
    }

    /// Applies one change. Storing what the rank holds and removing what it does not hold change nothing.
    pub fn apply(&mut self, rank: RankIndex, op: KvOp) {
        match op {
            KvOp::Store { parent, key, block_bytes } => {
                self.table.make_room(key);
                self.table.make_room(parent);
                let within_limits = rank.index() < RANKS_MAX
                    && (1..=BLOCK_BYTES_MAX).contains(&usize::from(block_bytes))
                    && parent != key;
                if !within_limits || !self.store(rank_lane(rank), parent, key, block_bytes) {
                    self.table.count_refused();
                }
            }
            KvOp::Remove { key } => self.remove(rank_lane(rank), key),
        }
    }

    /// False when it was refused; then nothing has changed.
    fn store(&mut self, lane: u16, parent: BlockKey, key: BlockKey, block_bytes: u16) -> bool {
        let found = self.table.find(key);
        if let Some(place) = found.filter(|place| !self.table.has_no_ranks(*place)) {
            return self.table.add_rank(place, lane);
        }
        if !self.list(parent, block_bytes) {
            return false;
        }
        // Listing inserts at most the parent, and insertion moves nothing: `found` still holds.
        let Some(place) = found.or_else(|| self.table.insert(key)) else {
            self.unlist(parent, block_bytes);
            return false;
        };
        if let Some(link) = self.table.link_mut(place) {
            *link = Link { parent: parent.to_word(), block_bytes, ..*link };
        }
        self.table.add_rank(place, lane)
    }

    fn remove(&mut self, lane: u16, key: BlockKey) {
        let Some(place) = self.table.find(key) else { return };
        if !self.table.remove_rank(place, lane) || !self.table.has_no_ranks(place) {
            return;
        }
        let link = self.table.link(place).copied().unwrap_or_default();
        if let Some(link) = self.table.link_mut(place) {
            link.block_bytes = 0;
        }
        self.remove_if_bare(place);
        if let Some(parent) = BlockKey::from_word(link.parent) {
            self.unlist(parent, link.block_bytes);
        }
    }

    /// Counts a child of that length at the parent, whose entry is made if there is none.
    fn list(&mut self, parent: BlockKey, block_bytes: u16) -> bool {
        let Some(place) = self.table.find(parent).or_else(|| self.table.insert(parent)) else {
            return false;
        };
        let listed = self.table.add_length(place, block_bytes);
        if !listed {
            self.remove_if_bare(place);
        }
        listed
    }

    fn unlist(&mut self, parent: BlockKey, block_bytes: u16) {
        if let Some(place) = self.table.find(parent) {
            self.table.drop_length(place, block_bytes);
            self.remove_if_bare(place);
        }
    }

    /// Removes an entry that neither a rank nor a child keeps.
    fn remove_if_bare(&mut self, place: Place) {
        if self.table.has_no_ranks(place) && self.table.has_no_lengths(place) {
            self.table.remove(place);
        }
    }
}
