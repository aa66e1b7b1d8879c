//! Working memory of a walk, kept from request to request.

use super::key::BlockKey;
use super::overlap::Overlap;
use super::ranks::Ranks;
use super::table::Seen;
use super::window::Trail;

/// Lengths of first blocks whose keys are kept, so that several slices need not hash them again.
const FIRST_KEYS: usize = 64;

/// What a walk needs beside the prompt; kept from request to request.
#[derive(Debug, Default)]
pub(super) struct WalkScratch {
    pub(super) branches: Vec<Branch>,
    /// The run that the walk is in.
    pub(super) run: Seen,
    pub(super) first_keys: FirstKeys,
}

/// One way on: a block that may be the first of a run, and the ranks that hold all before it.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) slice: usize,
    pub(super) key: BlockKey,
    /// Found up to the block, and the prompt bytes up to its end.
    pub(super) before: Overlap,
    pub(super) bytes: u32,
    pub(super) ranks: Ranks,
    /// Ranks with windows among them.
    pub(super) trails: Vec<Trail>,
}

/// Keys of the first blocks by their length: the last one of those that share a place.
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
