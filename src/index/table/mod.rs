//! The memory of a slice: runs of blocks, their holders, and the place of each key's block. A
//! single thread writes ([`TableWriter`]), every thread reads in place ([`Table::enter`]) without
//! locks, messages or reference counts.
//!
//! A *run* is a path of blocks without a branch, up to `RUN_BLOCKS_MAX` blocks, in cells that are
//! read in sequence: following a prompt through a run costs hashing, not a cache miss per block.
//! Ranks that hold the whole run are a set in its head; ranks that hold a part have a bit for each
//! block. At a fork of paths, the run is split.
//!
//! # Guarantees for readers
//! * A hit is exact: all words read from a run belong to the same state. Every change of more than
//!   a word, and every release of cells, happens under the run's *stamp* (a sequence lock); a
//!   reader that detects such a change retries.
//! * A miss is exact except for keys that were changing at every retry, see [`Locator::find`].
//! * A rank's blocks and a run's child lengths change one word at a time; a reader sees each either
//!   before or after.

mod blocks;
mod cells;
mod check;
mod entries;
mod first;
mod lists;
mod locator;
mod reading;
mod run;
mod sets;
mod shelves;
mod tags;
mod visit;
mod writer;

pub(super) use blocks::STORE_CELLS_MAX;
pub(super) use cells::CELL_WORDS;
pub(super) use first::{FIRST_WORDS, FirstLengths};
pub(super) use locator::Location;
pub(super) use reading::{BlockPath, RunView, Step, StepSet};
pub(super) use run::RunId;
pub(super) use sets::whole;
pub use writer::Shape;
pub(super) use writer::TableWriter;

use cells::Cells;
use crossbeam_utils::CachePadded;
use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering};
use locator::Locator;
use run::Run;
use shelves::Shelves;

/// Runs that are allocated together; few under loom, where every atomic costs time.
const CHUNK_RUNS: usize = if cfg!(feature = "loom") { 4 } else { 64 };

/// The readers' side of a slice.
#[derive(Debug)]
pub(super) struct Table {
    locator: Locator,
    /// Filled from the front. The run 0 is never used.
    runs: Shelves<Box<[Run; CHUNK_RUNS]>>,
    cells: Cells,
    gauges: CachePadded<Gauges>,
    /// Coarse time, for the age of runs.
    epoch: CachePadded<AtomicU32>,
}

/// Statistics of the table. Written by the slice's owner only.
#[derive(Debug, Default)]
struct Gauges {
    entries: Gauge,
    runs: Gauge,
    bytes: Gauge,
    refused: Gauge,
    evicted: Gauge,
}

/// A number that the owner sets and any thread reads.
#[derive(Debug)]
struct Gauge(AtomicU64);

impl Table {
    #[inline]
    fn run(&self, run: RunId) -> Option<&Run> {
        let run = usize::try_from(run.0).unwrap_or(usize::MAX);
        self.runs.get(run / CHUNK_RUNS)?.get(run % CHUNK_RUNS)
    }

    #[inline]
    fn epoch(&self) -> u32 {
        // ordering: Relaxed; coarse time, pairs with nothing.
        self.epoch.load(Ordering::Relaxed)
    }

    fn set_epoch(&self, epoch: u32) {
        // ordering: Relaxed, as in `epoch`.
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Blocks, including blocks that no rank holds but that precede held blocks.
    pub(super) fn entry_count(&self) -> u64 {
        self.gauges.entries.get()
    }

    /// Runs, including runs of roots.
    pub(super) fn run_count(&self) -> u64 {
        self.gauges.runs.get()
    }

    /// Bytes allocated, on the reader's and the writer's side.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.gauges.bytes.get()
    }

    /// Stores refused since start: a rank, length or set outside its limit, or no memory after
    /// evictions.
    pub(super) fn refused_count(&self) -> u64 {
        self.gauges.refused.get()
    }

    /// Blocks evicted since start to stay within the memory budget.
    pub(super) fn evicted_count(&self) -> u64 {
        self.gauges.evicted.get()
    }
}

impl Default for Gauge {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Gauge {
    fn get(&self) -> u64 {
        // ordering: Relaxed; a statistic, pairs with nothing.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        // ordering: Relaxed; a statistic, pairs with nothing.
        self.0.store(value, Ordering::Relaxed);
    }

    fn add(&self, more: u64) {
        // Only the owner writes, so no read-modify-write is needed.
        debug_assert!(self.get().checked_add(more).is_some(), "a count ran over");
        self.set(self.get().wrapping_add(more));
    }
}
