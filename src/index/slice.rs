//! The writing side of a slice: turns stores and removals of ranks into runs of blocks. Runs on the
//! shard that owns the slice, called between requests.
//!
//! A block stays while a rank holds the block, or a later block of its path. If the parent of a
//! block was never stored, an unlisted run stands in for the parent, and no walk reaches the block
//! before the parent is stored. So children may arrive before their parents and leave after them.
//! At the memory budget, the coldest of some leaves is evicted (an end of a path, up to
//! `RUN_BLOCKS_MAX` blocks), with all its ranks. A store that still does not fit, or is outside a
//! limit, is refused and counted. Either causes a miss later, never a wrong hit.

use super::Shape;
use super::table::{Location, RunId, STORE_CELLS_MAX, Table, TableWriter};
use super::words::rank_lane;
use crate::{BlockKey, KvOp};
use forebay_base::limits::{INNER_BLOCK, RANKS_MAX};
use forebay_base::{NanosSinceStart, RankIndex};
use std::sync::Arc;

/// Leaves that an eviction compares.
const LEAVES_COMPARED: usize = 8;
/// Runs that an eviction examines to find these leaves.
const RUNS_EXAMINED: u32 = 64;
/// A prime, so that runs created in sequence are not compared only with each other.
const HAND_STEP: u32 = 7_919;
/// Evictions for a store; after these it is refused.
const EVICTIONS_MAX: usize = 8;

/// The only writer of a slice. Apply only operations of paths that [`super::slice_of`] assigns to
/// the slice.
#[derive(Debug)]
pub struct SliceWriter {
    table: TableWriter,
    /// Position of the search for cold leaves.
    hand: u32,
    /// Lanes of windows that have held a block, in order. A window's number is never reused for a
    /// rank.
    windows: Vec<u16>,
    /// Likely places of the next change, since changes follow paths.
    likely: LikelyPlaces,
}

/// Two blocks that the next change may concern. Both are hints: the places may have changed.
#[derive(Clone, Copy, Debug, Default)]
struct LikelyPlaces {
    /// The parent of the next stored block, or the next block to be removed.
    before: Location,
    /// The next stored block, if the index may already have it.
    next: Option<Location>,
}

impl SliceWriter {
    pub(super) fn new(shape: Shape) -> Self {
        let likely = LikelyPlaces::default();
        Self { table: TableWriter::new(shape), hand: 0, windows: Vec::new(), likely }
    }

    pub(super) fn table(&self) -> Arc<Table> {
        self.table.table()
    }

    /// Sets the time for the age of blocks, in whole seconds. Call it about once a second.
    pub fn tick(&self, now: NanosSinceStart) {
        self.table.set_epoch(u32::try_from(now.0 / 1_000_000_000).unwrap_or(u32::MAX));
    }

    /// Applies a change. Storing a held block and removing a block that is not held change nothing.
    pub fn apply(&mut self, rank: RankIndex, op: KvOp) {
        match op {
            KvOp::Store { parent, key, block_bytes } => {
                let within_limits = rank.index() < RANKS_MAX
                    && (1..=INNER_BLOCK).contains(&block_bytes)
                    && parent != key;
                let stored = within_limits && self.store(rank_lane(rank), parent, key, block_bytes);
                if !stored {
                    self.table.count_refused();
                }
                debug_assert!(!stored || self.table.is_held(key, rank_lane(rank)));
                self.check_invariants(key);
            }
            KvOp::Hold { key } => {
                if rank.index() >= RANKS_MAX || !self.hold(rank_lane(rank), key) {
                    self.table.count_refused();
                }
                self.check_invariants(key);
            }
            KvOp::Remove { key } => {
                self.remove(rank_lane(rank), key);
                debug_assert!(!self.table.is_held(key, rank_lane(rank)));
                self.check_invariants(key);
            }
        }
        self.table.publish_sizes();
    }

    /// Prefetches a block that one of the next changes concerns. Takes little time, and the change
    /// then waits less for memory.
    pub fn expect(&self, key: BlockKey) {
        self.table.fetch(key);
    }

    /// Invariants after each change, of the table and of the changed run.
    fn check_invariants(&self, key: BlockKey) {
        self.table.check_invariants();
        self.table.check_run_of(key);
    }

    /// False: refused, and nothing has changed.
    fn store(&mut self, lane: u16, parent: BlockKey, key: BlockKey, block_bytes: u16) -> bool {
        let listed =
            |table: &TableWriter, at: Location| at.offset > 0 || !table.is_unlisted(at.run);
        let next = self.likely.next.filter(|next| self.table.is_at(*next, key));
        let mut found = next.or_else(|| self.table.find(key));
        if let Some(at) = found.filter(|at| listed(&self.table, *at)) {
            let next = Some(Location { offset: at.offset + 1, ..at });
            self.likely = LikelyPlaces { before: at, next };
            self.table.use_now(at.run);
            return self.table.hold(at.run, at.offset, lane);
        }
        // Before the other look-ups: an eviction may cut or remove the runs that they find.
        if self.make_room(parent, key) {
            found = self.table.find(key);
        }
        let unlisted = found;
        let before = self.table.find_near(self.likely.before, parent);
        if let (None, Some(end)) = (unlisted, before)
            && self.table.may_append(end, lane, &self.windows)
        {
            let before = Location { offset: end.offset + 1, ..end };
            self.likely = LikelyPlaces { before, next: None };
            return self.table.append(end, key, block_bytes);
        }
        let Some(parent) = self.run_to(parent, before) else { return false };
        let run = match unlisted {
            Some(at) => self.table.adopt(at.run, parent, block_bytes).then_some(at.run),
            None => self.table.create(Some(parent), key, block_bytes),
        };
        match run {
            Some(run) => {
                self.likely = LikelyPlaces { before: Location { run, offset: 0 }, next: None };
                self.table.hold(run, 0, lane)
            }
            None => {
                self.settle(parent);
                false
            }
        }
    }

    /// False: no memory to record it. A block that is not in the index is ignored: it was evicted,
    /// or removed by an earlier operation.
    fn hold(&mut self, lane: u16, key: BlockKey) -> bool {
        if let Err(place) = self.windows.binary_search(&lane) {
            self.windows.insert(place, lane);
        }
        let found = self.table.find(key).filter(|at| !self.table.is_unlisted(at.run));
        found.is_none_or(|at| self.table.hold_apart(at.run, at.offset, lane))
    }

    /// The run that ends with the block at `at`; made by a split, or as an unlisted run if the
    /// block is not in the index.
    fn run_to(&mut self, end: BlockKey, at: Option<Location>) -> Option<RunId> {
        let Some(at) = at else {
            // A store may add two entries, and these may belong to two segments.
            self.table.make_room(end);
            return self.table.create(None, end, 0);
        };
        if at.offset + 1 == self.table.block_count(at.run) {
            return Some(at.run);
        }
        self.table.split(at.run, at.offset + 1)
    }

    fn remove(&mut self, lane: u16, key: BlockKey) {
        let Some(at) = self.table.find_near(self.likely.before, key) else { return };
        // Engines remove paths from their ends.
        self.likely.before = match at.offset.checked_sub(1) {
            Some(offset) => Location { offset, ..at },
            None => self.table.parent(at.run).map_or(at, |parent| self.table.end_of(parent)),
        };
        if self.table.is_loose_end(at, lane) {
            // The usual order of an engine's evictions: last block first.
            return self.table.truncate(at.run, at.offset);
        }
        if self.table.release(at.run, at.offset, lane) {
            self.settle(at.run);
        }
    }

    /// Frees blocks that neither a rank nor a child needs, from the run towards the root.
    fn settle(&mut self, run: RunId) {
        let mut next = Some(run);
        while let Some(run) = next {
            // Its blocks stay for the paths behind it, held or not.
            if self.table.has_children(run) {
                return;
            }
            if !self.table.has_no_ranks(run) {
                return self.table.trim(run);
            }
            next = self.table.destroy(run);
        }
    }

    /// Tries to make room for a store. True if this evicted anything.
    fn make_room(&mut self, parent: BlockKey, key: BlockKey) -> bool {
        self.table.make_room(key);
        for evictions in 0..EVICTIONS_MAX {
            if self.table.has_room(STORE_CELLS_MAX) {
                return evictions > 0;
            }
            let keep = self.table.find(parent).map(|at| at.run);
            if !self.evict(keep) {
                return evictions > 0;
            }
        }
        true
    }

    /// Evicts the coldest of the next leaves, except `keep`. False if there is no leaf.
    fn evict(&mut self, keep: Option<RunId>) -> bool {
        let runs = self.table.runs_allocated();
        self.hand = self.hand.wrapping_add(1);
        let mut leaves: Vec<(u32, RunId)> = Vec::with_capacity(LEAVES_COMPARED);
        for _ in 0..RUNS_EXAMINED.min(runs) {
            self.hand = (self.hand + HAND_STEP) % runs.max(1);
            let run = RunId(self.hand);
            // A run with children stays: otherwise their path would be cut off.
            let is_leaf = self.table.block_count(run) > 0
                && !self.table.has_children(run)
                && !self.table.is_unlisted(run);
            if is_leaf && keep != Some(run) {
                leaves.push((self.table.used(run), run));
            }
            if leaves.len() == LEAVES_COMPARED {
                break;
            }
        }
        let Some(&(_, coldest)) = leaves.iter().min_by_key(|(used, _)| *used) else { return false };
        let before = self.table.entry_count();
        debug_assert!(keep != Some(coldest), "a store evicts its own parent");
        if let Some(parent) = self.table.destroy(coldest) {
            self.settle(parent);
        }
        debug_assert!(self.table.entry_count() < before, "an eviction that frees nothing");
        self.table.count_evicted(before.saturating_sub(self.table.entry_count()));
        true
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Paths of nodes, each with the parent `node / 3`: forks of three, from the root 0 on.
    fn key(node: u64) -> BlockKey {
        BlockKey::from_word((node + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).expect("not 0")
    }

    fn op(is_store: bool, node: u64, length: u16) -> KvOp {
        let key_of = key(node);
        match is_store {
            true => KvOp::Store { parent: key(node / 3), key: key_of, block_bytes: length },
            false => KvOp::Remove { key: key_of },
        }
    }

    proptest! {
        /// Tests the assertions behind `apply`. Lengths and ranks exceed a word, and the memory is
        /// less than all blocks need.
        #[test]
        fn changes_in_any_order_keep_what_must_hold(
            changes in proptest::collection::vec(
                (prop::bool::weighted(0.7), 1..200_u64, 1..20_u16, 0..8_u16), 1..600),
            memory_bytes_max in prop::sample::select(vec![40_000_usize, 1 << 20]),
        ) {
            let mut slice = SliceWriter::new(Shape { segment_slots: 16, memory_bytes_max });
            for (is_store, node, length, rank) in changes {
                slice.apply(RankIndex(rank), op(is_store, node, length));
            }
        }

        /// A chain that several ranks store, and lose from either end: runs are made and split.
        #[test]
        fn chains_keep_what_must_hold(
            changes in proptest::collection::vec(
                (prop::bool::weighted(0.8), 0..6_u16, 0..130_u64, 1..130_u64), 1..20),
        ) {
            let shape = Shape { segment_slots: 64, memory_bytes_max: 1 << 20 };
            let mut slice = SliceWriter::new(shape);
            for (is_store, rank, first, count) in changes {
                for node in first..first + count {
                    let parent = key(node);
                    let key = key(node + 1);
                    let op = match is_store {
                        true => KvOp::Store { parent, key, block_bytes: 16 },
                        false => KvOp::Remove { key },
                    };
                    slice.apply(RankIndex(rank), op);
                }
            }
        }
    }
}
