//! Invariants of a table between two calls of its owner. Checked in debug builds only. Must never
//! depend on input from engines: a wrong event is refused, not asserted.

use super::super::words::{cell_of, lanes};
use super::lists::{is_tagged, may_list};
use super::run::{Run, RunId};
use super::sets::whole;
use super::tags::Tags;
use super::writer::segment_bytes;
use super::{Location, TableWriter};
use crate::BlockKey;

/// A debug build checks the runs of 1 in 64 keys. Keys are hashes, so this is a fair sample. Tests
/// of this crate check all.
const SAMPLE_PERIOD: u64 = if cfg!(test) { 1 } else { 64 };

impl TableWriter {
    /// Invariants of the sizes.
    pub(in super::super) fn check_invariants(&self) {
        let taken = self.run_count;
        let free = self.free_runs.len();
        let unused = usize::from(!self.owned.is_empty());
        debug_assert_eq!(taken + free + unused, self.owned.len(), "a run is lost, or there twice");
        debug_assert!(self.entry_count >= taken, "a run without a block");
        // The first segment exists even if the budget is smaller.
        let bytes_max = self.shape.memory_bytes_max.max(segment_bytes(self.shape.segment_slots));
        debug_assert!(self.memory_bytes() <= bytes_max, "more memory than the budget");
    }

    /// Invariants of the run of a key. Takes time in proportion to the run's blocks and ranks, so
    /// debug builds take a sample.
    pub(in super::super) fn check_run_of(&self, key: BlockKey) {
        if !cfg!(debug_assertions) || !key.to_word().is_multiple_of(SAMPLE_PERIOD) {
            return;
        }
        let Some(Location { run: id, offset }) = self.find(key) else { return };
        let Some(run) = self.run(id) else { return };
        debug_assert!(offset < run.block_count(), "a block past the end of its run");
        debug_assert!(!run.is_changing(), "readers look at it for ever");
        self.check_blocks(id, run);
        self.check_holders(id, run);
        self.check_place(id, run);
    }

    /// True for an empty run: before it is taken, and after it is given back.
    pub(super) fn is_blank(&self, id: RunId) -> bool {
        self.run(id).is_some_and(|run| {
            run.block_count() == 0 && run.ranks() == 0 && run.partial() == 0 && run.lengths() == 0
        })
    }

    /// True when the rank holds the block of that key.
    pub(in super::super) fn is_held(&self, key: BlockKey, lane: u16) -> bool {
        let Some(Location { run, offset }) = self.find(key) else { return false };
        let in_part = || self.part_of(run, lane).is_some_and(|part| part.word >> offset & 1 == 1);
        self.holds_whole(run, lane) || in_part()
    }

    /// Checks that every block has a key, a length and its entry in the locator.
    fn check_blocks(&self, id: RunId, run: &Run) {
        for offset in 0..run.block_count() {
            let key = BlockKey::from_word(self.table.key_at(run, offset));
            debug_assert!(key.is_some(), "a block without a key");
            let found = key.and_then(|key| self.find(key));
            debug_assert_eq!(found, Some(Location { run: id, offset }), "a block is elsewhere");
            // Only a run with a single block may lack a length: its parent is not known yet.
            let has_length = self.table.length_at(run, offset) > 0;
            debug_assert!(has_length || run.block_count() == 1, "a block without a length");
        }
    }

    /// Checks that each rank is listed once: with the whole run, or with some of its blocks.
    fn check_holders(&self, id: RunId, run: &Run) {
        let Some(first) = cell_of(run.partial()) else {
            return debug_assert_eq!(run.partial(), 0, "lanes where a list belongs");
        };
        let mut listed: Vec<u16> = Vec::new();
        for part in self.listed(first) {
            let within = part.word != 0 && part.word & !whole(run.block_count()) == 0;
            debug_assert!(within, "{part:?} is no part of {id:?}");
            debug_assert!(!self.holds_whole(id, part.half), "{part:?} is in the whole too");
            listed.push(part.half);
        }
        debug_assert!(!listed.is_empty(), "an empty list keeps its cell");
        // Parts are in no order: the last part fills the gap of a removed part.
        listed.sort_unstable();
        debug_assert!(
            listed.is_sorted_by(|a, b| a < b),
            "a rank stands twice in {id:?}: {listed:?}"
        );
    }

    /// Checks that the parent lists the run, and that a rank or a child needs it.
    fn check_place(&self, id: RunId, run: &Run) {
        if self.is_unlisted(id) {
            debug_assert!(self.parent(id).is_none(), "a parent that does not list it");
            debug_assert!(self.has_no_ranks(id), "a rank holds a block of no length");
            return debug_assert!(self.has_children(id), "an unlisted run that nothing follows");
        }
        let parent = self.parent(id);
        let lists = |parent: RunId| self.has_length(parent, self.table.length_at(run, 0));
        debug_assert!(parent.is_some_and(lists), "{id:?} is not listed at {parent:?}");
        let is_tagged = |parent: RunId| self.may_have_child(parent, id);
        debug_assert!(parent.is_some_and(is_tagged), "{id:?} has no tag at {parent:?}");
        // A leaf is cut back to its held blocks. Otherwise the rest would occupy memory until an
        // eviction.
        let last = 1 << (run.block_count() - 1);
        let is_kept = self.has_children(id) || self.held_blocks(id) & last != 0;
        debug_assert!(is_kept, "the end of {id:?} is kept by nobody");
    }

    /// Would a walk look for that child?
    pub(super) fn may_have_child(&self, parent_id: RunId, child: RunId) -> bool {
        let runs = self.run(parent_id).zip(self.run(child));
        let Some((parent, child)) = runs else { return false };
        let bytes = self.table.length_at(child, 0);
        let key = self.table.key_at(child, 0);
        let Some(list) = cell_of(parent.lengths()) else { return true };
        let Some(pair) = self.find_listed(list, bytes).0 else { return false };
        let has_tag = || Tags::new(parent.tags(), &self.table.cells).has(key);
        let is_marked = self.is_first_right(parent_id, bytes, pair.word, key);
        is_marked && may_list(pair.word, key) && (!is_tagged(pair.word) || has_tag())
    }

    /// True if children of that length are counted.
    fn has_length(&self, id: RunId, length: u16) -> bool {
        let word = self.run(id).map_or(0, Run::lengths);
        match cell_of(word) {
            Some(first) => self.find_listed(first, length).0.is_some(),
            None => {
                let mut counts = lanes(word).zip(self.owned(id).child_counts);
                counts.any(|(lane, count)| lane == length && count > 0)
            }
        }
    }
}
