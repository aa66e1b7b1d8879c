//! The reader's side of a run: how far a prompt matches its blocks, and their holders.

use super::super::overlap::Overlap;
use super::super::words::{LANES, cell_of, lanes, twig_of};
use super::Table;
use super::cells::{CELL_PAIRS, CELL_WORDS};
use super::lists::{is_tagged, may_list};
use super::locator::{Location, LookupResult};
use super::run::{RUN_BLOCKS_MAX, Run, RunId};
use super::tags::Tags;
use crate::BlockKey;
use std::iter::successors;

/// A reader's copy of a run. Reused from run to run.
#[derive(Debug)]
pub(in super::super) struct RunView {
    /// Blocks of the run from the entered block on, which all ranks of `ranks` hold.
    pub block_count: usize,
    /// Number of these blocks that match the prompt.
    pub matched: usize,
    /// Each matched block. Later elements are undefined.
    pub steps: [Step; RUN_BLOCKS_MAX],
    /// The likely next run: blocks that are stored together take runs with successive numbers.
    pub next: Option<RunId>,
    /// Ranks that hold all blocks, as in `index::words`. On overflow they are in `rank_bits`.
    pub ranks: u64,
    /// Bit `r` stands for the rank `r`.
    pub rank_bits: [u64; CELL_WORDS],
    /// Words of `rank_bits` that are copied; the rest stay 0.
    pub rank_words: usize,
    /// Ranks, as lanes, that hold some of the blocks: a bit for each, the lowest for the first.
    pub partial: Vec<(u16, u64)>,
    /// The prompt's next blocks that may be children of the run, if all its blocks matched.
    pub children: Vec<Step>,
}

impl Default for RunView {
    fn default() -> Self {
        Self {
            block_count: 0,
            matched: 0,
            steps: [Step::default(); RUN_BLOCKS_MAX],
            next: None,
            ranks: 0,
            rank_bits: [0; CELL_WORDS],
            rank_words: CELL_WORDS,
            partial: Vec::new(),
            children: Vec::new(),
        }
    }
}

impl RunView {
    /// Begins another walk, with `rank_words` words of ranks.
    pub(in super::super) fn begin(&mut self, rank_words: usize) {
        self.rank_words = rank_words;
        self.next = None;
    }

    /// Overlap including all matched blocks.
    #[inline]
    pub(in super::super) fn end(&self, before: Overlap) -> Option<Overlap> {
        let bytes = self.steps.get(self.matched.checked_sub(1)?)?.end;
        Some(Overlap { blocks: before.blocks + u32::try_from(self.matched).ok()?, bytes })
    }
}

/// A block on the path of a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Step {
    /// Key of the block, as a word.
    pub word: u64,
    /// Prompt bytes up to its end.
    pub end: u32,
}

/// The prompt that a walk compares with the index.
pub(in super::super) trait BlockPath {
    /// From a block and the lengths of the next blocks: writes the prompt's steps, and returns
    /// their number.
    fn steps(&mut self, at: Step, lengths: &[u16], out: &mut [Step]) -> usize;

    /// Writes the blocks of these lengths that follow the block `at`. Only the steps of the set are
    /// blocks of the prompt.
    fn children(&mut self, at: Step, lengths: &[u16], out: &mut [Step]) -> StepSet;
}

/// Some of the steps of an array. A set, because what the prompt has is as good as random among
/// first blocks: a branch for each would be mispredicted.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct StepSet {
    /// A bit for each step, the lowest for the first.
    bits: u32,
    /// Steps so far, in the set or not.
    count: u32,
}

const _: () = assert!(CELL_PAIRS <= StepSet::STEPS_MAX);

impl StepSet {
    /// Steps of a set, at most.
    pub(in super::super) const STEPS_MAX: usize = u32::BITS as usize;

    /// All steps of an array of 32 at most.
    pub(super) fn all(steps: &[Step]) -> Self {
        let mut all = Self::default();
        steps.iter().for_each(|_| all.next(true));
        all
    }

    /// Adds the next step of the array, or leaves it out.
    #[inline(always)]
    pub(in super::super) fn next(&mut self, is_in: bool) {
        debug_assert!(self.count < u32::BITS, "more steps than a set has");
        self.bits |= u32::from(is_in).wrapping_shl(self.count);
        self.count += 1;
    }

    /// The steps of the set for which `is_in` is true of step and word. Without a branch, as above.
    #[inline(always)]
    fn only<const N: usize>(
        self,
        steps: &[Step; N],
        words: [u64; N],
        is_in: impl Fn(u64, Step) -> bool,
    ) -> Self {
        let mut only = Self::default();
        for (step, word) in steps.iter().zip(words) {
            only.next(is_in(word, *step));
        }
        Self { bits: self.bits & only.bits, count: self.count }
    }

    /// The steps of the set, with their indices.
    #[inline]
    pub(in super::super) fn of(self, steps: &[Step]) -> impl Iterator<Item = (usize, Step)> {
        let rests = successors(Some(self.bits), |rest| Some(rest & rest.wrapping_sub(1)));
        // The index of an empty rest is behind all steps.
        let indices =
            rests.map(|rest| usize::try_from(rest.trailing_zeros()).unwrap_or(usize::MAX));
        indices.map_while(|index| Some((index, *steps.get(index)?)))
    }
}

impl Table {
    /// Reads the run of the block `at` from there on. False if the index has no such block.
    #[inline]
    pub(in super::super) fn enter<P>(&self, at: Step, path: &mut P, view: &mut RunView) -> bool
    where
        P: BlockPath,
    {
        let Some(key) = BlockKey::from_word(at.word) else { return false };
        let next = view.next.take().map(|run| Location { run, offset: 0 });
        let mut look = |place| self.look(place, |run| self.copy(run, place, at, path, view));
        // The key confirms a guessed run.
        if next.is_some_and(|next| matches!(look(next), LookupResult::Here(()))) {
            return true;
        }
        self.locator.find(key, look).is_some()
    }

    /// True if the index has the block `key`.
    #[inline]
    pub(in super::super) fn contains(&self, key: BlockKey) -> bool {
        let has = |location: Location| {
            self.look(location, |run| self.key_at(run, location.offset) == key.to_word())
        };
        self.locator.find(key, has).is_some()
    }

    /// Runs `read` on a run. Its result (true: the block is here) counts if the run did not change
    /// meanwhile.
    #[inline]
    pub(super) fn look(
        &self,
        location: Location,
        read: impl FnOnce(&Run) -> bool,
    ) -> LookupResult<()> {
        let Some(run) = self.run(location.run) else { return LookupResult::Other };
        let Some(stamp) = run.read_begin() else { return LookupResult::Disturbed };
        let is_it = read(run);
        match (run.read_end(stamp), is_it) {
            (false, _) => LookupResult::Disturbed,
            (true, true) => LookupResult::Here(()),
            (true, false) => LookupResult::Other,
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
    fn copy<P>(&self, run: &Run, of: Location, at: Step, path: &mut P, view: &mut RunView) -> bool
    where
        P: BlockPath,
    {
        let first = of.offset;
        let count = run.block_count();
        self.fetch_cells(run, first, count);
        let pairs = self.cells.pairs(run.cell(first / CELL_PAIRS));
        if first >= count || pairs.word(first % CELL_PAIRS) != at.word {
            return false;
        }
        // Also for a walk that ends here: requested blocks stay warm.
        run.use_at(self.epoch());
        view.block_count = count - first;
        let next = RunId(of.run.0.wrapping_add(1));
        self.run(next).into_iter().for_each(forebay_wide::fetch);
        self.copy_ranks(run, first, view);
        let last = self.follow(run, first, at, path, view);
        view.children.clear();
        // Children follow the last block. A prompt that differs before has no use for them.
        if view.matched == view.block_count {
            view.next = Some(next).filter(|_| self.is_child(next, of.run));
            self.find_children(run, last, path, &mut view.children);
        }
        true
    }

    /// Adds the blocks of the prompt that may be children of the run: where the children have tags,
    /// hardly any other block. The locator need not be searched for the rest.
    #[inline]
    fn find_children<P>(&self, run: &Run, last: Step, path: &mut P, children: &mut Vec<Step>)
    where
        P: BlockPath,
    {
        let word = run.lengths();
        let mut steps = [Step::default(); CELL_PAIRS];
        let Some(list) = cell_of(word) else {
            let mut lengths = [0; LANES];
            let count = lengths.iter_mut().zip(lanes(word)).map(|(to, lane)| *to = lane).count();
            let lengths = lengths.get(..count).unwrap_or_default();
            let found = path.children(last, lengths, &mut steps);
            return children.extend(found.of(&steps).map(|(_, step)| step));
        };
        let tags = Tags::new(twig_of(word), &self.cells);
        for pairs in self.cells.list(list) {
            let lengths = pairs.halves();
            // All cells of a list but the last are full.
            let count = match lengths {
                [.., last] if last != 0 => CELL_PAIRS,
                _ => lengths.iter().position(|length| *length == 0).unwrap_or(CELL_PAIRS),
            };
            let lengths = lengths.get(..count).unwrap_or_default();
            let found = path.children(last, lengths, &mut steps);
            let found = found.only(&steps, pairs.words(), |word, step| may_list(word, step.word));
            let may_be = |at: &(usize, Step)| tags.has(at.1.word) || !is_tagged(pairs.word(at.0));
            children.extend(found.of(&steps).filter(may_be).map(|(_, step)| step));
        }
    }

    /// Is the run `next` likely a child of `of`? If so, its blocks are prefetched.
    #[inline]
    fn is_child(&self, next: RunId, of: RunId) -> bool {
        let child = self.run(next).filter(|next| next.parent() == of);
        child.into_iter().for_each(|next| self.fetch_cells(next, 0, next.block_count()));
        child.is_some()
    }

    /// Prefetches the cells of a run of `count` blocks from block `first` on, all at once.
    /// Otherwise each read would wait for memory in turn.
    #[inline]
    fn fetch_cells(&self, run: &Run, first: usize, count: usize) {
        for index in first / CELL_PAIRS..count.div_ceil(CELL_PAIRS) {
            self.cells.fetch(run.cell(index));
        }
    }

    #[inline]
    fn copy_ranks(&self, run: &Run, first: usize, view: &mut RunView) {
        view.ranks = run.ranks();
        if let Some(cell) = cell_of(view.ranks) {
            let wanted = view.rank_bits.iter_mut().take(view.rank_words);
            self.cells.copy_bits(cell, wanted);
        }
        view.partial.clear();
        // A walk may enter in the middle of a run: shift the masks to the entered block.
        if let Some(cell) = cell_of(run.partial()) {
            self.cells.for_each(cell, |lane, mask| view.partial.push((lane, mask >> first)));
        }
    }

    /// Compares the prompt with the blocks after the first, up to `seen.block_count`. Returns the
    /// last block that matches.
    #[inline]
    fn follow<P>(
        &self,
        run: &Run,
        first: usize,
        entered: Step,
        path: &mut P,
        view: &mut RunView,
    ) -> Step
    where
        P: BlockPath,
    {
        let mut at = entered;
        if let Some(step) = view.steps.first_mut() {
            *step = at;
        }
        view.matched = 1;
        while view.matched < view.block_count {
            let offset = first + view.matched;
            let pairs = self.cells.pairs(run.cell(offset / CELL_PAIRS));
            let from = offset % CELL_PAIRS;
            let left = (view.block_count - view.matched).min(CELL_PAIRS - from);
            let lengths = pairs.halves();
            let here = lengths.get(from..from + left).unwrap_or_default();
            let steps = view.steps.get_mut(view.matched..).unwrap_or_default();
            let made = path.steps(at, here, steps);
            let made = steps.get(..made).unwrap_or_default();
            let is_same = |(index, step): (usize, &Step)| pairs.word(from + index) == step.word;
            // A key covers the whole path before it: mostly comparing the last key is enough.
            let same = match made.len().checked_sub(1) {
                Some(last) if made.last().is_some_and(|step| is_same((last, step))) => made.len(),
                _ => made.iter().enumerate().take_while(|at| is_same(*at)).count(),
            };
            if let Some(last) = same.checked_sub(1).and_then(|last| made.get(last)) {
                at = *last;
            }
            view.matched += same;
            if same < left {
                break;
            }
        }
        at
    }
}
