//! The reader's side of a run: how far a prompt matches its blocks, and their holders.

use super::super::overlap::Overlap;
use super::super::words::{cell_of, lanes, twig_of};
use super::Table;
use super::cells::{CELL_PAIRS, CELL_WORDS, Cells};
use super::lists::ChildLength;
use super::locator::{Location, LookupResult};
use super::run::{RUN_BLOCKS_MAX, Run, RunId};
use super::tags::TagsView;
use crate::BlockKey;

/// A reader's copy of a run. Reused from run to run.
#[derive(Debug)]
pub(in super::super) struct RunView {
    /// Blocks of the run from the entered block on, which all ranks of `ranks` hold.
    pub block_count: usize,
    /// Number of these blocks that match the prompt.
    pub matched: usize,
    /// Key of the last matched block.
    pub key: Option<BlockKey>,
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
    /// Distinct byte lengths of the child blocks, if all blocks matched.
    pub lengths: Vec<ChildLength>,
    /// The tags of the children at that stamp.
    tags: TagsView,
    id: RunId,
    stamp: u64,
}

impl Default for RunView {
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
            tags: TagsView::default(),
            id: RunId::default(),
            stamp: 0,
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

/// Entry of a walk into a run.
pub(in super::super) struct Arrival<S> {
    pub at: Step,
    /// From a block and the lengths of the next blocks: writes the prompt's steps, and returns
    /// their number.
    pub steps: S,
}

/// The children of a run that was read.
#[derive(Clone, Copy)]
pub(in super::super) struct Children<'t> {
    cells: &'t Cells,
    run: Option<&'t Run>,
    view: &'t RunView,
}

impl Children<'_> {
    /// False if the key is certainly no child's, so that the locator need not be searched.
    #[inline]
    pub(in super::super) fn may_have(self, length: ChildLength, child: BlockKey) -> bool {
        // Tags that have moved since are no evidence.
        let is_unchanged = || self.run.is_some_and(|run| run.read_end(self.view.stamp));
        !length.is_tagged || self.view.tags.has(child, self.cells) || !is_unchanged()
    }
}

impl Table {
    /// Reads the run from the entered block on. False if the index has no such block.
    #[inline]
    pub(in super::super) fn enter<S>(&self, arrival: &mut Arrival<S>, view: &mut RunView) -> bool
    where
        S: FnMut(Step, &[u16], &mut [Step]) -> usize,
    {
        let Some(key) = BlockKey::from_word(arrival.at.word) else { return false };
        let next = view.next.take().map(|run| Location { run, offset: 0 });
        let mut look = |at| {
            self.look(at, |run, stamp| {
                view.id = at.run;
                view.stamp = stamp;
                self.copy(run, at, arrival, view)
            })
        };
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
            self.look(location, |run, _| self.key_at(run, location.offset) == key.to_word())
        };
        self.locator.find(key, has).is_some()
    }

    /// Filter for keys that are no child's of the run.
    #[inline]
    pub(in super::super) fn children<'t>(&'t self, view: &'t RunView) -> Children<'t> {
        Children { cells: &self.cells, run: self.run(view.id), view }
    }

    /// Runs `read` on a run. Its result (true: the block is here) counts if the run did not change
    /// meanwhile.
    #[inline]
    fn look(&self, location: Location, read: impl FnOnce(&Run, u64) -> bool) -> LookupResult<()> {
        let Some(run) = self.run(location.run) else { return LookupResult::Other };
        let Some(stamp) = run.read_begin() else { return LookupResult::Disturbed };
        let is_it = read(run, stamp);
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
    fn copy<S>(&self, run: &Run, at: Location, arrival: &mut Arrival<S>, view: &mut RunView) -> bool
    where
        S: FnMut(Step, &[u16], &mut [Step]) -> usize,
    {
        let first = at.offset;
        let count = run.block_count();
        self.fetch_cells(run, first);
        if first >= count || self.key_at(run, first) != arrival.at.word {
            return false;
        }
        // Also for a walk that ends here: requested blocks stay warm.
        run.use_at(self.epoch());
        view.block_count = count - first;
        let next = RunId(at.run.0.wrapping_add(1));
        self.run(next).into_iter().for_each(forebay_wide::fetch);
        self.copy_ranks(run, first, view);
        self.follow(run, first, arrival, view);
        view.lengths.clear();
        // Children follow the last block. A prompt that differs before has no use for them.
        if view.matched == view.block_count {
            view.next = Some(next).filter(|_| self.is_child(next, at.run));
            let word = run.lengths();
            match cell_of(word) {
                Some(cell) => self.cells.for_each(cell, |bytes, word| {
                    view.lengths.push(ChildLength::of_pair(bytes, word));
                }),
                None => {
                    let untagged = |bytes| ChildLength { bytes, is_tagged: false };
                    view.lengths.extend(lanes(word).map(untagged));
                }
            }
            view.tags.read(twig_of(word), &self.cells);
        }
        true
    }

    /// Is the run `next` likely a child of `of`? If so, its blocks are prefetched.
    #[inline]
    fn is_child(&self, next: RunId, of: RunId) -> bool {
        let child = self.run(next).filter(|next| next.parent() == of);
        child.into_iter().for_each(|next| self.fetch_cells(next, 0));
        child.is_some()
    }

    /// Prefetches the cells of a run from block `first` on, all at once. Otherwise each read would
    /// wait for memory in turn.
    #[inline]
    fn fetch_cells(&self, run: &Run, first: usize) {
        for index in first / CELL_PAIRS..run.block_count().div_ceil(CELL_PAIRS) {
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

    /// Compares the prompt with the blocks after the first, up to `seen.block_count`.
    #[inline]
    fn follow<S>(&self, run: &Run, first: usize, arrival: &mut Arrival<S>, view: &mut RunView)
    where
        S: FnMut(Step, &[u16], &mut [Step]) -> usize,
    {
        let mut at = arrival.at;
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
            let made = (arrival.steps)(at, here, steps);
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
        view.key = BlockKey::from_word(at.word);
    }
}
