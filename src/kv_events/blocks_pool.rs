//! [`RankBlocks`](super::RankBlocks) of a pool that ranks share: all in one tier, behind none.

use super::super::held::HeldBlocks;
use super::super::naming::{BlockText, Naming};
use super::super::tier::LowerTiers;
use super::RankBlocks;
use std::time::Duration;

impl<T: BlockText> RankBlocks<T> {
    /// Each block is there or not, whoever and however often stored it.
    pub(crate) fn of_pool(naming: Naming<T>, entries_max: usize, ttl: Duration) -> Self {
        Self {
            lower_tiers: LowerTiers { host: false, disk: true, ttl },
            held: HeldBlocks::of_pool(ttl),
            ..Self::new(naming, entries_max)
        }
    }

    /// Sequences to come start under the root of blocks of that size, if it is known.
    pub(crate) fn set_root_tokens(&mut self, block_size_tokens: u32) {
        if block_size_tokens > 0 {
            self.device_block_tokens = block_size_tokens;
        }
    }
}
