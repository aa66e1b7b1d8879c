//! Overflow cells: 16 words each, for rank sets and length lists that do not fit one word. Cells are never freed,
//! only used again; the stamp of the slot that referred to one tells a late reader that it did.
//!
//! As a rank set a cell is a bitset of `RANKS_MAX` bits. As a length list it has one length a word (upper half: the
//! length, lower half: how many children have it, for the owner), filled from the front; its last word refers to the next cell.

use super::super::words::{CellId, cell_of};
use crate::base::limits::RANKS_MAX;
use crate::ring::sync::{AtomicU64, Ordering, fence};
use std::sync::OnceLock;

/// Words of a cell.
pub(in super::super) const CELL_WORDS: usize = 16;
/// Lengths in one cell of a list.
pub(super) const CELL_LENGTHS: usize = CELL_WORDS - 1;
/// Cells of one list: at most 480 different lengths of children. Past it children are refused.
pub(super) const LIST_CELLS_MAX: usize = 32;
/// Cells that are allocated together; few in models, where every atomic counts.
const CHUNK_CELLS: usize = if cfg!(feature = "loom") { 2 } else { 64 };
/// Bytes of one chunk.
pub(super) const CHUNK_BYTES: usize = CHUNK_CELLS * CELL_WORDS * size_of::<u64>();

const _: () = assert!(CELL_WORDS * 64 == RANKS_MAX);

/// All cells of a slice.
#[derive(Debug)]
pub(in super::super) struct Cells {
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

/// The owner's list of free cells.
#[derive(Debug, Default)]
pub(super) struct CellPool {
    free: Vec<CellId>,
    chunk_count: usize,
}

impl Cells {
    pub(super) fn new(chunks_max: usize) -> Self {
        Self { chunks: (0..chunks_max).map(|_| OnceLock::new()).collect() }
    }

    #[inline]
    fn words(&self, cell: CellId) -> &[AtomicU64] {
        let cell = usize::try_from(cell.0).unwrap_or(usize::MAX);
        let chunk = self.chunks.get(cell / CHUNK_CELLS).and_then(OnceLock::get);
        let start = cell % CHUNK_CELLS * CELL_WORDS;
        chunk.and_then(|words| words.get(start..start + CELL_WORDS)).unwrap_or(&[])
    }

    /// One word; 0 outside the cell.
    #[inline]
    pub(super) fn load(&self, cell: CellId, index: usize) -> u64 {
        // ordering: Acquire pairs with the Release store in `store`: a list's next cell is filled before a word refers
        // to it.
        self.words(cell).get(index).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Owner only.
    pub(super) fn store(&self, cell: CellId, index: usize, value: u64) {
        if let Some(word) = self.words(cell).get(index) {
            // ordering: Release pairs with the Acquire load in `load`.
            word.store(value, Ordering::Release);
        }
    }

    /// The bits of a rank set.
    pub(super) fn copy_bits<'a>(&self, cell: CellId, bits: impl Iterator<Item = &'a mut u64>) {
        for (bits, word) in bits.zip(self.words(cell)) {
            // ordering: Relaxed; each word is right by itself, and the caller checks the slot's stamp afterwards.
            *bits = word.load(Ordering::Relaxed);
        }
    }

    /// The lengths of a list. May read cells in their next life, hence the bound and the mask; the caller checks the
    /// slot's stamp afterwards.
    pub(super) fn copy_lengths(&self, first: CellId, lengths: &mut Vec<u16>) {
        lengths.clear();
        let mut cell = first;
        for _ in 0..LIST_CELLS_MAX {
            for index in 0..CELL_LENGTHS {
                match length_of(self.load(cell, index)) {
                    0 => return,
                    length => lengths.push(length),
                }
            }
            match cell_of(self.load(cell, CELL_LENGTHS)) {
                Some(next) => cell = next,
                None => return,
            }
        }
    }
}

impl CellPool {
    /// A cell of zeros. `may_grow` says whether another chunk fits the budget.
    pub(super) fn take(&mut self, cells: &Cells, may_grow: bool) -> Option<CellId> {
        if self.free.is_empty() && may_grow {
            self.grow(cells);
        }
        let cell = self.free.pop()?;
        // ordering: the Release fence pairs with the Acquire fence in `Slot::read_end`: a reader of the cell's last
        // life that sees a word of this one sees the stamp under which the cell was given up.
        fence(Ordering::Release);
        for index in 0..CELL_WORDS {
            cells.store(cell, index, 0);
        }
        Some(cell)
    }

    /// Takes a cell back that no word refers to any more.
    pub(super) fn put(&mut self, cell: CellId) {
        self.free.push(cell);
    }

    pub(super) const fn chunk_count(&self) -> usize {
        self.chunk_count
    }

    fn grow(&mut self, cells: &Cells) {
        let Some(chunk) = cells.chunks.get(self.chunk_count) else { return };
        let words = (0..CHUNK_CELLS * CELL_WORDS).map(|_| AtomicU64::new(0)).collect();
        if chunk.set(words).is_ok() {
            let first = self.chunk_count * CHUNK_CELLS;
            let ids = (first..first + CHUNK_CELLS).rev();
            self.free.extend(ids.filter_map(|id| u32::try_from(id).ok()).map(CellId));
            self.chunk_count += 1;
        }
    }
}

/// A word of a length list.
pub(super) fn list_word(length: u16, child_count: u32) -> u64 {
    u64::from(length) << 32 | u64::from(child_count)
}

/// Length in a word of a list, 0 behind its end.
#[inline]
pub(super) fn length_of(word: u64) -> u16 {
    u16::try_from(word >> 32 & 0x7fff).unwrap_or(0)
}

/// Children of that length.
pub(super) fn child_count_of(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}
