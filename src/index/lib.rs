//! The index: which rank holds which prefix, by bytes. Each shard owns a slice and alone writes it
//! ([`SliceWriter`]); every shard reads all slices in place ([`IndexReader`]), without locks and
//! without messages.
//!
//! Blocks that follow each other without a branch are stored together in runs, with the ranks that
//! hold them. The first block of a path determines its slice ([`slice_of`]), which also holds all
//! extensions of the path. A walk is bounded by `WALK_PROBES_MAX`, the memory by the budget, at
//! which the coldest ends of paths are evicted and counted. Never waits, never panics, and never
//! reports a block that a rank does not hold, except while a change is in progress.

mod chunks;
mod expiring;
mod hasher;
mod key;
mod marks;
mod narrow;
mod operation;
mod overlap;
mod overlaps;
mod ranks;
mod roots;
mod routed;
mod rows;
mod scratch;
mod slice;
mod table;
mod walk;
mod window;
mod words;

pub use expiring::{ExpiringChunks, ExpiringLimits, GuessUpdate, SweepResult};
pub use key::{BlockKey, KeySeed, RootName, slice_of};
pub use marks::{MARKS_MAX, PrefixMarks, step_bytes};
pub use operation::{KvBatch, KvOp};
pub use overlap::{Overlap, whole_bytes};
pub use overlaps::Overlaps;
pub use roots::{BlockRoot, GuessRoots, ModelRoots};
pub use routed::{GuessKind, RoutedPrompt};
pub use slice::SliceWriter;
pub use table::Shape;
pub use window::{OddBlocks, WINDOWS_MAX, Window, WindowedRank};

use forebay_base::ShardIndex;
use hasher::BlockHasher;
use std::sync::Arc;
use table::Table;
use walk::Walk;
use window::WindowedRanks;

/// Slots of a segment of a slice's locator: adding a segment stalls the owner for some
/// microseconds.
const SEGMENT_SLOTS: usize = 512;

/// Makes an empty index with a slice per shard. The budget is for all slices together, in bytes.
#[must_use]
pub fn index(
    shard_count: usize,
    seed: KeySeed,
    memory_bytes_max: usize,
) -> (IndexReader, Vec<SliceWriter>) {
    let memory_bytes_max = memory_bytes_max / shard_count.max(1);
    index_of_shape(shard_count, seed, Shape { segment_slots: SEGMENT_SLOTS, memory_bytes_max })
}

/// [`index`] with slices of a given shape, for tests with small slices.
#[must_use]
pub fn index_of_shape(
    shard_count: usize,
    seed: KeySeed,
    shape: Shape,
) -> (IndexReader, Vec<SliceWriter>) {
    let writers: Vec<SliceWriter> =
        (0..shard_count.max(1)).map(|_| SliceWriter::new(shape)).collect();
    let slices = writers.iter().map(SliceWriter::table).collect();
    (IndexReader { hasher: BlockHasher::new(seed), slices }, writers)
}

/// Reads all slices. Cheap to clone; each thread has its own.
#[derive(Clone, Debug)]
pub struct IndexReader {
    hasher: BlockHasher,
    slices: Arc<[Arc<Table>]>,
}

impl IndexReader {
    /// The root of requests with a cache salt, from the root without it.
    #[must_use]
    pub fn salted(&self, root: BlockKey, cache_salt: &str) -> BlockKey {
        root.salted(self.hasher.seed, cache_salt)
    }

    /// Finds the overlap of each rank with `text` under `root` and adds it to `out`: the larger
    /// overlap of a rank stays.
    pub fn overlap(&self, root: BlockKey, text: &[u8], out: &mut Overlaps) {
        self.overlap_of_windows(root, text, &[], out);
    }

    /// [`Self::overlap`] with ranks that have windows, given in rank order. Such a rank gets two
    /// overlaps in `out`:
    ///
    /// | recorded under | overlap |
    /// |---|---|
    /// | the number of its first window | resumable: up to the last block where it can resume |
    /// | its own number | upper bound: all blocks that its other layers hold |
    pub fn overlap_of_windows(
        &self,
        root: BlockKey,
        text: &[u8],
        windowed: &[WindowedRank],
        out: &mut Overlaps,
    ) {
        let whole_bytes = whole_bytes(text, out.has_images);
        let windows = WindowedRanks { ranks: windowed, whole_bytes };
        let slices = &*self.slices;
        let hasher = &self.hasher;
        let has_images = out.has_images;
        let walk = Walk { slices, hasher, text, windows, out };
        match has_images {
            false => walk.run::<false>(root),
            true => walk.run::<true>(root),
        }
    }

    /// [`Self::overlap_of_windows`] under every root of a model, for requests with that cache salt.
    pub fn overlap_of_roots(
        &self,
        roots: &ModelRoots,
        cache_salt: &str,
        text: &[u8],
        out: &mut Overlaps,
    ) {
        for root in &roots.blocks {
            let root = self.salted(root.key, cache_salt);
            self.overlap_of_windows(root, text, &roots.windowed, out);
        }
    }

    /// Calls `each` with parent, key and byte length of every block that a rank holds or that
    /// precedes a held block, in any order. Owners may write meanwhile: a path that is split during
    /// the visit may be left out in part.
    pub fn visit(&self, each: &mut dyn FnMut(BlockKey, BlockKey, u16)) {
        for slice in self.slices.iter() {
            slice.visit(each);
        }
    }

    /// [`Self::visit`] for a single slice.
    pub fn visit_slice(&self, slice: ShardIndex, each: &mut dyn FnMut(BlockKey, BlockKey, u16)) {
        if let Some(slice) = self.slices.get(slice.index()) {
            slice.visit(each);
        }
    }

    /// Blocks of all slices, including blocks that no rank holds but that precede held blocks.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.slices.iter().map(|slice| slice.entry_count()).sum()
    }

    /// Runs of blocks of all slices: how well paths compress.
    #[must_use]
    pub fn run_count(&self) -> u64 {
        self.slices.iter().map(|slice| slice.run_count()).sum()
    }

    /// Bytes allocated; does not shrink.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.slices.iter().map(|slice| slice.memory_bytes()).sum()
    }

    /// Blocks evicted since start, the coldest ends of paths first, to stay within the memory
    /// budget.
    #[must_use]
    pub fn evicted_count(&self) -> u64 {
        self.slices.iter().map(|slice| slice.evicted_count()).sum()
    }

    /// Stores refused since start: a rank, a block or the number of different block lengths after a
    /// block was outside its limit, or evictions made no room.
    #[must_use]
    pub fn refused_count(&self) -> u64 {
        self.slices.iter().map(|slice| slice.refused_count()).sum()
    }
}
