//! A prompt as the blocks that a walk compares with the index: their keys, made from its bytes
//! within the budget of the walk.

use super::hasher::BlockHasher;
use super::key::{BlockKey, is_in_slice};
use super::rows::RowSums;
use super::scratch::FirstKeys;
use super::table::{BlockPath, Step, StepSet};
use forebay_base::limits::{BLOCK_BYTES_MAX, INNER_BLOCK};

/// Hashed bytes that cost as much as a probe.
const PROBE_BYTES: usize = 256;
/// Probes that the longest block costs.
pub(super) const BLOCK_PROBES_MAX: usize = 1 + BLOCK_BYTES_MAX / PROBE_BYTES;

/// The text of a prompt, and what is known of its blocks. Only prompts with images follow inner
/// blocks, so that other prompts do not pay for them.
pub(super) struct PromptPath<'a, const IMAGES: bool> {
    hasher: &'a BlockHasher,
    text: &'a [u8],
    /// Probes left.
    pub(super) budget: usize,
    /// Of the blocks that begin at `sums_start`.
    sums: RowSums,
    sums_start: u32,
    first: FirstBlocks<'a>,
}

/// Keys of the first blocks, while these are looked for in more than a slice.
struct FirstBlocks<'a> {
    keys: &'a mut FirstKeys,
    slice: Option<usize>,
    slice_count: usize,
}

impl<'a, const IMAGES: bool> PromptPath<'a, IMAGES> {
    pub(super) fn new(
        hasher: &'a BlockHasher,
        text: &'a [u8],
        budget: usize,
        keys: &'a mut FirstKeys,
    ) -> Self {
        keys.clear();
        let first = FirstBlocks { keys, slice: None, slice_count: 1 };
        Self { hasher, text, budget, sums: RowSums::default(), sums_start: 0, first }
    }

    pub(super) fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// From here on, children are first blocks of that slice. `None`: they follow other blocks.
    pub(super) fn begin_slice(&mut self, slice: Option<usize>, slice_count: usize) {
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
