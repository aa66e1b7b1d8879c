//! The walk: follows a prompt's bytes through the blocks that ranks hold. Any shard, reading in
//! place.
//!
//! Inside a run of blocks there is no branch. At its end the walk tries the recorded lengths of its
//! children. Mostly a single length has a child; otherwise the other branches wait on a stack. A
//! rank's overlap is the longest chain from the start in which it holds every block. The work for a
//! prompt is bounded by `WALK_PROBES_MAX` probes, of which a long block takes several; at the limit
//! the walk ends with the overlaps found so far.

use super::hasher::BlockHasher;
use super::key::{BlockKey, is_in_slice, slice_of};
use super::overlap::Overlap;
use super::overlaps::Overlaps;
use super::ranks::Ranks;
use super::rows::RowSums;
use super::scratch::{Branch, FirstBlocks, FirstKeys, WalkScratch};
use super::table::{BlockPath, FIRST_WORDS, RunView, Step, StepSet, Table};
use super::window::WindowedRanks;
use forebay_base::limits::{
    BLOCK_BYTES_MAX, INNER_BLOCK, PROMPT_BYTES_MATCHED_MAX, WALK_PROBES_MAX,
};
use std::sync::Arc;

/// Branches on the stack, at most; further branches are not followed.
const BRANCHES_MAX: usize = 1_024;
/// Probe budget of the shortest prompt; each byte of a prompt adds a probe, because a block may be
/// a token of a byte.
const PROBES_LEAST: usize = 1_024;
/// Hashed bytes that cost as much as a probe.
const PROBE_BYTES: usize = 256;
/// Probes that the longest block costs.
const BLOCK_PROBES_MAX: usize = 1 + BLOCK_BYTES_MAX / PROBE_BYTES;

/// A prompt on its way through the slices.
pub(super) struct Walk<'a> {
    pub(super) slices: &'a [Arc<Table>],
    pub(super) hasher: &'a BlockHasher,
    pub(super) text: &'a [u8],
    pub(super) windows: WindowedRanks<'a>,
    pub(super) out: &'a mut Overlaps,
}

impl Walk<'_> {
    /// Adds the overlaps found under `root` to `out`.
    pub(super) fn run<const IMAGES: bool>(mut self, root: BlockKey) {
        let text = self.text.get(..PROMPT_BYTES_MATCHED_MAX).unwrap_or(self.text);
        let mut scratch = self.out.scratch.take().unwrap_or_default();
        debug_assert!(scratch.branches.is_empty(), "branches of another prompt");
        // A block of a single digit has a byte. The number of blocks of an image is unknown.
        let worth = match IMAGES {
            true => WALK_PROBES_MAX,
            false => WALK_PROBES_MAX.min(PROBES_LEAST + text.len()),
        };
        let WalkScratch { branches, run, first_keys, firsts } = &mut *scratch;
        let budget = self.out.probes_max.min(worth);
        let mut path = PromptPath::<IMAGES>::new(self.hasher, text, budget, first_keys);
        run.begin(self.out.rank_words());
        firsts.resize_with(self.slices.len(), FirstBlocks::default);
        if self.slices.len() > 1 {
            self.find_first(root, &mut path, firsts);
        }
        for (slice, first) in firsts.iter_mut().enumerate() {
            // A single slice has its list alone.
            match self.slices.len() > 1 && !first.lengths.has_long() {
                true => self.start_of(slice, root, first, branches),
                false => self.start(slice, root, &mut path, run, branches),
            }
            while let Some(branch) = branches.pop() {
                self.follow(branch, &mut path, run, branches);
            }
        }
        self.out.record_points(self.windows.ranks);
        self.out.is_cut |= path.budget < BLOCK_PROBES_MAX && self.out.probes_max < worth;
        debug_assert!(self.out.scratch.is_none(), "two walks with one scratch");
        self.out.scratch = Some(scratch);
    }

    /// Finds the blocks of the prompt that may be first blocks, by the bits of the lengths in all
    /// slices: each length is hashed once, and the hash determines the slice.
    fn find_first<const IMAGES: bool>(
        &self,
        root: BlockKey,
        path: &mut PromptPath<'_, IMAGES>,
        firsts: &mut [FirstBlocks],
    ) {
        let mut all = [0; FIRST_WORDS];
        let mut has_long = false;
        for (table, first) in self.slices.iter().zip(&mut *firsts) {
            first.steps.clear();
            first.lengths = table.first_lengths(root, &first.lengths);
            all.iter_mut().zip(first.lengths.bits).for_each(|(all, bits)| *all |= bits);
            has_long |= first.lengths.has_long();
        }
        for length in lengths_of(all) {
            let Some(key) = path.child_key(root, path.text, length) else { break };
            if has_long {
                path.first.keys.set(length, key);
            }
            let slice = slice_of(key, self.slices.len());
            let first = firsts.get_mut(slice.index());
            if let Some(first) = first.filter(|first| first.lengths.has(length)) {
                first.steps.push(Step { word: key.to_word(), end: u32::from(length) });
            }
        }
    }

    /// Starts a branch at each first block of a slice.
    fn start_of(
        &self,
        slice: usize,
        root: BlockKey,
        first: &FirstBlocks,
        branches: &mut Vec<Branch>,
    ) {
        let Some(table) = self.slices.get(slice) else { return };
        for steps in first.steps.chunks(StepSet::STEPS_MAX) {
            let there = table.may_begin(&first.lengths, root, steps);
            branches.extend(there.of(steps).map(|(_, at)| Branch::first(slice, at)));
        }
    }

    /// Finds the first blocks of a slice by its list. Each slice has only the lengths of its own
    /// first blocks, and the hash of a block determines its slice.
    fn start<const IMAGES: bool>(
        &self,
        slice: usize,
        root: BlockKey,
        path: &mut PromptPath<'_, IMAGES>,
        run: &mut RunView,
        branches: &mut Vec<Branch>,
    ) {
        let Some(table) = self.slices.get(slice) else { return };
        let root = Step { word: root.to_word(), end: 0 };
        path.begin_slice(Some(slice), self.slices.len());
        let is_there = table.enter(root, path, run);
        path.begin_slice(None, self.slices.len());
        if !is_there {
            return;
        }
        // Some are not there. With the lengths that a run may have, all fit the stack. An image
        // begins with a block that has bytes.
        let first = run.children.iter().filter(|first| first.end > 0).take(BRANCHES_MAX);
        branches.extend(first.map(|&at| Branch::first(slice, at)));
    }

    /// Follows a branch to its end, and pushes further branches onto the stack.
    fn follow<const IMAGES: bool>(
        &mut self,
        branch: Branch,
        path: &mut PromptPath<'_, IMAGES>,
        run: &mut RunView,
        branches: &mut Vec<Branch>,
    ) {
        let Branch { slice, mut at, mut before, mut ranks, mut trails } = branch;
        let Some(table) = self.slices.get(slice) else { return };
        run.next = None;
        while table.enter(at, path, run) {
            if !self.windows.is_empty() {
                self.windows.pass(run, before, &mut trails, &mut self.out.points);
            }
            if !ranks.narrow(run, before, self.out) {
                return;
            }
            let Some(end) = run.end(before) else { return };
            let mut next = None;
            // Of a single child, the next `enter` finds out whether it exists: no extra look-up.
            let is_fork = run.children.len() > 1;
            for &child in &run.children {
                let key = BlockKey::from_word(child.word);
                if is_fork && !key.is_some_and(|key| table.contains(key)) {
                    continue;
                }
                let is_within =
                    |end| usize::try_from(end).is_ok_and(|end| end <= path.text_bytes());
                debug_assert!(is_within(child.end), "a child past the end of the prompt");
                match next {
                    // The first child continues here. Only further children copy the ranks.
                    None => next = Some(child),
                    Some(_) if branches.len() < BRANCHES_MAX => {
                        let ranks = ranks.clone();
                        let trails = trails.clone();
                        branches.push(Branch { slice, at: child, before: end, ranks, trails });
                    }
                    Some(_) => {}
                }
            }
            debug_assert!(end.bytes >= before.bytes && end.blocks > before.blocks, "no way made");
            before = end;
            match next {
                Some(child) => at = child,
                None => break,
            }
        }
        ranks.record(before, self.out);
    }
}

/// Lengths with a bit that is set, shortest first, without the bit of no length.
fn lengths_of(words: [u64; FIRST_WORDS]) -> impl Iterator<Item = u16> {
    let mut words = words.into_iter().zip((0..).step_by(64_usize));
    let mut rest = 0_u64;
    let mut first = 0;
    let lengths = std::iter::from_fn(move || {
        while rest == 0 {
            (rest, first) = words.next()?;
        }
        let bit = rest.trailing_zeros();
        rest &= rest - 1;
        u16::try_from(first).ok().zip(u16::try_from(bit).ok()).map(|(first, bit)| first + bit)
    });
    lengths.filter(|length| *length != 0)
}

/// The text of a prompt, and what is known of its blocks. Only prompts with images follow inner
/// blocks, so that other prompts do not pay for them.
struct PromptPath<'a, const IMAGES: bool> {
    hasher: &'a BlockHasher,
    text: &'a [u8],
    /// Probes that are left of the walk.
    budget: usize,
    /// Of the blocks that begin at `sums_start`.
    sums: RowSums,
    sums_start: u32,
    first: FirstHashes<'a>,
}

/// Keys of the first blocks, while these are looked for in more than a slice.
struct FirstHashes<'a> {
    keys: &'a mut FirstKeys,
    slice: Option<usize>,
    slice_count: usize,
}

impl<'a, const IMAGES: bool> PromptPath<'a, IMAGES> {
    fn new(
        hasher: &'a BlockHasher,
        text: &'a [u8],
        budget: usize,
        keys: &'a mut FirstKeys,
    ) -> Self {
        keys.clear();
        let first = FirstHashes { keys, slice: None, slice_count: 1 };
        Self { hasher, text, budget, sums: RowSums::default(), sums_start: 0, first }
    }

    fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// From here on, children are first blocks of that slice. `None`: they follow other blocks.
    fn begin_slice(&mut self, slice: Option<usize>, slice_count: usize) {
        // A single slice has all first blocks, and no other slice hashes them again.
        self.first.slice = slice.filter(|_| slice_count > 1);
        self.first.slice_count = slice_count;
    }

    /// Prompt bytes of a block with that listed length.
    #[inline]
    const fn own_bytes(length: u16) -> u16 {
        if IMAGES && length == INNER_BLOCK { 0 } else { length }
    }

    /// The text behind a byte.
    #[inline]
    fn rest(&self, start: u32) -> &'a [u8] {
        self.text.get(usize::try_from(start).unwrap_or(usize::MAX)..).unwrap_or_default()
    }

    /// The key of a child of that length; `None` past the end of the prompt or of the budget.
    #[inline(always)]
    fn child_key(&mut self, parent: BlockKey, rest: &[u8], bytes: u16) -> Option<BlockKey> {
        let block = rest.get(..usize::from(bytes))?;
        self.budget = self.budget.checked_sub(1 + block.len() / PROBE_BYTES)?;
        Some(self.hasher.front_child(parent, block, &mut self.sums))
    }

    /// First blocks of a slice, as [`BlockPath::children`]. Most lengths are hashed only once, even
    /// if several slices have them.
    #[inline(never)]
    fn first_blocks(
        &mut self,
        root: BlockKey,
        slice: usize,
        lengths: &[u16],
        out: &mut [Step],
    ) -> StepSet {
        let slice_count = self.first.slice_count;
        let mut found = StepSet::default();
        for (&length, child) in lengths.iter().zip(out) {
            let bytes = Self::own_bytes(length);
            let key = self.first.keys.get(bytes).or_else(|| {
                let key = self.child_key(root, self.text, bytes)?;
                self.first.keys.set(bytes, key);
                Some(key)
            });
            let word = key.map_or(0, BlockKey::to_word);
            *child = Step { word, end: u32::from(bytes) };
            found.next(word != 0 && is_in_slice(word, slice, slice_count));
        }
        found
    }
}

impl<const IMAGES: bool> BlockPath for PromptPath<'_, IMAGES> {
    // Not inlined: the calling loops leave too few registers.
    #[inline(never)]
    fn steps(&mut self, at: Step, lengths: &[u16], out: &mut [Step]) -> usize {
        let Some(mut key) = BlockKey::from_word(at.word) else { return 0 };
        let mut rest = self.rest(at.end);
        // Copies in registers: fields would be written back at each block.
        let hasher = self.hasher;
        let mut end = at.end;
        let mut made = 0;
        let mut left = self.budget;
        for (&length, step) in lengths.iter().zip(out) {
            let length = Self::own_bytes(length);
            let Some((block, after)) = rest.split_at_checked(usize::from(length)) else { break };
            let Some(fewer) = left.checked_sub(1 + block.len() / PROBE_BYTES) else { break };
            key = hasher.child(key, block);
            end += u32::from(length);
            rest = after;
            left = fewer;
            *step = Step { word: key.to_word(), end };
            made += 1;
        }
        self.budget = left;
        made
    }

    #[inline(never)]
    fn children(&mut self, at: Step, lengths: &[u16], out: &mut [Step]) -> StepSet {
        let mut found = StepSet::default();
        let Some(parent) = BlockKey::from_word(at.word) else { return found };
        if self.sums_start != at.end {
            self.sums.clear();
            self.sums_start = at.end;
        }
        if let Some(slice) = self.first.slice {
            return self.first_blocks(parent, slice, lengths, out);
        }
        let rest = self.rest(at.end);
        for (&length, child) in lengths.iter().zip(out) {
            let bytes = Self::own_bytes(length);
            let word = self.child_key(parent, rest, bytes).map_or(0, BlockKey::to_word);
            *child = Step { word, end: at.end + u32::from(bytes) };
            found.next(word != 0);
        }
        found
    }
}

/// Adds the overlaps with a path of known keys, of blocks of equal length, to `out`.
pub(super) fn follow_path(
    table: &Table,
    path: &[BlockKey],
    block_bytes: usize,
    out: &mut Overlaps,
) {
    let Ok(length) = u32::try_from(block_bytes) else { return };
    let mut scratch = out.scratch.take().unwrap_or_default();
    let run = &mut scratch.run;
    run.begin(out.rank_words());
    let mut known = KnownPath { path, block_bytes: length };
    let mut before = Overlap::default();
    let mut ranks = Ranks::All;
    loop {
        let first = known.after(before.bytes);
        if !first.is_some_and(|at| table.enter(at, &mut known, run)) {
            ranks.record(before, out);
            break;
        }
        if !ranks.narrow(run, before, out) {
            break;
        }
        let Some(end) = run.end(before) else { break };
        before = end;
    }
    out.scratch = Some(scratch);
}

/// A path of known keys.
struct KnownPath<'a> {
    path: &'a [BlockKey],
    block_bytes: u32,
}

impl KnownPath<'_> {
    /// The block that begins at that byte.
    fn after(&self, start: u32) -> Option<Step> {
        let index = usize::try_from(start.checked_div(self.block_bytes)?).ok()?;
        let word = self.path.get(index)?.to_word();
        Some(Step { word, end: start + self.block_bytes })
    }
}

impl BlockPath for KnownPath<'_> {
    fn steps(&mut self, at: Step, lengths: &[u16], out: &mut [Step]) -> usize {
        let mut at = at;
        let made = out.iter_mut().take(lengths.len());
        made.map_while(|step| {
            at = self.after(at.end)?;
            *step = at;
            Some(())
        })
        .count()
    }

    /// None: the path itself leads on.
    fn children(&mut self, _: Step, _: &[u16], _: &mut [Step]) -> StepSet {
        StepSet::default()
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use crate::{BlockKey, KeySeed, KvOp, Overlap, Overlaps, RootName, Shape};
    use forebay_base::RankIndex;

    /// llm-d-router#2153: pages of a single token, in a prompt of digits.
    #[test]
    fn pages_of_a_token_are_matched_to_their_end() {
        const SEED: KeySeed = KeySeed(5);
        const RANK: RankIndex = RankIndex(1);
        let text: Vec<u8> = (0..20_000_u32).map(|at| b'0' + (at * at % 10) as u8).collect();
        for lengths in [&[1_usize][..], &[1, 2, 3], &[1, 1, 1, 1, 7]] {
            let shape = Shape { segment_slots: 4_096, memory_bytes_max: 1 << 26 };
            let (reader, mut writers) = crate::index_of_shape(1, SEED, shape);
            let root = BlockKey::root(SEED, &RootName { model: "m", ..RootName::default() });
            let mut parent = root;
            let mut rest = text.as_slice();
            let mut blocks = 0;
            for length in lengths.iter().cycle() {
                let Some((block, tail)) = rest.split_at_checked(*length) else { break };
                let key = parent.child(SEED, block);
                let block_bytes = u16::try_from(block.len()).unwrap();
                writers[0].apply(RANK, KvOp::Store { parent, key, block_bytes });
                parent = key;
                rest = tail;
                blocks += 1;
            }
            let mut found = Overlaps::new(4);
            reader.overlap(root, &text, &mut found);
            let bytes = u32::try_from(text.len() - rest.len()).unwrap();
            assert_eq!(found.get(RANK), Overlap { blocks, bytes }, "{lengths:?}");
        }
    }
}
