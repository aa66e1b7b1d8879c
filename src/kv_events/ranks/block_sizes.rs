//! Sizes of the blocks that a rank has stored on its device.

use crate::outcome::BatchOutcome;
use forebay_kv_decode::{Attention, Medium, Stored};

/// Sizes in tokens, 0 while unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockSizes {
    /// Size of whole blocks, as reported last.
    pub(crate) usual: u32,
    /// Smallest size, where blocks have several sizes: their number is then no number of tokens.
    pub(crate) finer: u32,
}

impl BlockSizes {
    /// Takes the size of stored blocks.
    pub(crate) fn take(&mut self, stored: &Stored<'_>, outcome: BatchOutcome) {
        let is_known = matches!(outcome, BatchOutcome::Applied | BatchOutcome::Orphaned);
        if !is_known || stored.medium != Medium::Device {
            return;
        }
        let size = stored.block_size_tokens;
        let is_other = self.usual > 0 && self.usual != size;
        if is_other && stored.attention == Attention::Whole {
            let known = [self.usual, size, self.finer].into_iter().filter(|size| *size > 0);
            self.finer = known.min().unwrap_or_default();
        }
        // Some engines also report part blocks in a finer size, from which the size of whole blocks
        // does not follow.
        if stored.group.is_none() || size >= self.usual {
            self.usual = size;
        }
    }
}
