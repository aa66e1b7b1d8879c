//! The head of a run: up to [`RUN_BLOCKS_MAX`] blocks that follow each other without a branch,
//! their holders, and their children. A single cache line; the blocks themselves are in cells.

use super::super::words::{CellId, Twig, twig_of, with_twig};
use super::cells::CELL_PAIRS;
use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Cells with the blocks of a run.
pub(super) const RUN_CELLS: usize = 5;
/// Blocks of a run, each with a bit in a word.
pub(super) const RUN_BLOCKS_MAX: usize = 60;
const _: () = assert!(RUN_BLOCKS_MAX < 64 && RUN_BLOCKS_MAX <= RUN_CELLS * CELL_PAIRS);

/// Number of a run in its slice; 0: no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(in super::super) struct RunId(pub u32);

/// Shared part of a run. The owner writes all fields but `used`, which readers set to the current
/// epoch.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Run {
    /// Odd while more than a word of the run changes.
    stamp: AtomicU64,
    /// Ranks that hold every block, as in `index::words`.
    ranks: AtomicU64,
    /// Byte lengths of the child blocks; with a list, also the root of their tags.
    lengths: AtomicU64,
    /// 0, or the first cell of a list of (mask, lane): ranks that hold some of the blocks.
    partial: AtomicU64,
    block_count: AtomicU32,
    used: AtomicU32,
    parent: AtomicU32,
    cells: [AtomicU32; RUN_CELLS],
}

impl Run {
    pub(super) fn empty() -> Self {
        let word = || AtomicU64::new(0);
        Self {
            stamp: word(),
            ranks: word(),
            lengths: word(),
            partial: word(),
            block_count: AtomicU32::new(0),
            used: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            cells: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline]
    pub(super) fn ranks(&self) -> u64 {
        // ordering: Acquire pairs with the Release store in `set_ranks`: a cell is filled before a
        // word refers to it.
        self.ranks.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn lengths(&self) -> u64 {
        // ordering: Acquire pairs with the Release store in `set_lengths`, as for the ranks.
        self.lengths.load(Ordering::Acquire)
    }

    /// The root of the children's tags.
    pub(super) fn tags(&self) -> Twig {
        twig_of(self.lengths())
    }

    #[inline]
    pub(super) fn partial(&self) -> u64 {
        // ordering: Acquire pairs with the Release store in `set_partial`, as for the ranks.
        self.partial.load(Ordering::Acquire)
    }

    /// Blocks of the run; 0 while it is not in use.
    #[inline]
    pub(super) fn block_count(&self) -> usize {
        // ordering: Acquire pairs with the Release store in `set_block_count`: the counted blocks
        // are in their cells.
        let count = self.block_count.load(Ordering::Acquire);
        usize::try_from(count).unwrap_or(0).min(RUN_BLOCKS_MAX)
    }

    /// The parent run; 0 for roots.
    pub(super) fn parent(&self) -> RunId {
        // ordering: Relaxed; readers use it only under the stamp.
        RunId(self.parent.load(Ordering::Relaxed))
    }

    /// Cell of the blocks `index * CELL_PAIRS..`.
    #[inline]
    pub(super) fn cell(&self, index: usize) -> CellId {
        // ordering: Relaxed; set before the block count that includes it, and used only under the
        // stamp.
        CellId(self.cells.get(index).map_or(u32::MAX, |cell| cell.load(Ordering::Relaxed)))
    }

    /// Owner only.
    pub(super) fn set_ranks(&self, word: u64) {
        // ordering: Release pairs with the Acquire load in `ranks`.
        self.ranks.store(word, Ordering::Release);
    }

    /// Owner only.
    pub(super) fn set_lengths(&self, word: u64) {
        // ordering: Release pairs with the Acquire load in `lengths`.
        self.lengths.store(word, Ordering::Release);
    }

    /// Owner only, of a run whose lengths are a list.
    pub(super) fn set_tags(&self, twig: Twig) {
        self.set_lengths(with_twig(self.lengths(), twig));
    }

    /// Owner only.
    pub(super) fn set_partial(&self, word: u64) {
        // ordering: Release pairs with the Acquire load in `partial`.
        self.partial.store(word, Ordering::Release);
    }

    /// Owner only.
    pub(super) fn set_block_count(&self, count: usize) {
        debug_assert!(count <= RUN_BLOCKS_MAX, "{count} blocks in a run");
        // ordering: Release pairs with the Acquire load in `block_count`.
        self.block_count.store(u32::try_from(count).unwrap_or(0), Ordering::Release);
    }

    /// Owner only.
    pub(super) fn set_parent(&self, parent: RunId) {
        // ordering: Relaxed, see `parent`.
        self.parent.store(parent.0, Ordering::Relaxed);
    }

    /// Owner only.
    pub(super) fn set_cell(&self, index: usize, cell: CellId) {
        debug_assert!(index < RUN_CELLS, "a run has no cell {index}");
        if let Some(place) = self.cells.get(index) {
            // ordering: Relaxed, see `cell`.
            place.store(cell.0, Ordering::Relaxed);
        }
    }

    /// When the run was last walked or stored, in epochs of the slice.
    pub(super) fn used(&self) -> u32 {
        // ordering: Relaxed; a hint for eviction, pairs with nothing.
        self.used.load(Ordering::Relaxed)
    }

    /// True between `begin` and `end`. Owner only.
    pub(super) fn is_changing(&self) -> bool {
        // ordering: Relaxed; the owner wrote it.
        !self.stamp.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// Any thread. Writes only a new epoch, so that readers do not contend for the cache line.
    #[inline]
    pub(super) fn use_at(&self, epoch: u32) {
        if self.used() != epoch {
            // ordering: Relaxed, as in `used`.
            self.used.store(epoch, Ordering::Relaxed);
        }
    }

    /// Stamp for [`Run::read_end`]; `None` while the run changes.
    #[inline]
    pub(super) fn read_begin(&self) -> Option<u64> {
        // ordering: Acquire pairs with the Release store in `end`: the words are at least as new as
        // the stamp.
        let stamp = self.stamp.load(Ordering::Acquire);
        stamp.is_multiple_of(2).then_some(stamp)
    }

    /// True if no word read since the stamp was changed between [`Run::begin`] and [`Run::end`].
    #[inline]
    pub(super) fn read_end(&self, stamp: u64) -> bool {
        // ordering: the Acquire fence pairs with the Release fence in `begin` (and in
        // `CellPool::take`, for reused cells): if any word we read was written after such a fence,
        // we see its odd stamp here, or a later stamp.
        fence(Ordering::Acquire);
        self.stamp.load(Ordering::Relaxed) == stamp
    }

    /// Owner only: from here on, readers of the run will retry.
    pub(super) fn begin(&self) {
        // ordering: the load is Relaxed, only the owner writes it. The Release store pairs with the
        // Acquire load in `read_begin`: a reader that retries because of the odd stamp sees all
        // earlier writes. The Release fence pairs with the Acquire fence in `read_end`.
        let stamp = self.stamp.load(Ordering::Relaxed);
        // A nested change would make the stamp even: readers would accept half of the change.
        debug_assert!(stamp.is_multiple_of(2), "a change inside a change");
        self.stamp.store(stamp.wrapping_add(1), Ordering::Release);
        fence(Ordering::Release);
    }

    /// Owner only: the change that `begin` announced is done.
    pub(super) fn end(&self) {
        // ordering: the load is Relaxed, only the owner writes it; the Release store pairs with the
        // Acquire load in `read_begin`.
        let stamp = self.stamp.load(Ordering::Relaxed);
        debug_assert!(!stamp.is_multiple_of(2), "the end of no change");
        self.stamp.store(stamp.wrapping_add(1), Ordering::Release);
    }
}
