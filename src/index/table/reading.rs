//! The reader's side of a run: how far a prompt follows its blocks, and who holds them.

use super::super::overlap::Overlap;
use super::super::words::{cell_of, lanes, twig_of};
use super::Table;
use super::cells::{CELL_PAIRS, CELL_WORDS, Cells};
use super::lists::ChildLength;
use super::locator::{Located, Location};
use super::run::{RUN_BLOCKS_MAX, Run, RunId};
use super::tags::SeenTags;
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
    /// Each matched block. What stands behind these is of no block.
    pub steps: [Step; RUN_BLOCKS_MAX],
    /// The run that mostly follows: blocks that are stored together take the next one.
    pub next: Option<RunId>,
    /// Ranks that hold all blocks, as in `index::words`. Overflow: `rank_bits` has them.
    pub ranks: u64,
    /// Bit `r` stands for the rank `r`.
    pub rank_bits: [u64; CELL_WORDS],
    /// Words of `rank_bits` that are wanted; the others stay 0.
    pub rank_words: usize,
    /// Ranks, as lanes, that hold some of the blocks: a bit for each, the lowest for the first.
    pub partial: Vec<(u16, u64)>,
    /// Byte lengths of the blocks after the last one, if all are matched; each once.
    pub lengths: Vec<ChildLength>,
    /// The tags of the children, as they were at that stamp.
    tags: SeenTags,
    id: RunId,
    stamp: u64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            block_count: 0,
            matched: 0,
            key: None,
            steps: [Step::default(); RUN_BLOCKS_MAX],
            next: None,
            ranks: 0,
            rank_bits: [0; CELL_WORDS],
            rank_words: CELL_WORDS,
            partial: Vec::new(),
            lengths: Vec::new(),
            tags: SeenTags::default(),
            id: RunId::default(),
            stamp: 0,
        }
    }
}

impl Seen {
    /// Another walk begins, with so many words of ranks.
    pub(in super::super) fn begin(&mut self, rank_words: usize) {
        self.rank_words = rank_words;
        self.next = None;
    }

    /// What is found with all blocks that were matched.
    #[inline]
    pub(in super::super) fn end(&self, before: Overlap) -> Option<Overlap> {
        let bytes = self.steps.get(self.matched.checked_sub(1)?)?.end;
        Some(Overlap { blocks: before.blocks + u32::try_from(self.matched).ok()?, bytes })
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

/// The children of a run that was seen.
#[derive(Clone, Copy)]
pub(in super::super) struct Children<'t> {
    cells: &'t Cells,
    run: Option<&'t Run>,
    seen: &'t Seen,
}

impl Children<'_> {
    /// False when that key is no child's. The locator need not be asked then.
    #[inline]
    pub(in super::super) fn may_have(self, length: ChildLength, child: BlockKey) -> bool {
        // Tags that have moved since tell nothing.
        let is_as_seen = || self.run.is_some_and(|run| run.read_end(self.seen.stamp));
        !length.is_tagged || self.seen.tags.has(child, self.cells) || !is_as_seen()
    }
}

impl Table {
    /// Reads the run that begins with a block. False when there is no such block.
    #[inline]
    pub(in super::super) fn enter<S>(&self, arrival: &mut Arrival<S>, seen: &mut Seen) -> bool
    where
        S: FnMut(Step, &[u16], &mut [Step]) -> usize,
    {
        let Some(key) = BlockKey::from_word(arrival.at.word) else { return false };
        let next = seen.next.take().map(|run| Location { run, offset: 0 });
        let mut look = |at| {
            self.look(at, |run, stamp| {
                seen.id = at.run;
                seen.stamp = stamp;
                self.copy(run, at, arrival, seen)
            })
        };
        // The key says whether it is the run, whichever way led to it.
        if next.is_some_and(|next| matches!(look(next), Located::Here(()))) {
            return true;
        }
        self.locator.find(key, look).is_some()
    }

    /// True when some rank may hold the block `key`.
    #[inline]
    pub(in super::super) fn contains(&self, key: BlockKey) -> bool {
        let has = |location: Location| {
            self.look(location, |run, _| self.key_at(run, location.offset) == key.to_word())
        };
        self.locator.find(key, has).is_some()
    }

    /// What tells most keys that are no child's of the run.
    #[inline]
    pub(in super::super) fn children<'t>(&'t self, seen: &'t Seen) -> Children<'t> {
        Children { cells: &self.cells, run: self.run(seen.id), seen }
    }

    /// Runs `read` on a run; what it returns (true: this is it) counts if the run did not change
    /// meanwhile.
    #[inline]
    fn look(&self, location: Location, read: impl FnOnce(&Run, u64) -> bool) -> Located<()> {
        let Some(run) = self.run(location.run) else { return Located::Other };
        let Some(stamp) = run.read_begin() else { return Located::Disturbed };
        let is_it = read(run, stamp);
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
    fn copy<S>(&self, run: &Run, at: Location, arrival: &mut Arrival<S>, seen: &mut Seen) -> bool
    where
        S: FnMut(Step, &[u16], &mut [Step]) -> usize,
    {
        let first = at.offset;
        let count = run.block_count();
        self.fetch_cells(run, first);
        if first >= count || self.key_at(run, first) != arrival.at.word {
            return false;
        }
        // Also for a walk that goes no further: what is asked for stays warm.
        run.use_at(self.epoch());
        seen.block_count = count - first;
        let next = RunId(at.run.0.wrapping_add(1));
        self.run(next).into_iter().for_each(forebay_wide::fetch);
        self.copy_ranks(run, first, seen);
        self.follow(run, first, arrival, seen);
        seen.lengths.clear();
        // Children follow the last block. A prompt that parted before has no use for them.
        if seen.matched == seen.block_count {
            seen.next = Some(next).filter(|_| self.is_child(next, at.run));
            let word = run.lengths();
            match cell_of(word) {
                Some(cell) => self.cells.for_each(cell, |bytes, word| {
                    seen.lengths.push(ChildLength::of_pair(bytes, word));
                }),
                None => {
                    let untagged = |bytes| ChildLength { bytes, is_tagged: false };
                    seen.lengths.extend(lanes(word).map(untagged));
                }
            }
            seen.tags.see(twig_of(word), &self.cells);
        }
        true
    }

    /// Is that run a child of this one, as it seems? If so its blocks are read soon.
    #[inline]
    fn is_child(&self, next: RunId, of: RunId) -> bool {
        let child = self.run(next).filter(|next| next.parent() == of);
        child.into_iter().for_each(|next| self.fetch_cells(next, 0));
        child.is_some()
    }

    /// Asks for the blocks of a run from one on: all cells at once. Else each would be waited for
    /// where it is read.
    #[inline]
    fn fetch_cells(&self, run: &Run, first: usize) {
        for index in first / CELL_PAIRS..run.block_count().div_ceil(CELL_PAIRS) {
            self.cells.fetch(run.cell(index));
        }
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
        let mut at = arrival.at;
        if let Some(step) = seen.steps.first_mut() {
            *step = at;
        }
        seen.matched = 1;
        while seen.matched < seen.block_count {
            let offset = first + seen.matched;
            let pairs = self.cells.pairs(run.cell(offset / CELL_PAIRS));
            let from = offset % CELL_PAIRS;
            let left = (seen.block_count - seen.matched).min(CELL_PAIRS - from);
            let lengths = pairs.halves();
            let here = lengths.get(from..from + left).unwrap_or_default();
            let steps = seen.steps.get_mut(seen.matched..).unwrap_or_default();
            let made = (arrival.steps)(at, here, steps);
            let made = steps.get(..made).unwrap_or_default();
            let is_same = |(index, step): (usize, &Step)| pairs.word(from + index) == step.word;
            // A key names all that is before it too: mostly the last one speaks for all.
            let same = match made.len().checked_sub(1) {
                Some(last) if made.last().is_some_and(|step| is_same((last, step))) => made.len(),
                _ => made.iter().enumerate().take_while(|at| is_same(*at)).count(),
            };
            if let Some(last) = same.checked_sub(1).and_then(|last| made.get(last)) {
                at = *last;
            }
            seen.matched += same;
            if same < left {
                break;
            }
        }
        seen.key = BlockKey::from_word(at.word);
    }
}
