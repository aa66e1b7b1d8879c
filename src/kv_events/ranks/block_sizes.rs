//! Size of the blocks that a rank has stored on its device.

use crate::outcome::BatchOutcome;
use forebay_kv_decode::{BlockStored, Medium};

/// Size in tokens, 0 while unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockSizes {
    /// Size of whole blocks, as reported last.
    pub(crate) usual: u32,
}

impl BlockSizes {
    /// Takes the size of stored blocks.
    pub(crate) fn take(&mut self, stored: &BlockStored<'_>, outcome: BatchOutcome) {
        let is_known = matches!(outcome, BatchOutcome::Applied | BatchOutcome::Orphaned);
        if !is_known || stored.medium != Medium::Device {
            return;
        }
        let size = stored.block_size_tokens;
        // Some engines also report part blocks in a finer size, from which the size of whole blocks
        // does not follow.
        if stored.group.is_none() || size >= self.usual {
            self.usual = size;
        }
    }
}
