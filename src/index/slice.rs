//! The writing side of one slice: turns stores and removals of ranks into runs of blocks. Runs on
//! the shard that owns the slice, called between requests.
//!
//! A block stays while a rank holds it, or a later block of its path. A block whose parent was
//! never stored hangs on an unlisted one: the walk does not reach it before the parent comes. So
//! children may arrive before their parents and leave after them.
//! At the memory budget the coldest of some leaves goes (an end of a path, up to `RUN_BLOCKS_MAX`
//! blocks), with all its ranks. What does not fit then, or is outside a limit, is refused and
//! counted. Either is a miss later, never a wrong hit.

use super::Shape;
use super::table::{Location, RunId, STORE_CELLS_MAX, Table, TableWriter};
use super::words::rank_lane;
use crate::{BlockKey, KvOp};
use forebay_base::limits::{INNER_BLOCK, RANKS_MAX};
use forebay_base::{NanosSinceStart, RankIndex};
use std::sync::Arc;

/// Leaves that an eviction compares.
const LEAVES_COMPARED: usize = 8;
/// Runs that it looks at for them.
const RUNS_LOOKED_AT: u32 = 64;
/// A prime, so that runs made one after the other are not compared with each other alone.
const HAND_STEP: u32 = 7_919;
/// Evictions for one store; past them it is refused.
const EVICTIONS_MAX: usize = 8;

/// The one writer of a slice. Apply only operations of paths that [`super::slice_of`] gives to it.
#[derive(Debug)]
pub struct SliceWriter {
    table: TableWriter,
    /// Where the search for cold leaves goes on.
    hand: u32,
    /// Lanes of windows that have held a block, in order. Numbers of windows are never another's.
    windows: Vec<u16>,
    /// Where the next change is likely to be: changes come along paths.
    likely: Likely,
}

/// Two blocks that the next change may be about. Both are hints: what is there may have changed.
#[derive(Clone, Copy, Debug, Default)]
struct Likely {
    /// The parent of the next store, or the next to be removed.
    before: Location,
    /// The next that is stored, if the index may have it already.
    next: Option<Location>,
}

impl SliceWriter {
    pub(super) fn new(shape: Shape) -> Self {
        let likely = Likely::default();
        Self { table: TableWriter::new(shape), hand: 0, windows: Vec::new(), likely }
    }

    pub(super) fn table(&self) -> Arc<Table> {
        self.table.table()
    }

    /// Tells the time, in whole seconds of which the age of blocks counts. Call it about once a
    /// second.
    pub fn tick(&self, now: NanosSinceStart) {
        self.table.set_epoch(u32::try_from(now.0 / 1_000_000_000).unwrap_or(u32::MAX));
    }

    /// Applies one change. Storing what the rank holds and removing what it does not hold change
    /// nothing.
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

    /// One of the next changes is about that block. A hint: it takes little time, and the change
    /// then waits less for memory.
    pub fn expect(&self, key: BlockKey) {
        self.table.fetch(key);
    }

    /// What holds after each change, and of the run that it was about.
    fn check_invariants(&self, key: BlockKey) {
        self.table.check_invariants();
        self.table.check_run_of(key);
    }

    /// False when it was refused; then nothing has changed.
    fn store(&mut self, lane: u16, parent: BlockKey, key: BlockKey, block_bytes: u16) -> bool {
        let listed =
            |table: &TableWriter, at: Location| at.offset > 0 || !table.is_unlisted(at.run);
        let next = self.likely.next.filter(|next| self.table.is_at(*next, key));
        let mut found = next.or_else(|| self.table.find(key));
        if let Some(at) = found.filter(|at| listed(&self.table, *at)) {
            let next = Some(Location { offset: at.offset + 1, ..at });
            self.likely = Likely { before: at, next };
            self.table.use_now(at.run);
            return self.table.hold(at.run, at.offset, lane);
        }
        // Before the other look-ups: an eviction may cut or take the runs that they name.
        if self.make_room(parent, key) {
            found = self.table.find(key);
        }
        let unlisted = found;
        let before = self.table.find_near(self.likely.before, parent);
        if let (None, Some(end)) = (unlisted, before)
            && self.table.may_append(end, lane, &self.windows)
        {
            let before = Location { offset: end.offset + 1, ..end };
            self.likely = Likely { before, next: None };
            return self.table.append(end, key, block_bytes);
        }
        let Some(parent) = self.run_to(parent, before) else { return false };
        let run = match unlisted {
            Some(at) => self.table.adopt(at.run, parent, block_bytes).then_some(at.run),
            None => self.table.create(Some(parent), key, block_bytes),
        };
        match run {
            Some(run) => {
                self.likely = Likely { before: Location { run, offset: 0 }, next: None };
                self.table.hold(run, 0, lane)
            }
            None => {
                self.settle(parent);
                false
            }
        }
    }

    /// False when there is no memory to say so. A block that is not there is not missed: it was
    /// evicted, or goes with an operation that comes before this one.
    fn hold(&mut self, lane: u16, key: BlockKey) -> bool {
        if let Err(place) = self.windows.binary_search(&lane) {
            self.windows.insert(place, lane);
        }
        let found = self.table.find(key).filter(|at| !self.table.is_unlisted(at.run));
        found.is_none_or(|at| self.table.hold_apart(at.run, at.offset, lane))
    }

    /// The run that ends with a block, which is at `at`; made by a split, or as an unlisted one if
    /// it is nowhere.
    fn run_to(&mut self, end: BlockKey, at: Option<Location>) -> Option<RunId> {
        let Some(at) = at else {
            // Two entries come in one store, and they may belong to two segments.
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
        // Paths are removed from their ends.
        self.likely.before = match at.offset.checked_sub(1) {
            Some(offset) => Location { offset, ..at },
            None => self.table.parent(at.run).map_or(at, |parent| self.table.end_of(parent)),
        };
        if self.table.is_loose_end(at, lane) {
            // The usual way of eviction: last block first.
            return self.table.truncate(at.run, at.offset);
        }
        if self.table.release(at.run, at.offset, lane) {
            self.settle(at.run);
        }
    }

    /// Gives back what neither a rank nor a child keeps, from the run towards the root.
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

    /// Makes sure, as far as it can, that a store finds memory. True if it had to evict.
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

    /// Takes the coldest of the next leaves out, but for `keep`. False when there was none.
    fn evict(&mut self, keep: Option<RunId>) -> bool {
        let runs = self.table.runs_allocated();
        self.hand = self.hand.wrapping_add(1);
        let mut leaves: Vec<(u32, RunId)> = Vec::with_capacity(LEAVES_COMPARED);
        for _ in 0..RUNS_LOOKED_AT.min(runs) {
            self.hand = (self.hand + HAND_STEP) % runs.max(1);
            let run = RunId(self.hand);
            // A run that others follow stays: its path would end before them.
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

    /// Paths of nodes of which each has the parent `node / 3`: forks of three, from the root 0 on.
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
        /// The assertions behind `apply` are what is tested. Lengths and ranks are more than a word
        /// takes, and the memory is less than all blocks need.
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
