//! Ids of blocks in [`RankBlocks`](super::RankBlocks): an engine's hash and a group in a word.

use super::super::paths::naming::BlockText;
use super::RankBlocks;

impl<T: BlockText> RankBlocks<T> {
    /// Hash and group in a word, spread over all words by the secret of the process.
    pub(super) fn id(&self, hash: u64, group: u32) -> u64 {
        // The finalizer of SplitMix64: a bijection, so two hashes of a group never share an id.
        let mut word = hash ^ self.naming.seed.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = word.wrapping_add(u64::from(group).wrapping_mul(0xd6e8_feb8_6659_fd93));
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Inverse of [`Self::id`] for a group.
    pub(super) fn hash_of(&self, id: u64, group: u32) -> u64 {
        let mut word = (id ^ id >> 31 ^ id >> 62).wrapping_mul(0x3196_42b2_d24d_8ec3);
        word = (word ^ word >> 27 ^ word >> 54).wrapping_mul(0x96de_1b17_3f11_9089);
        word = word ^ word >> 30 ^ word >> 60;
        word = word.wrapping_sub(u64::from(group).wrapping_mul(0xd6e8_feb8_6659_fd93));
        word ^ self.naming.seed.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
