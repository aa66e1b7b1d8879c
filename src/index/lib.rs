//! The index: which rank holds which prefix, by bytes. Each shard owns one slice and alone writes
//! it ([`SliceWriter`]); every shard reads all slices in place ([`IndexReader`]), without locks and
//! without messages.
//!
//! Blocks that follow each other without a branch lie together in runs, with the ranks that hold
//! them; a path belongs to the slice that its first block gives ([`slice_of`]), with all that
//! extends it. A walk is bounded by `WALK_PROBES_MAX`, the memory by the budget, at which the
//! coldest ends of paths go and are counted. Never waits, never panics, and never says that a rank
//! holds what it does not hold, but for the moments that a change is under way.

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
mod scratch;
mod slice;
mod table;
mod walk;
mod window;
mod words;

pub use expiring::{Expiring, ExpiringLimits, Remembered, Swept};
pub use key::{BlockKey, KeySeed, RootName, slice_of};
pub use marks::{MARKS_MAX, PrefixMarks, prefix_bytes};
pub use operation::{KvBatch, KvOp};
pub use overlap::{Overlap, whole_bytes};
pub use overlaps::Overlaps;
pub use roots::{BlockRoot, GuessRoots, ModelRoots};
pub use routed::{GuessKind, RoutedPrompt};
pub use slice::SliceWriter;
pub use table::Shape;
pub use window::{WINDOWS_MAX, Window, WindowedRank};

use forebay_base::ShardIndex;
use hasher::BlockHasher;
use std::sync::Arc;
use table::Table;
use walk::Walk;
use window::WindowedRanks;

/// Slots of one segment of a slice's locator: adding one segment stalls the owner for some
/// microseconds.
const SEGMENT_SLOTS: usize = 512;

/// Makes an empty index of one slice per shard. The budget is for all slices together, in bytes.
#[must_use]
pub fn index(
    shard_count: usize,
    seed: KeySeed,
    memory_bytes_max: usize,
) -> (IndexReader, Vec<SliceWriter>) {
    let memory_bytes_max = memory_bytes_max / shard_count.max(1);
    index_of_shape(shard_count, seed, Shape { segment_slots: SEGMENT_SLOTS, memory_bytes_max })
}

/// The same with slices of a given shape, for tests that want small ones.
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

/// Reads all slices. Cheap to clone; one for each thread.
#[derive(Clone, Debug)]
pub struct IndexReader {
    hasher: BlockHasher,
    slices: Arc<[Arc<Table>]>,
}

impl IndexReader {
    /// The root of requests that carry a cache salt, from the root without.
    #[must_use]
    pub fn salted(&self, root: BlockKey, cache_salt: &str) -> BlockKey {
        root.salted(self.hasher.seed, cache_salt)
    }

    /// Finds how much of `text` each rank holds under `root` and adds it to `out`: a rank that is
    /// there already keeps the larger overlap.
    pub fn overlap(&self, root: BlockKey, text: &[u8], out: &mut Overlaps) {
        self.overlap_of_windows(root, text, &[], out);
    }

    /// The same where some ranks have windows. Those ranks are in order. How far such a rank can
    /// resume is recorded under the number of its first window; what is recorded under its own is
    /// the most that it could.
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
        match out.has_images {
            false => Walk::<false> { slices, hasher, text, windows, out }.run(root),
            true => Walk::<true> { slices, hasher, text, windows, out }.run(root),
        }
    }

    /// The same under every root of a model, for requests with that cache salt.
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

    /// Calls `each` with parent, key and byte length of every block that some rank holds or that a
    /// held one follows, in any order, while the owners go on: a path that is split meanwhile may
    /// be left out in part.
    pub fn visit(&self, each: &mut dyn FnMut(BlockKey, BlockKey, u16)) {
        for slice in self.slices.iter() {
            slice.visit(each);
        }
    }

    /// The same for one slice.
    pub fn visit_slice(&self, slice: ShardIndex, each: &mut dyn FnMut(BlockKey, BlockKey, u16)) {
        if let Some(slice) = self.slices.get(slice.index()) {
            slice.visit(each);
        }
    }

    /// Blocks of all slices, with those that no rank holds but that others follow.
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

    /// Stores refused since start, because a rank, a block or the number of different block lengths
    /// after one block was outside its limit, or because evictions made no room.
    #[must_use]
    pub fn refused_count(&self) -> u64 {
        self.slices.iter().map(|slice| slice.refused_count()).sum()
    }
}
