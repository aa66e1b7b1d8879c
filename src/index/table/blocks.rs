//! The owner's side of runs: create, extend, cut, split at forks, and free.

use super::super::words::CellId;
use super::cells::{CELL_PAIRS, CHUNK_BYTES};
use super::run::{RUN_BLOCKS_MAX, RUN_CELLS, RunId};
use super::{Location, TableWriter};
use crate::BlockKey;

/// Cells that a store can take: two copies of a run's blocks for a split, its sets, and a tag and
/// the bits of lengths in its parent.
pub(in super::super) const STORE_CELLS_MAX: usize = 2 * RUN_CELLS + 4 + 2 + 2;
// Otherwise a new chunk would not be enough for a store.
const _: () = assert!(STORE_CELLS_MAX * 128 <= CHUNK_BYTES || cfg!(feature = "loom"));

impl TableWriter {
    pub(in super::super) fn block_count(&self, run: RunId) -> usize {
        self.run(run).map_or(0, super::Run::block_count)
    }

    /// The parent run; `None` for roots and for runs without a stored parent.
    pub(in super::super) fn parent(&self, run: RunId) -> Option<RunId> {
        self.run(run).map(super::Run::parent).filter(|parent| *parent != RunId::default())
    }

    /// The last block of a run.
    pub(in super::super) fn end_of(&self, run: RunId) -> Location {
        Location { run, offset: self.block_count(run).saturating_sub(1) }
    }

    /// True for a run that no parent lists: a root, or a block with stored children that was not
    /// stored itself.
    pub(in super::super) fn is_unlisted(&self, run: RunId) -> bool {
        self.run(run).is_none_or(|run| self.table.length_at(run, 0) == 0)
    }

    /// When the run was last walked or stored.
    pub(in super::super) fn used(&self, run: RunId) -> u32 {
        self.run(run).map_or(0, super::Run::used)
    }

    /// Marks the run as used now.
    pub(in super::super) fn use_now(&self, run: RunId) {
        if let Some(run) = self.run(run) {
            run.use_at(self.table.epoch());
        }
    }

    /// Creates a run with a single block after `parent` (listed there), or an unlisted run.
    pub(in super::super) fn create(
        &mut self,
        parent: Option<RunId>,
        key: BlockKey,
        block_bytes: u16,
    ) -> Option<RunId> {
        let id = self.take_run()?;
        let made = self.fill(id, parent, key, block_bytes);
        if !made {
            self.put_run(id);
        }
        made.then_some(id)
    }

    fn fill(&mut self, id: RunId, parent: Option<RunId>, key: BlockKey, block_bytes: u16) -> bool {
        debug_assert_eq!(parent.is_none(), block_bytes == 0, "listed runs have a length");
        let Some(cell) = self.take_cell() else { return false };
        self.table.cells.set_pair(cell, 0, key.to_word(), block_bytes);
        self.begin(id);
        if let Some(run) = self.run(id) {
            run.set_cell(0, cell);
            run.set_parent(parent.unwrap_or_default());
            run.set_block_count(1);
        }
        self.end(id);
        let listed = parent.is_none_or(|parent| self.add_length(parent, block_bytes, key));
        if listed && self.insert(key, Location { run: id, offset: 0 }) {
            self.use_now(id);
            return true;
        }
        if let Some(parent) = parent.filter(|_| listed) {
            self.drop_length(parent, block_bytes, key);
        }
        self.empty(id);
        false
    }

    /// Lists a so far unlisted run at its parent. False: the parent refuses it.
    pub(in super::super) fn adopt(&mut self, id: RunId, parent: RunId, block_bytes: u16) -> bool {
        debug_assert!(self.is_unlisted(id) && self.block_count(id) == 1, "{id:?} has a parent");
        debug_assert!(self.block_count(parent) > 0, "{parent:?} is not in use");
        let Some(run) = self.run(id) else { return false };
        let cell = run.cell(0);
        let Some(key) = self.key(id, 0) else { return false };
        if !self.add_length(parent, block_bytes, key) {
            return false;
        }
        self.begin(id);
        // Only unlisted runs have bits of their lengths.
        self.end_first(id);
        self.table.cells.set_pair(cell, 0, key.to_word(), block_bytes);
        if let Some(run) = self.run(id) {
            run.set_parent(parent);
        }
        self.end(id);
        true
    }

    /// True for the last block of a run that can be extended by a block of its only holder.
    /// `windows`: lanes that hold blocks without their paths, in order.
    pub(in super::super) fn may_append(&self, end: Location, lane: u16, windows: &[u16]) -> bool {
        self.run(end.run).is_some_and(|run| {
            end.offset + 1 == run.block_count()
                && run.block_count() < RUN_BLOCKS_MAX
                && self.is_only_path(run, lane, windows)
                && run.lengths() == 0
                && self.table.length_at(run, 0) != 0
        })
    }

    /// Extends a run for which [`TableWriter::may_append`] holds. False: refused.
    pub(in super::super) fn append(&mut self, end: Location, key: BlockKey, bytes: u16) -> bool {
        let id = end.run;
        let offset = end.offset + 1;
        debug_assert_eq!(offset, self.block_count(id), "{id:?} ends elsewhere");
        debug_assert!((1..RUN_BLOCKS_MAX).contains(&offset), "{id:?} is full, or not in use");
        debug_assert!(!self.has_children(id), "children of {id:?} would follow another block");
        let taken = if offset.is_multiple_of(CELL_PAIRS) { self.take_cell() } else { None };
        if taken.is_none() && offset.is_multiple_of(CELL_PAIRS) {
            return false;
        }
        if !self.insert(key, Location { run: id, offset }) {
            taken.into_iter().for_each(|cell| self.pool.put(cell));
            return false;
        }
        let Some(run) = self.run(id) else { return false };
        if let Some(cell) = taken {
            run.set_cell(offset / CELL_PAIRS, cell);
        }
        let cell = run.cell(offset / CELL_PAIRS);
        self.table.cells.set_pair(cell, offset % CELL_PAIRS, key.to_word(), bytes);
        // Last, since the count makes the block visible to readers. A single word: no stamp.
        run.set_block_count(offset + 1);
        run.use_at(self.table.epoch());
        true
    }

    /// Cuts blocks without holders off the end of a run without children; at least 1 block stays.
    pub(in super::super) fn trim(&mut self, id: RunId) {
        let count = self.block_count(id);
        let held = usize::try_from(64 - self.held_blocks(id).leading_zeros()).unwrap_or(0);
        if held.max(1) < count {
            self.truncate(id, held.max(1));
        }
    }

    /// True for the last block of a run that only this rank holds, and that has no children: the
    /// run can be cut there.
    pub(in super::super) fn is_loose_end(&self, at: Location, lane: u16) -> bool {
        self.run(at.run).is_some_and(|run| {
            at.offset > 0
                && at.offset + 1 == run.block_count()
                && run.ranks() == u64::from(lane)
                && run.partial() == 0
                && run.lengths() == 0
        })
    }

    /// Cuts a run to its first `left` blocks, at least 1. Only whole holders hold the removed
    /// blocks.
    pub(in super::super) fn truncate(&mut self, id: RunId, left: usize) {
        debug_assert!(!self.has_children(id), "children of {id:?} follow its last block");
        let count = self.block_count(id);
        debug_assert!((1..count).contains(&left), "{id:?} cut to {left} of {count}");
        // Removed from the locator while their keys can still be read.
        self.forget_blocks(id, left..count);
        let Some(run) = self.run(id) else { return };
        run.begin();
        run.set_block_count(left);
        let cells = left.div_ceil(CELL_PAIRS)..count.div_ceil(CELL_PAIRS);
        if run.partial() == 0 && cells.is_empty() {
            return run.end();
        }
        self.promote(id);
        self.put_cells(id, cells);
        self.end(id);
    }

    /// Frees a run without children; returns its parent, which no longer lists it.
    pub(in super::super) fn destroy(&mut self, id: RunId) -> Option<RunId> {
        debug_assert!(!self.has_children(id), "children of {id:?} would follow nothing");
        let parent = self.parent(id);
        // Read first: its cell is freed below.
        let block_bytes = self.run(id).map_or(0, |run| self.table.length_at(run, 0));
        let first = self.key(id, 0);
        self.forget_blocks(id, 0..self.block_count(id));
        self.empty(id);
        self.put_run(id);
        if let (Some(parent), Some(first)) = (parent, first) {
            self.drop_length(parent, block_bytes, first);
        }
        parent
    }

    /// Splits a run before the block `at`, which is neither the first nor past the end. The blocks
    /// before it move to a new run, which is returned. The rest keeps the run, so that its children
    /// keep their parent. `None`: refused, nothing has changed.
    pub(in super::super) fn split(&mut self, id: RunId, at: usize) -> Option<RunId> {
        let count = self.block_count(id);
        debug_assert!((1..count).contains(&at), "{id:?} of {count} split at {at}");
        // The head is complete before a key leads to it, so that no reader sees half of it.
        let head = self.take_run()?;
        let front = self.copy_cells(id, 0, at);
        let back = self.copy_cells(id, at, count - at);
        let block_bytes = self.run(id).map_or(0, |run| self.table.length_at(run, at));
        let listed = self.key(id, at);
        let whole = front.len() == at.div_ceil(CELL_PAIRS)
            && back.len() == (count - at).div_ceil(CELL_PAIRS);
        self.begin(head);
        if let (Some(head), Some(run)) = (self.run(head), self.run(id)) {
            head.set_parent(run.parent());
            front.iter().enumerate().for_each(|(index, cell)| head.set_cell(index, *cell));
            head.set_block_count(at);
            head.use_at(run.used());
        }
        self.end(head);
        if !whole
            || !self.copy_holders(id, head, at)
            || !listed.is_some_and(|key| self.add_length(head, block_bytes, key))
        {
            // No reader has seen these cells, so they need no stamp.
            back.into_iter().for_each(|cell| self.pool.put(cell));
            self.unmake(head, &front);
            return None;
        }
        self.move_blocks(id, head, at, count);
        self.cut_front(id, head, at, count, &back);
        Some(head)
    }

    /// Undoes a split that failed half-way.
    fn unmake(&mut self, head: RunId, front: &[CellId]) {
        self.begin(head);
        self.clear_ranks(head);
        if let Some(run) = self.run(head) {
            run.set_block_count(0);
        }
        front.iter().for_each(|cell| self.pool.put(*cell));
        self.end(head);
        self.put_run(head);
    }

    /// From here on readers find the first blocks in their new run; the old run still has them too.
    fn move_blocks(&self, from: RunId, to: RunId, at: usize, count: usize) {
        for offset in 0..at.min(count) {
            if let Some(key) = self.key(from, offset) {
                let from = Location { run: from, offset };
                let to = Location { run: to, offset };
                self.relocate(key, from, to);
            }
        }
    }

    /// Removes the blocks before `at` from a run. The locator has the new offset of its new first
    /// block before the change ends, so that a reader from the new parent run finds it.
    fn cut_front(&mut self, id: RunId, head: RunId, at: usize, count: usize, back: &[CellId]) {
        let keys: Vec<_> = (at..count).filter_map(|offset| self.key(id, offset)).collect();
        debug_assert_eq!(keys.len(), count - at, "a block without a key");
        let moved = |offset: usize| {
            let from = offset;
            let to = offset - at;
            (Location { run: id, offset: from }, Location { run: id, offset: to })
        };
        self.begin(id);
        self.put_cells(id, 0..count.div_ceil(CELL_PAIRS));
        if let Some(run) = self.run(id) {
            back.iter().enumerate().for_each(|(index, cell)| run.set_cell(index, *cell));
            run.set_block_count(count - at);
            run.set_parent(head);
        }
        self.shift_holders(id, at);
        let mut moves = keys.into_iter().zip((at..count).map(moved));
        if let Some((key, (from, to))) = moves.next() {
            self.relocate(key, from, to);
        }
        self.end(id);
        // Only the owner looks up blocks inside of a run, so the rest can follow later.
        moves.for_each(|(key, (from, to))| self.relocate(key, from, to));
    }

    /// Copies `count` blocks from `first` on to new cells; fewer if memory ran out.
    fn copy_cells(&mut self, id: RunId, first: usize, count: usize) -> Vec<CellId> {
        let mut cells = Vec::with_capacity(RUN_CELLS);
        for start in (0..count).step_by(CELL_PAIRS) {
            let Some(cell) = self.take_cell() else { break };
            cells.push(cell);
            let Some(run) = self.run(id) else { break };
            for index in 0..CELL_PAIRS.min(count - start) {
                let offset = first + start + index;
                let key = self.table.key_at(run, offset);
                let length = self.table.length_at(run, offset);
                self.table.cells.set_pair(cell, index, key, length);
            }
        }
        cells
    }

    /// Frees all of a run except its number and its listing at its parent.
    fn empty(&mut self, id: RunId) {
        let count = self.block_count(id);
        self.begin(id);
        self.clear_ranks(id);
        if let Some(run) = self.run(id) {
            run.set_block_count(0);
        }
        self.put_cells(id, 0..count.div_ceil(CELL_PAIRS));
        self.end(id);
    }

    fn key(&self, run: RunId, offset: usize) -> Option<BlockKey> {
        BlockKey::from_word(self.table.key_at(self.run(run)?, offset))
    }

    fn put_cells(&mut self, id: RunId, range: std::ops::Range<usize>) {
        for index in range {
            if let Some(cell) = self.table.run(id).map(|run| run.cell(index)) {
                self.pool.put(cell);
            }
        }
    }
}
