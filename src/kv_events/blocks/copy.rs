//! [`RankBlocks`](super::RankBlocks) on their way into a snapshot and out of it.

use super::super::paths::naming::BlockText;
use super::super::ranks::rank_copy::{BlocksCopy, RestoredBlocks};
use super::RankBlocks;

impl<T: BlockText> RankBlocks<T> {
    /// A copy of everything but orphans, for another thread to read while the feed continues.
    #[must_use]
    pub fn copy(&self) -> BlocksCopy {
        BlocksCopy {
            kept: self.ledger.copy(),
            trees: self.trees,
            groups: self.groups.clone(),
            recent: self.recent.links(),
        }
    }

    /// From now on copies contain the links of the blocks stored last.
    pub fn keep_recent(&mut self) {
        self.recent.enable();
    }

    /// Takes over the blocks from before a restart, when blocks of the device had that size.
    pub fn restore(&mut self, restored: RestoredBlocks, block_size_tokens: u32) {
        self.sizes.restore(block_size_tokens);
        debug_assert!(self.is_empty(), "restored over something");
        self.trees |= restored.trees;
        self.ledger = restored.ledger;
        self.groups = restored.groups;
        if !self.groups.forgetful.is_empty() {
            // A snapshot does not contain windows.
            self.windows.lose();
        }
    }
}
