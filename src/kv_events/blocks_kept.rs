//! [`RankBlocks`](super::RankBlocks) on their way into a snapshot and out of one.

use super::super::copies::{KeptBlocks, RestoredBlocks};
use super::super::naming::BlockText;
use super::RankBlocks;

impl<T: BlockText> RankBlocks<T> {
    /// A copy of everything but orphans, to be looked at elsewhere while this goes on.
    #[must_use]
    pub fn kept(&self) -> KeptBlocks {
        KeptBlocks {
            kept: self.held.kept(),
            trees: self.trees,
            groups: self.groups.clone(),
            recent: self.recent.links(),
        }
    }

    /// From now on copies tell where the blocks belong that came last.
    pub fn keep_recent(&mut self) {
        self.recent.keep();
    }

    /// Holds what was held before a restart, when the device's blocks were of that size.
    pub fn restore(&mut self, restored: RestoredBlocks, block_size_tokens: u32) {
        self.device_block_tokens = block_size_tokens;
        debug_assert!(self.is_empty(), "restored over something");
        self.trees |= restored.trees;
        self.held = restored.held;
        self.groups = restored.groups;
        if !self.groups.forgetful.is_empty() {
            // A snapshot has nothing of windows.
            self.windows.lose();
        }
    }
}
