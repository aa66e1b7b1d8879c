//! The owner's side of the table: its memory. Runs on the owning shard's thread. The work of each
//! call is bounded.

use super::cells::{CHUNK_BYTES, CellPool};
use super::locator::{Locator, RUNS_MAX, SLOTS_MAX, Segment};
use super::run::{Run, RunId};
use super::shelves::Shelves;
use super::{CHUNK_RUNS, Cells, Gauges, Table};
use crate::words::CellId;
use crossbeam_utils::CachePadded;
use forebay_ring::sync::AtomicU32;
use std::sync::Arc;

/// Sizes of a table.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Slots of a segment of the locator, a power of two from 16 to 2,048. Larger segments make
    /// growth steps longer, smaller segments fill less evenly.
    pub segment_slots: usize,
    /// Most bytes of runs, cells and segments, on both sides.
    pub memory_bytes_max: usize,
}

/// Owner's part of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnedRun {
    /// Number of children with the length in the same lane, while the lengths fit their word.
    pub child_counts: [u32; 4],
}

/// Owner's part of a segment.
#[derive(Debug)]
pub(super) struct OwnedSegment {
    pub filled: usize,
    /// Number of low bits that all keys of the segment share.
    pub depth: u32,
}

/// The only writer of a table.
#[derive(Debug)]
pub(in super::super) struct TableWriter {
    pub(super) table: Arc<Table>,
    /// The owner's part of each segment, in the order of the segments.
    pub(super) parts: Vec<OwnedSegment>,
    pub(super) pool: CellPool,
    /// The owner's part of each allocated run.
    pub(super) owned: Vec<OwnedRun>,
    pub(super) free_runs: Vec<RunId>,
    pub(super) run_count: usize,
    pub(super) entry_count: usize,
    pub(super) shape: Shape,
}

impl TableWriter {
    /// An empty table with a segment, even if that exceeds the budget.
    pub(in super::super) fn new(shape: Shape) -> Self {
        let slots = shape.segment_slots.next_power_of_two().clamp(16, SLOTS_MAX);
        let shape = Shape { segment_slots: slots, ..shape };
        // Places for all that the budget allows: a growing array would move under its readers.
        let segments_max = (shape.memory_bytes_max / segment_bytes(slots)).max(1);
        let run_chunks_max = (shape.memory_bytes_max / RUN_CHUNK_BYTES).min(RUNS_MAX / CHUNK_RUNS);
        let table = Table {
            locator: Locator::new(segments_max),
            runs: Shelves::new(run_chunks_max),
            cells: Cells::new(shape.memory_bytes_max / CHUNK_BYTES),
            gauges: CachePadded::new(Gauges::default()),
            epoch: CachePadded::new(AtomicU32::new(0)),
        };
        let mut writer = Self {
            table: Arc::new(table),
            parts: Vec::new(),
            pool: CellPool::default(),
            owned: Vec::new(),
            free_runs: Vec::new(),
            run_count: 0,
            entry_count: 0,
            shape,
        };
        writer.add_segment(0);
        writer.publish_sizes();
        writer
    }

    /// The readers' side.
    pub(in super::super) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    /// Counts a refused store.
    pub(in super::super) fn count_refused(&self) {
        self.table.gauges.refused.add(1);
    }

    /// Counts blocks that were evicted to make room.
    pub(in super::super) fn count_evicted(&self, blocks: usize) {
        self.table.gauges.evicted.add(blocks as u64);
    }

    /// Sets the epoch that runs record when they are used.
    pub(in super::super) fn set_epoch(&self, epoch: u32) {
        self.table.set_epoch(epoch);
    }

    /// Limit of the numbers of all allocated runs, for a loop over them.
    pub(in super::super) fn runs_allocated(&self) -> u32 {
        u32::try_from(self.owned.len()).unwrap_or(u32::MAX)
    }

    /// Blocks in use.
    pub(in super::super) fn entry_count(&self) -> usize {
        self.entry_count
    }

    /// True if that many cells and two runs can be taken.
    pub(in super::super) fn has_room(&self, cells: usize) -> bool {
        let runs_free = self.free_runs.len() >= 2 || self.may_grow_runs();
        let cells_free = self.pool.free_count() >= cells || self.may_grow(CHUNK_BYTES);
        runs_free && cells_free
    }

    /// A cell of zeros, within the budget.
    pub(super) fn take_cell(&mut self) -> Option<CellId> {
        let may_grow = self.may_grow(CHUNK_BYTES);
        self.pool.take(&self.table.cells, may_grow)
    }

    /// A free run, within the budget.
    pub(super) fn take_run(&mut self) -> Option<RunId> {
        if self.free_runs.is_empty() && self.may_grow_runs() {
            self.grow_runs();
        }
        let run = self.free_runs.pop()?;
        debug_assert!(self.is_blank(run), "{run:?} is in use");
        self.run_count += 1;
        Some(run)
    }

    /// Takes back a run without references.
    pub(super) fn put_run(&mut self, run: RunId) {
        debug_assert!(self.run_count > 0, "more runs given back than taken");
        debug_assert!(self.is_blank(run), "{run:?} is still in use");
        // A reader may still hold the run's number: it finds no block there, and a changed stamp.
        self.free_runs.push(run);
        self.run_count = self.run_count.saturating_sub(1);
    }

    /// From here on readers of the run retry, until `end`.
    pub(super) fn begin(&self, run: RunId) {
        if let Some(run) = self.run(run) {
            run.begin();
        }
    }

    /// The change that `begin` announced is done.
    pub(super) fn end(&self, run: RunId) {
        if let Some(run) = self.run(run) {
            run.end();
        }
    }

    pub(super) fn run(&self, run: RunId) -> Option<&Run> {
        self.table.run(run)
    }

    pub(super) fn owned_mut(&mut self, run: RunId) -> Option<&mut OwnedRun> {
        self.owned.get_mut(usize::try_from(run.0).unwrap_or(usize::MAX))
    }

    pub(super) fn owned(&self, run: RunId) -> OwnedRun {
        self.owned.get(usize::try_from(run.0).unwrap_or(usize::MAX)).copied().unwrap_or_default()
    }

    /// True if that many more bytes are within the budget.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.memory_bytes().saturating_add(bytes) <= self.shape.memory_bytes_max
    }

    /// Runs and cells leave room for the locator to double: it has to grow with the blocks that the
    /// free cells can still take.
    fn may_grow(&self, bytes: usize) -> bool {
        // Otherwise cells could take the whole budget, and a full locator would refuse blocks.
        let locator_bytes = self.parts.len() * segment_bytes(self.shape.segment_slots);
        self.fits(bytes.saturating_add(locator_bytes))
    }

    fn may_grow_runs(&self) -> bool {
        self.owned.len() + CHUNK_RUNS <= RUNS_MAX
            && self.owned.len() / CHUNK_RUNS < self.table.runs.places_max()
            && self.may_grow(RUN_CHUNK_BYTES)
    }

    pub(in super::super) fn publish_sizes(&self) {
        let gauges = &self.table.gauges;
        gauges.entries.set(self.entry_count as u64);
        gauges.runs.set(self.run_count as u64);
        gauges.bytes.set(self.memory_bytes() as u64);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.parts.len() * segment_bytes(self.shape.segment_slots)
            + self.pool.chunk_count() * CHUNK_BYTES
            + self.owned.len() * (size_of::<Run>() + size_of::<OwnedRun>())
    }

    fn grow_runs(&mut self) {
        let first = self.owned.len();
        debug_assert!(first.is_multiple_of(CHUNK_RUNS), "a chunk in part");
        let chunk = Box::new(std::array::from_fn(|_| Run::empty()));
        if !self.table.runs.set(first / CHUNK_RUNS, chunk) {
            return;
        }
        self.owned.resize(first + CHUNK_RUNS, OwnedRun::default());
        // Run 0 is left out: as a parent it means no parent, and its entry could be 0.
        let runs = (first.max(1)..first + CHUNK_RUNS).rev();
        self.free_runs.extend(runs.filter_map(|run| u32::try_from(run).ok()).map(RunId));
    }

    /// Fills the next place of the segments. Readers do not read it before the directory refers to
    /// it.
    pub(super) fn add_segment(&mut self, depth: u32) -> bool {
        let segment = Segment::new(self.shape.segment_slots);
        if !self.table.locator.segments.set(self.parts.len(), segment) {
            return false;
        }
        self.parts.push(OwnedSegment { filled: 0, depth });
        true
    }
}

const RUN_CHUNK_BYTES: usize = CHUNK_RUNS * (size_of::<Run>() + size_of::<OwnedRun>());

/// Bytes of a segment, its owner's part, and its references in the directory.
pub(super) const fn segment_bytes(slots: usize) -> usize {
    // Four references, because the directory has two spare bits.
    let shares = size_of::<std::sync::OnceLock<Segment>>()
        + size_of::<OwnedSegment>()
        + 4 * size_of::<u32>();
    slots * size_of::<u64>() + shares
}
