//! Cells: the only kind of memory that runs allocate, 16 words each in a router with 1,024 ranks.
//! Cells are never freed, only reused. A late reader detects the reuse of a cell by the stamp of
//! the run that referred to it.
//!
//! A cell holds either `RANKS_MAX` bits, or twelve pairs of a word and a half-word: blocks (key,
//! length), ranks that hold a part of a run (mask, lane), or child lengths (count, length). The
//! halves are in words 12 to 14. The last word refers to the next cell of a list of pairs, which
//! ends at a half of 0.

use super::super::words::{CellId, cell_of, many};
use super::shelves::Shelves;
use forebay_base::limits::RANKS_MAX;
use forebay_ring::sync::{AtomicU64, Ordering, fence};
use std::ops::Range;

/// Words of a cell.
pub(in super::super) const CELL_WORDS: usize = RANKS_MAX / 64;
/// Pairs in a cell: whole words of halves.
pub(super) const CELL_PAIRS: usize = NEXT / (HALVES_PER_WORD + 1) * HALVES_PER_WORD;
/// Cells of a list of pairs, at most: a pair for each rank.
pub(super) const LIST_CELLS_MAX: usize = RANKS_MAX.div_ceil(CELL_PAIRS);
/// Word that refers to the next cell of a list.
const NEXT: usize = CELL_WORDS - 1;
const HALVES_PER_WORD: usize = 4;
const HALF_BITS: usize = 16;
const HALF_MASK: u64 = 0xffff;
/// Cells that are allocated together; few under loom, where every atomic costs time.
const CHUNK_CELLS: usize = if cfg!(feature = "loom") { 4 } else { 64 };
/// Last freed cells that a debug build compares with the next.
const PUT_CHECKED: usize = 4;
/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: usize = CHUNK_CELLS * CELL_BYTES;
/// Bytes of a cell.
pub(super) const CELL_BYTES: usize = size_of::<Cell>();

const _: () = assert!(CELL_PAIRS + CELL_PAIRS / HALVES_PER_WORD <= NEXT);

/// Two cache lines that are fetched together.
#[derive(Debug)]
#[repr(align(128))]
struct Cell([AtomicU64; CELL_WORDS]);

/// The two halves of a word.
#[inline]
pub(super) const fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

/// All cells of a slice.
#[derive(Debug)]
pub(in super::super) struct Cells {
    chunks: Shelves<Box<[Cell; CHUNK_CELLS]>>,
}

/// The pairs of a cell, each read at the time of the call.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a>(Option<&'a Cell>);

/// The owner's list of free cells.
#[derive(Debug, Default)]
pub(super) struct CellPool {
    free: Vec<CellId>,
    chunk_count: usize,
}

impl Cells {
    pub(super) fn new(chunks_max: usize) -> Self {
        Self { chunks: Shelves::new(chunks_max) }
    }

    #[inline]
    fn cell(&self, cell: CellId) -> Option<&Cell> {
        let cell = usize::try_from(cell.0).unwrap_or(usize::MAX);
        self.chunks.get(cell / CHUNK_CELLS)?.get(cell % CHUNK_CELLS)
    }

    /// Prefetches a cell for a read.
    #[inline]
    pub(super) fn fetch(&self, cell: CellId) {
        self.cell(cell).into_iter().for_each(forebay_wide::fetch);
    }

    /// The pairs of a cell; all 0 for a cell that does not exist.
    #[inline]
    pub(super) fn pairs(&self, cell: CellId) -> Pairs<'_> {
        Pairs(self.cell(cell))
    }

    /// A word of a cell; 0 outside of it.
    #[inline]
    pub(super) fn load(&self, cell: CellId, index: usize) -> u64 {
        Pairs(self.cell(cell)).load(index)
    }

    /// True if any of the words has that half, on either side.
    #[inline]
    pub(super) fn has_half(&self, cell: CellId, words: Range<usize>, half: u32) -> bool {
        const ONES: u64 = 1 | 1 << 32;
        let words = self.cell(cell).and_then(|cell| cell.0.get(words)).unwrap_or_default();
        let wanted = u64::from(half) * ONES;
        // Without an early exit, which would be a mispredicted branch.
        let found = words.iter().fold(0, |found, word| {
            // ordering: Relaxed; each word is valid by itself, and the caller checks the run's
            // stamp afterwards.
            let difference = word.load(Ordering::Relaxed) ^ wanted;
            // The highest bit of a half that is 0 becomes 1. A borrow from the low half reaches the
            // high half only if the low half is 0 itself.
            found | (difference.wrapping_sub(ONES) & !difference)
        });
        found & ONES << 31 != 0
    }

    /// Owner only.
    pub(super) fn store(&self, cell: CellId, index: usize, value: u64) {
        let word = self.cell(cell).and_then(|cell| cell.0.get(index));
        // Only readers may follow a stale reference. The owner has none.
        debug_assert!(word.is_some(), "no word {index} in {cell:?}");
        if let Some(word) = word {
            // ordering: Release pairs with the Acquire load in `Pairs::load`.
            word.store(value, Ordering::Release);
        }
    }

    /// Owner only: writes a pair, its half last, since readers ignore a pair with a half of 0.
    pub(super) fn set_pair(&self, cell: CellId, index: usize, word: u64, half: u16) {
        debug_assert!(index < CELL_PAIRS, "pair {index} is a word of halves");
        let shift = index % HALVES_PER_WORD * HALF_BITS;
        let at = CELL_PAIRS + index / HALVES_PER_WORD;
        let words = self.cell(cell).map(|cell| &cell.0);
        let words = words.and_then(|words| Some((words.get(index)?, words.get(at)?)));
        debug_assert!(words.is_some(), "no pair {index} in {cell:?}");
        let Some((whole, parts)) = words else { return };
        // ordering: Release, as in `store`.
        whole.store(word, Ordering::Release);
        // ordering: Relaxed; the owner wrote it.
        let rest = parts.load(Ordering::Relaxed) & !(HALF_MASK << shift);
        // ordering: Release, as in `store`.
        parts.store(rest | u64::from(half) << shift, Ordering::Release);
    }

    /// The next cell of a list.
    #[inline]
    pub(super) fn next(&self, cell: CellId) -> Option<CellId> {
        cell_of(self.load(cell, NEXT))
    }

    /// Owner only.
    pub(super) fn set_next(&self, cell: CellId, next: Option<CellId>) {
        self.store(cell, NEXT, next.map_or(0, many));
    }

    /// The bits of a rank set.
    #[inline]
    pub(super) fn copy_bits<'a>(&self, cell: CellId, bits: impl Iterator<Item = &'a mut u64>) {
        let words = self.cell(cell).map_or(&[][..], |cell| &cell.0);
        for (bits, word) in bits.zip(words) {
            // ordering: Relaxed; each word is valid by itself, and the caller checks the run's
            // stamp afterwards.
            *bits = word.load(Ordering::Relaxed);
        }
    }

    /// The cells of a list. A reader may follow reused cells, hence the bound; it checks the run's
    /// stamp afterwards.
    #[inline]
    pub(super) fn list(&self, first: CellId) -> impl Iterator<Item = Pairs<'_>> {
        let mut next = Some(first);
        let cells = std::iter::from_fn(move || {
            let pairs = self.pairs(next?);
            next = cell_of(pairs.load(NEXT));
            Some(pairs)
        });
        cells.take(LIST_CELLS_MAX)
    }

    /// Calls `each` with the half and word of every pair of a list, as [`Self::list`].
    #[inline]
    pub(super) fn for_each(&self, first: CellId, mut each: impl FnMut(u16, u64)) {
        for pairs in self.list(first) {
            for (index, half) in pairs.halves().into_iter().enumerate() {
                match half {
                    0 => return,
                    half => each(half, pairs.word(index)),
                }
            }
        }
    }
}

impl Pairs<'_> {
    #[inline]
    fn load(self, index: usize) -> u64 {
        // ordering: Acquire pairs with the Release store in `Cells::store`: a list's next cell is
        // filled before a word refers to it, a pair's word is stored before its half.
        self.0.and_then(|cell| cell.0.get(index)).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// The half-words of all pairs.
    #[inline]
    pub(super) fn halves(self) -> [u16; CELL_PAIRS] {
        let mut halves = [0; CELL_PAIRS];
        let Some(Cell(cell)) = self.0 else { return halves };
        let rest = cell.get(CELL_PAIRS..).unwrap_or_default();
        for (to, word) in halves.as_chunks_mut::<HALVES_PER_WORD>().0.iter_mut().zip(rest) {
            // ordering: Acquire, as in `load`.
            let word = word.load(Ordering::Acquire).to_le_bytes();
            for (to, half) in to.iter_mut().zip(word.as_chunks().0) {
                *to = u16::from_le_bytes(*half);
            }
        }
        halves
    }

    /// The words of all pairs.
    #[inline]
    pub(super) fn words(self) -> [u64; CELL_PAIRS] {
        let mut words = [0; CELL_PAIRS];
        let from = self.0.map_or(&[][..], |cell| &cell.0);
        for (to, word) in words.iter_mut().zip(from) {
            // ordering: Acquire, as in `load`.
            *to = word.load(Ordering::Acquire);
        }
        words
    }

    /// The word of a pair.
    #[inline]
    pub(super) fn word(self, index: usize) -> u64 {
        self.load(index)
    }

    /// The half-word of a pair; 0: no pair.
    #[inline]
    pub(super) fn half(self, index: usize) -> u16 {
        let word = self.load(CELL_PAIRS + index / HALVES_PER_WORD);
        let shift = index % HALVES_PER_WORD * HALF_BITS;
        u16::try_from(word >> shift & HALF_MASK).unwrap_or(0)
    }
}

impl CellPool {
    /// Cells that can be taken without growing.
    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Takes a cell of zeros. `may_grow`: another chunk fits the budget.
    pub(super) fn take(&mut self, cells: &Cells, may_grow: bool) -> Option<CellId> {
        if self.free.is_empty() && may_grow {
            self.grow(cells);
        }
        let cell = self.free.pop()?;
        // ordering: the Release fence pairs with the Acquire fence in `Run::read_end`: a reader of
        // the cell's old contents that sees a new word also sees the stamp under which the cell was
        // freed.
        fence(Ordering::Release);
        // A list ends at a half of 0 and continues at a next that is not 0: old words would be read
        // as pairs.
        for word in cells.cell(cell).into_iter().flat_map(|cell| &cell.0) {
            // ordering: Release, as in `Cells::store`.
            word.store(0, Ordering::Release);
        }
        Some(cell)
    }

    /// Takes back a cell without references.
    pub(super) fn put(&mut self, cell: CellId) {
        debug_assert!(self.free.len() < self.chunk_count * CHUNK_CELLS, "more than there are");
        // A double free mostly happens within the same step, so the last few cells are enough.
        let mut last = self.free.iter().rev().take(PUT_CHECKED);
        debug_assert!(last.all(|free| *free != cell), "{cell:?} given back twice");
        self.free.push(cell);
    }

    pub(super) const fn chunk_count(&self) -> usize {
        self.chunk_count
    }

    fn grow(&mut self, cells: &Cells) {
        let zeros = || Cell(std::array::from_fn(|_| AtomicU64::new(0)));
        let chunk = Box::new(std::array::from_fn(|_| zeros()));
        if cells.chunks.set(self.chunk_count, chunk) {
            let first = self.chunk_count * CHUNK_CELLS;
            // Backwards, so that the cells are taken in the order of their addresses.
            let ids = (first..first + CHUNK_CELLS).rev();
            self.free.extend(ids.filter_map(|id| u32::try_from(id).ok()).map(CellId));
            self.chunk_count += 1;
        }
    }
}
