//! The reader's side of a run: how far a prompt follows its blocks, and who holds them.

use super::super::overlap::Overlap;
use super::super::words::{cell_of, lanes};
use super::Table;
use super::cells::{CELL_PAIRS, CELL_WORDS};
use super::lists::filter_bit;
use super::locator::{Located, Location};
use super::run::{RUN_BLOCKS_MAX, Run};
use crate::BlockKey;

/// What a reader saw of a run. Reused from run to run.
#[derive(Debug)]
pub(in super::super) struct Seen {
    /// Blocks of the run from where it was entered, which all ranks of `ranks` hold.
    pub block_count: usize,
    /// How many of them the prompt has.
    pub matched: usize,
    /// Key of the last matched block.
    pub key: Option<BlockKey>,
    /// Prompt bytes up to the end of each matched block, from the start of the prompt.
    pub bytes: [u32; RUN_BLOCKS_MAX],
    /// Ranks that hold all blocks, as in `index::words`. Overflow: `rank_bits` has them.
    pub ranks: u64,
    /// Bit `r` stands for the rank `r`.
    pub rank_bits: [u64; CELL_WORDS],
    /// Words of `rank_bits` that are wanted; the others stay 0.
    pub rank_words: usize,
    /// Ranks, as lanes, that hold some of the blocks: a bit for each, the lowest for the first.
    pub partial: Vec<(u16, u64)>,
    /// Byte lengths of the blocks after the last one, if all are matched; each once, with the
    /// filter of their keys.
    pub lengths: Vec<(u16, ChildFilter)>,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            block_count: 0,
            matched: 0,
            key: None,
            bytes: [0; RUN_BLOCKS_MAX],
            ranks: 0,
            rank_bits: [0; CELL_WORDS],
            rank_words: CELL_WORDS,
            partial: Vec::new(),
            lengths: Vec::new(),
        }
    }
}

impl Seen {
    /// What is found with all blocks that were matched.
    #[inline]
    pub(in super::super) fn end(&self, before: Overlap) -> Option<Overlap> {
        let bytes = *self.bytes.get(self.matched.checked_sub(1)?)?;
        Some(Overlap { blocks: before.blocks + u32::try_from(self.matched).ok()?, bytes })
    }
}

/// Tells most keys that are no child of that length; all bits set: none.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ChildFilter(u64);

impl ChildFilter {
    const ALL: Self = Self(u64::MAX);

    /// False for a key that is no child.
    #[inline]
    pub(in super::super) const fn passes(self, child: BlockKey) -> bool {
        self.0 & filter_bit(child) != 0
    }
}

/// One block further on the way of a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Step {
    /// Key of the block, as a word.
    pub word: u64,
    /// Prompt bytes up to its end.
    pub end: u32,
}

/// Where a walk comes into a run.
pub(in super::super) struct Arrival<S> {
    /// The block that it enters at.
    pub at: Step,
    /// From a block and the lengths of the next ones: writes the steps that the prompt has there,
    /// and returns how many these are.
    pub steps: S,
}

impl Table {
    /// Reads the run that begins with a block. False when there is no such block.
    #[inline]
    pub(in super::super) fn enter<S>(&self, arrival: &mut Arrival<S>, seen: &mut Seen) -> bool
    where
        S: FnMut(Step, &[u16], &mut [Step]) -> usize,
    {
        let Some(key) = BlockKey::from_word(arrival.at.word) else { return false };
        let found = self.locator.find(key, |location| {
            self.look(location, |run| self.copy(run, location.offset, arrival, seen))
        });
        found.is_some()
    }

    /// True when some rank may hold the block `key`.
    #[inline]
    pub(in super::super) fn contains(&self, key: BlockKey) -> bool {
        let has = |location: Location| {
            self.look(location, |run| self.key_at(run, location.offset) == key.to_word())
        };
        self.locator.find(key, has).is_some()
    }

    /// Runs `read` on a run; what it returns (true: this is it) counts if the run did not change
    /// meanwhile.
    #[inline]
    fn look(&self, location: Location, read: impl FnOnce(&Run) -> bool) -> Located<()> {
        let Some(run) = self.run(location.run) else { return Located::Other };
        let Some(stamp) = run.read_begin() else { return Located::Disturbed };
        let is_it = read(run);
        match (run.read_end(stamp), is_it) {
            (false, _) => Located::Disturbed,
            (true, true) => Located::Here(()),
            (true, false) => Located::Other,
        }
    }

    /// Key of a block as a word; 0 past the end.
    #[inline]
    pub(super) fn key_at(&self, run: &Run, offset: usize) -> u64 {
        if offset >= run.block_count() {
            return 0;
        }
        self.cells.pairs(run.cell(offset / CELL_PAIRS)).word(offset % CELL_PAIRS)
    }

    /// Byte length of a block.
    #[inline]
    pub(super) fn length_at(&self, run: &Run, offset: usize) -> u16 {
        self.cells.pairs(run.cell(offset / CELL_PAIRS)).half(offset % CELL_PAIRS)
    }

    #[inline]
    fn copy<S>(&self, run: &Run, first: usize, arrival: &mut Arrival<S>, seen: &mut Seen) -> bool
    where
        S: FnMut(Step, &[u16], &mut [Step]) -> usize,
    {
        let count = run.block_count();
        if first >= count || self.key_at(run, first) != arrival.at.word {
            return false;
        }
        // Also for a walk that goes no further: what is asked for stays warm.
        run.use_at(self.epoch());
        seen.block_count = count - first;
        self.copy_ranks(run, first, seen);
        self.follow(run, first, arrival, seen);
        seen.lengths.clear();
        // Children follow the last block. A prompt that parted before has no use for them.
        if seen.matched == seen.block_count {
            let word = run.lengths();
            match cell_of(word) {
                Some(cell) => self.cells.for_each(cell, |length, word| {
                    seen.lengths.push((length, ChildFilter(word)));
                }),
                None => seen.lengths.extend(lanes(word).map(|lane| (lane, ChildFilter::ALL))),
            }
        }
        true
    }

    #[inline]
    fn copy_ranks(&self, run: &Run, first: usize, seen: &mut Seen) {
        seen.ranks = run.ranks();
        if let Some(cell) = cell_of(seen.ranks) {
            let wanted = seen.rank_bits.iter_mut().take(seen.rank_words);
            self.cells.copy_bits(cell, wanted);
        }
        seen.partial.clear();
        // A walk may enter in the middle of a run. Its masks begin with the block it enters at.
        if let Some(cell) = cell_of(run.partial()) {
            self.cells.for_each(cell, |lane, mask| seen.partial.push((lane, mask >> first)));
        }
    }

    /// Compares the prompt with the blocks after the first, up to `seen.block_count`.
    #[inline]
    fn follow<S>(&self, run: &Run, first: usize, arrival: &mut Arrival<S>, seen: &mut Seen)
    where
        S: FnMut(Step, &[u16], &mut [Step]) -> usize,
    {
        let (mut at, mut ends) = (arrival.at, seen.bytes.iter_mut());
        ends.next().into_iter().for_each(|end| *end = at.end);
        seen.matched = 1;
        while seen.matched < seen.block_count {
            let offset = first + seen.matched;
            let (words, lengths) = self.cells.pairs(run.cell(offset / CELL_PAIRS)).all();
            let left = (seen.block_count - seen.matched).min(CELL_PAIRS);
            let from = offset % CELL_PAIRS;
            let here = lengths.get(from..).and_then(|rest| rest.get(..left).or(Some(rest)));
            let (here, mut steps) = (here.unwrap_or_default(), [Step::default(); CELL_PAIRS]);
            let made = (arrival.steps)(at, here, &mut steps);
            let (made, words) =
                (steps.get(..made).unwrap_or_default(), words.get(from..).unwrap_or_default());
            // A key names all that is before it too: mostly the last one speaks for all.
            let is_same = |(step, word): &(&Step, &u64)| step.word == **word;
            let mut pairs = made.iter().zip(words);
            let same = match pairs.clone().next_back().filter(is_same) {
                Some(_) => made.len(),
                None => pairs.by_ref().take_while(is_same).count(),
            };
            let same = made.get(..same).unwrap_or_default();
            for (step, end) in same.iter().zip(ends.by_ref()) {
                (*end, at) = (step.end, *step);
            }
            seen.matched += same.len();
            if same.len() < here.len() {
                break;
            }
        }
        seen.key = BlockKey::from_word(at.word);
    }
}
