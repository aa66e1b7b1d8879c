//! Working memory of a walk, reused from request to request.

use super::key::BlockKey;
use super::overlap::Overlap;
use super::ranks::Ranks;
use super::table::RunView;
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
}

/// A branch to follow: a block that may be the first of a run, and the ranks that hold all blocks
/// before it.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) slice: usize,
    pub(super) key: BlockKey,
    /// Overlap up to the block, and prompt bytes up to its end.
    pub(super) before: Overlap,
    pub(super) bytes: u32,
    pub(super) ranks: Ranks,
    /// Ranks with windows among them.
    pub(super) trails: Vec<Trail>,
}

/// Keys of the first blocks by length. Lengths that share a place replace each other.
#[derive(Debug)]
pub(super) struct FirstKeys([Option<(u16, BlockKey)>; FIRST_KEYS]);

impl Default for FirstKeys {
    fn default() -> Self {
        Self([None; FIRST_KEYS])
    }
}

impl FirstKeys {
    #[inline]
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    #[inline]
    pub(super) fn get(
        &mut self,
        length: u16,
        hash: impl FnOnce() -> Option<BlockKey>,
    ) -> Option<BlockKey> {
        let place = self.0.get_mut(usize::from(length) % FIRST_KEYS)?;
        match *place {
            Some((of, key)) if of == length => Some(key),
            _ => {
                let key = hash()?;
                *place = Some((length, key));
                Some(key)
            }
        }
    }
}
