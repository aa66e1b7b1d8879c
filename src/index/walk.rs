//! The walk: follows a prompt's bytes through the blocks that ranks hold. Any shard, reading in place.
//!
//! At each block it tries the lengths that children are known to have. Mostly one length leads on; where several do,
//! the others wait on a stack. A rank's overlap is the longest chain from the start of which it holds
//! every block. The work for one prompt is bounded by `WALK_PROBES_MAX`, where long blocks count more than
//! one; past it the walk ends with what it has.

use super::overlaps::{Overlap, Overlaps};
use super::ranks::Ranks;
use super::slice_of;
use super::table::{Node, Spill, Table};
use super::words::{cell_of, lanes};
use crate::base::limits::{BLOCK_BYTES_MAX, PROMPT_BYTES_MATCHED_MAX, WALK_PROBES_MAX};
use crate::block::{BlockKey, KeySeed};
use std::sync::Arc;

/// Branches waiting at one time; further ones are not followed.
const BRANCHES_MAX: usize = 1_024;
/// Bytes that are hashed for the price of one probe.
const PROBE_BYTES: usize = 256;
const SEEN_WORDS: usize = BLOCK_BYTES_MAX / 64 + 1;

/// What a walk needs beside the prompt; kept from request to request.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    branches: Vec<Branch>,
    /// Overflow sets of the entry that the walk stands on (only its lengths count), and of the one it looks at.
    here: Spill,
    ahead: Spill,
    seen: LengthSet,
}

/// One way through the blocks, at an entry that some of `ranks` hold.
#[derive(Debug)]
struct Branch {
    slice: usize,
    key: BlockKey,
    found: Overlap,
    ranks: Ranks,
}

/// One prompt on its way through the slices.
pub(super) struct Walk<'a> {
    pub(super) slices: &'a [Arc<Table>],
    pub(super) seed: KeySeed,
    pub(super) text: &'a [u8],
    pub(super) out: &'a mut Overlaps,
}

impl Walk<'_> {
    /// Adds what is found under `root` to `out`.
    pub(super) fn run(mut self, root: BlockKey) {
        self.text = self.text.get(..PROMPT_BYTES_MATCHED_MAX).unwrap_or(self.text);
        let mut scratch = std::mem::take(&mut self.out.scratch);
        let mut budget = WALK_PROBES_MAX;
        scratch.here.rank_words = self.out.rank_words();
        scratch.ahead.rank_words = self.out.rank_words();
        self.start(root, &mut scratch, &mut budget);
        while let Some(branch) = scratch.branches.pop() {
            self.follow(branch, &mut scratch, &mut budget);
        }
        self.out.scratch = scratch;
    }

    /// Finds the first blocks. Each slice knows the lengths of its own only, and which slice a first block belongs to
    /// shows when it is hashed; so each length is hashed once, whichever slice named it.
    fn start(&self, root: BlockKey, scratch: &mut Scratch, budget: &mut usize) {
        for table in self.slices {
            let Some(node) = table.read(root, &mut scratch.here) else { continue };
            for length in lengths(node, &scratch.here) {
                if !scratch.seen.insert(length) {
                    continue;
                }
                let Some((key, found)) = self.step(root, Overlap::default(), length, budget) else {
                    continue;
                };
                let slice = slice_of(key, self.slices.len()).index();
                let Some(table) = self.slices.get(slice) else { continue };
                let Some(node) = table.read(key, &mut scratch.ahead) else { continue };
                let ranks = Ranks::of(node, &scratch.ahead);
                push(&mut scratch.branches, Branch { slice, key, found, ranks });
            }
        }
        scratch.seen.clear();
    }

    /// Follows one branch to its end, leaving others that part from it on the stack.
    fn follow(&mut self, branch: Branch, scratch: &mut Scratch, budget: &mut usize) {
        let Branch { slice, mut key, mut found, mut ranks } = branch;
        let Some(table) = self.slices.get(slice) else { return };
        let mut here = table.read(key, &mut scratch.here);
        while let Some(node) = here.take() {
            let mut ahead: Option<(BlockKey, Overlap, Node)> = None;
            for length in lengths(node, &scratch.here) {
                let Some((child, reached)) = self.step(key, found, length, budget) else {
                    continue;
                };
                if ahead.is_some() {
                    // A second way on is rare: its sets are read again when its turn comes.
                    let mut spill =
                        Spill { rank_words: scratch.ahead.rank_words, ..Spill::default() };
                    let node = table.read(child, &mut spill);
                    if let Some(node) = node.filter(|node| ranks.meet(*node, &spill)) {
                        let mut ranks = ranks.clone();
                        ranks.narrow(node, &spill, found, self.out);
                        push(
                            &mut scratch.branches,
                            Branch { slice, key: child, found: reached, ranks },
                        );
                    }
                    continue;
                }
                let node = table.read(child, &mut scratch.ahead);
                ahead = node
                    .filter(|node| ranks.meet(*node, &scratch.ahead))
                    .map(|node| (child, reached, node));
            }
            if let Some((child, reached, node)) = ahead {
                ranks.narrow(node, &scratch.ahead, found, self.out);
                if cell_of(node.lengths).is_some() {
                    std::mem::swap(&mut scratch.here.lengths, &mut scratch.ahead.lengths);
                }
                (key, found, here) = (child, reached, Some(node));
            }
        }
        ranks.record(found, self.out);
    }

    /// The path one block of that length further; `None` past the end of the prompt or of the budget.
    #[inline]
    fn step(
        &self,
        key: BlockKey,
        found: Overlap,
        length: u16,
        budget: &mut usize,
    ) -> Option<(BlockKey, Overlap)> {
        let start = usize::try_from(found.bytes).ok()?;
        let block = self.text.get(start..)?.get(..usize::from(length))?;
        *budget = budget.checked_sub(1 + block.len() / PROBE_BYTES)?;
        let bytes = found.bytes + u32::from(length);
        Some((key.child(self.seed, block), Overlap { blocks: found.blocks + 1, bytes }))
    }
}

/// The child lengths of an entry.
#[inline]
fn lengths(node: Node, spill: &Spill) -> impl Iterator<Item = u16> {
    let listed: &[u16] = if cell_of(node.lengths).is_some() { &spill.lengths } else { &[] };
    let word = if cell_of(node.lengths).is_some() { 0 } else { node.lengths };
    lanes(word).chain(listed.iter().copied())
}

fn push(branches: &mut Vec<Branch>, branch: Branch) {
    if branches.len() < BRANCHES_MAX {
        branches.push(branch);
    }
}

/// A set of block lengths that is cheap to clear.
#[derive(Debug, Default)]
struct LengthSet {
    bits: Vec<u64>,
    members: Vec<u16>,
}

impl LengthSet {
    /// False when it was there.
    fn insert(&mut self, length: u16) -> bool {
        self.bits.resize(SEEN_WORDS, 0);
        let Some(word) = self.bits.get_mut(usize::from(length) / 64) else { return false };
        let bit = 1 << (length % 64);
        let is_new = *word & bit == 0;
        if is_new {
            *word |= bit;
            self.members.push(length);
        }
        is_new
    }

    fn clear(&mut self) {
        for length in self.members.drain(..) {
            if let Some(word) = self.bits.get_mut(usize::from(length) / 64) {
                *word = 0;
            }
        }
    }
}
