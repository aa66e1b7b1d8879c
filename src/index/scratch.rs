//! Working memory of a walk, reused from request to request.

use super::key::BlockKey;
use super::overlap::Overlap;
use super::ranks::Ranks;
use super::table::{FirstLengths, RunView, Step};
use super::window::Trail;

/// Cached keys of first blocks, by length, so that several slices need not hash them again.
const FIRST_KEYS: usize = 64;

/// Working memory of a walk.
#[derive(Debug, Default)]
pub(super) struct WalkScratch {
    pub(super) branches: Vec<Branch>,
    /// The current run of the walk.
    pub(super) run: RunView,
    pub(super) first_keys: FirstKeys,
    pub(super) firsts: Vec<FirstBlocks>,
}

/// A branch to follow: a block that may be the first of a run, and the ranks that hold all blocks
/// before it.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) slice: usize,
    pub(super) at: Step,
    /// Overlap up to the block.
    pub(super) before: Overlap,
    pub(super) ranks: Ranks,
    /// Ranks with windows among them.
    pub(super) trails: Vec<Trail>,
}

impl Branch {
    /// A branch that begins with a first block.
    pub(super) fn first(slice: usize, at: Step) -> Self {
        Self { slice, at, before: Overlap::default(), ranks: Ranks::All, trails: Vec::new() }
    }
}

/// First blocks in a slice.
#[derive(Debug, Default)]
pub(super) struct FirstBlocks {
    pub(super) lengths: FirstLengths,
    /// Blocks of the prompt that belong to the slice and have such a length.
    pub(super) steps: Vec<Step>,
}

/// Keys of the first blocks by length. Lengths that share a place replace each other.
#[derive(Debug)]
pub(super) struct FirstKeys {
    /// A length of 0 means no key.
    lengths: [u16; FIRST_KEYS],
    keys: [u64; FIRST_KEYS],
}

impl Default for FirstKeys {
    fn default() -> Self {
        Self { lengths: [0; FIRST_KEYS], keys: [0; FIRST_KEYS] }
    }
}

impl FirstKeys {
    #[inline]
    pub(super) fn clear(&mut self) {
        self.lengths = [0; FIRST_KEYS];
    }

    #[inline]
    pub(super) fn get(&self, length: u16) -> Option<BlockKey> {
        let place = usize::from(length) % FIRST_KEYS;
        let is_it = self.lengths.get(place).is_some_and(|of| *of == length);
        BlockKey::from_word(self.keys.get(place).copied().filter(|_| is_it)?)
    }

    #[inline]
    pub(super) fn set(&mut self, length: u16, key: BlockKey) {
        let place = usize::from(length) % FIRST_KEYS;
        let places = self.lengths.get_mut(place).zip(self.keys.get_mut(place));
        if let Some((of, word)) = places {
            *of = length;
            *word = key.to_word();
        }
    }
}
