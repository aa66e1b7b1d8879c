//! Lengths of the first blocks of a root, a bit for each. With several slices, a prompt meets its
//! root in each of them: the bits of all slices are read in a few words, while each list would be
//! read pair by pair.
//!
//! Roots are unlisted runs, of a single block. So a root has no further cells of blocks, and the
//! cells of the bits take their places while the lengths are a list.

use super::super::words::{CellId, cell_of, lanes};
use super::cells::{CELL_WORDS, Pairs};
use super::lists::{COUNT, is_tagged};
use super::locator::{Location, LookupResult};
use super::run::{Run, RunId};
use super::tags::Tags;
use super::{Step, StepSet, Table, TableWriter};
use crate::BlockKey;

/// Words of the lengths that have children. As many words follow for the lengths of which some
/// children have no tag.
pub(in super::super) const FIRST_WORDS: usize = 8;
const _: () = assert!(2 * FIRST_WORDS <= CELL_WORDS);
/// Lengths below have a bit. Longer blocks are of more than 64 tokens, mostly.
const FIRST_BYTES_MAX: u16 = 512;
const _: () = assert!(FIRST_BYTES_MAX as usize == 64 * FIRST_WORDS);
/// The bit of no length: the list has lengths without a bit.
const LONG: u16 = 0;
/// Places of two cells among the cells of the run: the bits of lengths, and the filter, a bit for
/// some bits of the key of each child with a tag.
const FIRST_CELL: usize = 1;
const FILTER_CELL: usize = 2;

/// Lengths of the first blocks of a root in a slice, as a reader has found them.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct FirstLengths {
    /// The run of the root; 0: the slice has no such root.
    run: RunId,
    pub(in super::super) bits: [u64; FIRST_WORDS],
}

impl FirstLengths {
    #[inline(always)]
    pub(in super::super) fn has(&self, length: u16) -> bool {
        let place = BitPlace::of_length(length);
        self.bits.get(place.word).is_some_and(|word| word & place.bit != 0)
    }

    /// Has the slice first blocks of lengths without a bit? Then only its list has all lengths.
    #[inline]
    pub(in super::super) fn has_long(&self) -> bool {
        self.has(LONG)
    }

    fn add(&mut self, length: u16) {
        let place = BitPlace::of_length(listed(length));
        if let Some(word) = self.bits.get_mut(place.word) {
            *word |= place.bit;
        }
    }
}

/// The length with a bit for this length.
const fn listed(length: u16) -> u16 {
    if length < FIRST_BYTES_MAX { length } else { LONG }
}

/// A bit of a cell.
#[derive(Clone, Copy, Debug)]
struct BitPlace {
    /// Index of its word.
    word: usize,
    /// The word with this bit alone.
    bit: u64,
}

impl BitPlace {
    #[inline(always)]
    const fn of_length(length: u16) -> Self {
        Self { word: length as usize / 64, bit: 1 << (length % 64) }
    }

    /// The mark of a length with children that have no tag.
    #[inline(always)]
    const fn of_untagged(length: u16) -> Self {
        let place = Self::of_length(length);
        Self { word: FIRST_WORDS + place.word, bit: place.bit }
    }

    /// The place of a child in the filter.
    #[inline(always)]
    const fn of_child(child: u64) -> Self {
        // The bits above the tag.
        let number = (child >> 40) as usize % (64 * CELL_WORDS);
        Self { word: number / 64, bit: 1 << (number % 64) }
    }
}

impl Table {
    /// Lengths of the first blocks of `root` in this slice. `last`: as found for the last prompt,
    /// which mostly had the same root.
    pub(in super::super) fn first_lengths(
        &self,
        root: BlockKey,
        last: &FirstLengths,
    ) -> FirstLengths {
        let mut found = FirstLengths::default();
        let mut look = |place: Location| {
            self.look(place, |run| self.copy_first(run, place, root.to_word(), &mut found))
        };
        let is_last = matches!(look(Location { run: last.run, offset: 0 }), LookupResult::Here(()));
        let is_there = is_last || self.locator.find(root, look).is_some();
        if is_there { found } else { FirstLengths::default() }
    }

    fn copy_first(&self, run: &Run, of: Location, root: u64, found: &mut FirstLengths) -> bool {
        if of.offset != 0 || self.key_at(run, 0) != root {
            return false;
        }
        run.use_at(self.epoch());
        *found = FirstLengths { run: of.run, ..FirstLengths::default() };
        let word = run.lengths();
        match cell_of(word) {
            None => lanes(word).for_each(|length| found.add(length)),
            Some(_) if self.length_at(run, 0) == 0 => {
                self.cells.copy_bits(run.cell(FIRST_CELL), found.bits.iter_mut());
            }
            Some(_) => found.add(FIRST_BYTES_MAX),
        }
        true
    }

    /// Blocks that may begin here, of at most 32 blocks of lengths of this slice. `lengths`: of the
    /// slice, for `root`.
    pub(in super::super) fn may_begin(
        &self,
        lengths: &FirstLengths,
        root: BlockKey,
        steps: &[Step],
    ) -> StepSet {
        let mut found = StepSet::default();
        let read = |run: &Run| {
            let is_root = self.key_at(run, 0) == root.to_word();
            if is_root {
                found = self.first_of(run, steps);
            }
            is_root
        };
        match self.look(Location { run: lengths.run, offset: 0 }, read) {
            LookupResult::Here(()) => found,
            LookupResult::Other => StepSet::default(),
            // The look-up of each block retries.
            LookupResult::Disturbed => StepSet::all(steps),
        }
    }

    fn first_of(&self, run: &Run, steps: &[Step]) -> StepSet {
        // Lanes have no tags, and a run that has a parent by now has no bits.
        if cell_of(run.lengths()).is_none() || self.length_at(run, 0) != 0 {
            return StepSet::all(steps);
        }
        let tags = Tags::new(run.tags(), &self.cells);
        let marks = self.cells.pairs(run.cell(FIRST_CELL));
        let filter = self.cells.pairs(run.cell(FILTER_CELL));
        let mut found = StepSet::default();
        let is_set = |of: Pairs<'_>, place: BitPlace| of.word(place.word) & place.bit != 0;
        for step in steps {
            let length = u16::try_from(step.end).unwrap_or(LONG);
            found.next(
                is_set(filter, BitPlace::of_child(step.word)) && tags.has(step.word)
                    || is_set(marks, BitPlace::of_untagged(length)),
            );
        }
        found
    }
}

impl TableWriter {
    /// Takes the cells of the bits for a run, before its lengths become a list. False: no memory.
    pub(super) fn begin_first(&mut self, id: RunId) -> bool {
        if !self.is_unlisted(id) {
            return true;
        }
        let Some(marks) = self.take_cell() else { return false };
        let Some(filter) = self.take_cell() else {
            self.pool.put(marks);
            return false;
        };
        if let Some(run) = self.run(id) {
            run.set_cell(FIRST_CELL, marks);
            run.set_cell(FILTER_CELL, filter);
        }
        true
    }

    /// Under the run's stamp: frees the cells of the bits, while the lengths are a list.
    pub(super) fn end_first(&mut self, id: RunId) {
        let run = self.run(id).filter(|run| cell_of(run.lengths()).is_some());
        if let Some(run) = run.filter(|_| self.is_unlisted(id)) {
            let cells = [FIRST_CELL, FILTER_CELL].map(|place| run.cell(place));
            cells.into_iter().for_each(|cell| self.pool.put(cell));
        }
    }

    /// Lets a child pass the filter. Its bit stays when the child goes.
    pub(super) fn pass_first(&self, id: RunId, child: BlockKey) {
        if let Some(run) = self.run(id).filter(|_| self.is_unlisted(id)) {
            self.set_first_bit(run.cell(FILTER_CELL), BitPlace::of_child(child.to_word()), true);
        }
    }

    /// Writes the bits of a length. `word`: of its pair in `list`; 0 if the pair is gone.
    pub(super) fn set_first(&self, id: RunId, list: CellId, length: u16, word: u64) {
        if !self.is_unlisted(id) {
            return;
        }
        let Some(cell) = self.run(id).map(|run| run.cell(FIRST_CELL)) else { return };
        if length < FIRST_BYTES_MAX {
            self.set_first_bit(cell, BitPlace::of_length(length), word & COUNT != 0);
            self.set_first_bit(cell, BitPlace::of_untagged(length), !is_tagged(word));
        } else {
            let is_long = |half| half >= FIRST_BYTES_MAX;
            let has_long = word != 0 || self.listed(list).any(|listed| is_long(listed.half));
            self.set_first_bit(cell, BitPlace::of_length(LONG), has_long);
        }
    }

    fn set_first_bit(&self, cell: CellId, place: BitPlace, is_set: bool) {
        let before = self.table.cells.load(cell, place.word);
        let after = if is_set { before | place.bit } else { before & !place.bit };
        if after != before {
            self.table.cells.store(cell, place.word, after);
        }
    }

    /// Do the bits of a child agree with the pair of its length?
    pub(super) fn is_first_right(&self, id: RunId, length: u16, word: u64, child: u64) -> bool {
        let Some(run) = self.run(id).filter(|_| self.is_unlisted(id)) else { return true };
        let is_set = |cell: usize, place: BitPlace| {
            self.table.cells.load(run.cell(cell), place.word) & place.bit != 0
        };
        let is_untagged = is_set(FIRST_CELL, BitPlace::of_untagged(listed(length)));
        is_set(FIRST_CELL, BitPlace::of_length(listed(length)))
            && (length >= FIRST_BYTES_MAX || is_untagged != is_tagged(word))
            && (!is_tagged(word) || is_set(FILTER_CELL, BitPlace::of_child(child)))
    }
}
