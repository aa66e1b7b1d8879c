//! The walk: follows a prompt's bytes through the blocks that ranks hold. Any shard, reading in
//! place.
//!
//! Inside a run of blocks there is no branch. At its end the walk tries the recorded lengths of its
//! children. Mostly a single length has a child; otherwise the other branches wait on a stack. A
//! rank's overlap is the longest chain from the start in which it holds every block. The work for a
//! prompt is bounded by `WALK_PROBES_MAX` probes, of which a long block takes several; at the limit
//! the walk ends with the overlaps found so far.

use super::hasher::BlockHasher;
use super::key::{BlockKey, slice_of};
use super::overlap::Overlap;
use super::overlaps::Overlaps;
use super::ranks::Ranks;
use super::scratch::{Branch, WalkScratch};
use super::table::{Arrival, Step, Table};
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

/// A prompt on its way through the slices. Only prompts with images follow inner blocks, so that
/// other prompts do not pay for them.
pub(super) struct Walk<'a, const IMAGES: bool> {
    pub(super) slices: &'a [Arc<Table>],
    pub(super) hasher: &'a BlockHasher,
    pub(super) text: &'a [u8],
    pub(super) windows: WindowedRanks<'a>,
    pub(super) out: &'a mut Overlaps,
}

impl<const IMAGES: bool> Walk<'_, IMAGES> {
    /// Adds the overlaps found under `root` to `out`.
    pub(super) fn run(mut self, root: BlockKey) {
        self.text = self.text.get(..PROMPT_BYTES_MATCHED_MAX).unwrap_or(self.text);
        let mut scratch = self.out.scratch.take().unwrap_or_default();
        debug_assert!(scratch.branches.is_empty(), "branches of another prompt");
        // A block of a single digit has a byte. The number of blocks of an image is unknown.
        let worth = match IMAGES {
            true => WALK_PROBES_MAX,
            false => WALK_PROBES_MAX.min(PROBES_LEAST + self.text.len()),
        };
        let mut budget = self.out.probes_max.min(worth);
        scratch.run.begin(self.out.rank_words());
        self.start(root, &mut scratch, &mut budget);
        while let Some(branch) = scratch.branches.pop() {
            self.follow(branch, &mut scratch, &mut budget);
        }
        self.out.record_points(self.windows.ranks);
        self.out.is_cut |= budget < BLOCK_PROBES_MAX && self.out.probes_max < worth;
        debug_assert!(self.out.scratch.is_none(), "two walks with one scratch");
        self.out.scratch = Some(scratch);
    }

    /// Finds the first blocks. Each slice has only the lengths of its own first blocks, and the
    /// hash of a block determines its slice. Most lengths are hashed only once, even if several
    /// slices have them.
    fn start(&self, root: BlockKey, scratch: &mut WalkScratch, budget: &mut usize) {
        let WalkScratch { branches, run, first_keys } = scratch;
        first_keys.clear();
        for (slice, table) in self.slices.iter().enumerate() {
            let at = Step { word: root.to_word(), end: 0 };
            let mut arrival = Arrival { at, steps: |_, _: &[_], _: &mut [_]| 0 };
            if !table.enter(&mut arrival, run) {
                continue;
            }
            let children = table.children(run);
            for &length in &run.lengths {
                // An image begins with a block that has bytes.
                if IMAGES && length.bytes == INNER_BLOCK {
                    continue;
                }
                let hash = || self.step(root, 0, length.bytes, budget);
                let Some(key) = first_keys.get(length.bytes, hash) else { continue };
                let is_here = slice_of(key, self.slices.len()).index() == slice;
                if is_here && children.may_have(length, key) {
                    let before = Overlap::default();
                    let bytes = u32::from(length.bytes);
                    let ranks = Ranks::All;
                    let trails = Vec::new();
                    let branch = Branch { slice, key, before, bytes, ranks, trails };
                    self.push(branches, branch);
                }
            }
        }
    }

    /// Follows a branch to its end, and pushes further branches onto the stack.
    fn follow(&mut self, branch: Branch, scratch: &mut WalkScratch, budget: &mut usize) {
        let Branch { slice, mut key, mut before, mut bytes, mut ranks, mut trails } = branch;
        let Some(table) = self.slices.get(slice) else { return };
        let WalkScratch { branches, run, .. } = scratch;
        run.next = None;
        loop {
            let steps = |at, lengths: &[_], out: &mut [_]| self.steps(at, lengths, out, budget);
            let at = Step { word: key.to_word(), end: bytes };
            if !table.enter(&mut Arrival { at, steps }, run) {
                return ranks.record(before, self.out);
            }
            if !self.windows.is_empty() {
                self.windows.pass(run, before, &mut trails, &mut self.out.points);
            }
            if !ranks.narrow(run, before, self.out) {
                return;
            }
            let (Some(last), Some(end)) = (run.key, run.end(before)) else { return };
            let mut next = None;
            // With a single length, `enter` finds out whether the child exists: no extra look-up.
            let is_fork = run.lengths.len() > 1;
            let children = table.children(run);
            for &length in &run.lengths {
                let Some(child) = self.step(last, end.bytes, length.bytes, budget) else {
                    continue;
                };
                let is_child = || children.may_have(length, child) && table.contains(child);
                if is_fork && !is_child() {
                    continue;
                }
                let bytes = end.bytes + u32::from(Self::own_bytes(length.bytes));
                debug_assert!(usize::try_from(bytes).is_ok_and(|bytes| bytes <= self.text.len()));
                match next {
                    // The first child continues here. Only further children copy the ranks.
                    None => next = Some((child, bytes)),
                    Some(_) => {
                        let ranks = ranks.clone();
                        let trails = trails.clone();
                        let key = child;
                        let before = end;
                        let branch = Branch { slice, key, before, bytes, ranks, trails };
                        self.push(branches, branch);
                    }
                }
            }
            debug_assert!(end.bytes >= before.bytes && end.blocks > before.blocks, "no way made");
            let Some(child) = next else { return ranks.record(end, self.out) };
            (key, bytes) = child;
            before = end;
        }
    }

    /// Prompt bytes of a block with that listed length.
    #[inline]
    const fn own_bytes(length: u16) -> u16 {
        if IMAGES && length == INNER_BLOCK { 0 } else { length }
    }

    /// The key of the next block, of that length; `None` past the end of the prompt or of the
    /// budget.
    #[inline]
    fn step(&self, key: BlockKey, start: u32, length: u16, budget: &mut usize) -> Option<BlockKey> {
        let start = usize::try_from(start).ok()?;
        let block = self.text.get(start..)?.get(..usize::from(Self::own_bytes(length)))?;
        *budget = budget.checked_sub(1 + block.len() / PROBE_BYTES)?;
        Some(self.hasher.child(key, block))
    }

    /// [`Self::step`] for several lengths in a row; returns the number of steps made.
    // Not inlined: the calling loops leave too few registers.
    #[inline(never)]
    fn steps(&self, at: Step, lengths: &[u16], out: &mut [Step], budget: &mut usize) -> usize {
        let Some(mut key) = BlockKey::from_word(at.word) else { return 0 };
        let start = usize::try_from(at.end).unwrap_or(usize::MAX);
        let Some(mut rest) = self.text.get(start..) else { return 0 };
        // Copies in registers: borrowed values would be written back at each block.
        let mut end = at.end;
        let mut made = 0;
        let mut left = *budget;
        for (&length, step) in lengths.iter().zip(out) {
            let length = Self::own_bytes(length);
            let Some((block, after)) = rest.split_at_checked(usize::from(length)) else { break };
            let Some(fewer) = left.checked_sub(1 + block.len() / PROBE_BYTES) else { break };
            key = self.hasher.child(key, block);
            end += u32::from(length);
            rest = after;
            left = fewer;
            *step = Step { word: key.to_word(), end };
            made += 1;
        }
        *budget = left;
        made
    }

    fn push(&self, branches: &mut Vec<Branch>, branch: Branch) {
        debug_assert!(branches.len() <= BRANCHES_MAX, "more branches than may wait");
        // Looked up before it waits, so that lengths without a child take no place on the stack.
        let is_there =
            self.slices.get(branch.slice).is_some_and(|table| table.contains(branch.key));
        if is_there && branches.len() < BRANCHES_MAX {
            branches.push(branch);
        }
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
    let key_from =
        |start: u32| path.get(usize::try_from(start.checked_div(length)?).ok()?).copied();
    let mut before = Overlap::default();
    let mut ranks = Ranks::All;
    loop {
        let steps = |at: Step, lengths: &[u16], out: &mut [Step]| {
            let mut end = at.end;
            let mut next = || {
                let word = key_from(end)?.to_word();
                end += length;
                Some(Step { word, end })
            };
            let made = out.iter_mut().take(lengths.len());
            made.map_while(|step| next().map(|made| *step = made)).count()
        };
        let next = key_from(before.bytes).is_some_and(|key| {
            let at = Step { word: key.to_word(), end: before.bytes + length };
            table.enter(&mut Arrival { at, steps }, run)
        });
        if !next {
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
