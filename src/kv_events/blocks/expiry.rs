//! [`RankBlocks`](super::RankBlocks) of tiers without removal events: an entry expires some time
//! after its last store, as if the engine had removed it.

use super::super::feeds::feed_size::ExpiryTurn;
use super::super::paths::naming::BlockText;
use super::super::paths::slice_ops::SliceOps;
use super::super::paths::tier::Tier;
use super::{LedgerEntry, RankBlocks};
use tokio::time::Instant;

impl<T: BlockText> RankBlocks<T> {
    /// Takes out at most `most` expired entries. Call it right before each message and after it.
    /// The call before closes a generation that is a quarter old: stores of the message would join
    /// it and expire with it. The call after dates the stores.
    pub fn expire(&mut self, now: Instant, most: usize, ops: &mut SliceOps) -> ExpiryTurn {
        let mut expired = ExpiryTurn::default();
        let mut left = most;
        for (tier, blocks) in Tier::ALL.into_iter().zip(&mut expired.tier_blocks) {
            let old = self.ledger.take_old(tier, now, left);
            left -= old.len();
            *blocks += self.lose_all(&old, tier, ops);
        }
        expired.is_done = left > 0;
        expired
    }

    /// Earliest time at which an entry may expire.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        self.ledger.next_expiry()
    }

    /// Takes entries out of a tier; returns how many the tier had.
    pub(super) fn lose_all(&mut self, ids: &[u64], tier: Tier, ops: &mut SliceOps) -> u64 {
        let mut count = 0;
        for id in ids {
            if let Some((before, trees)) = self.ledger.take_all(*id, tier) {
                self.lose(before, trees, ops);
                count += 1;
            }
        }
        count
    }

    /// Posts that an entry has left all its trees but `trees`.
    pub(super) fn lose(&self, before: LedgerEntry, trees: u8, ops: &mut SliceOps) {
        let lost = before.state.trees() & !trees;
        if lost & Tier::Device.bit() != 0 {
            self.left_device(before, ops);
        }
        // Windows are by hash, above; trees are by key, which other entries may hold.
        let lost = lost & !self.trees_of_others(before.key, before.id, lost);
        if lost & Tier::Device.bit() != 0 && self.sizes.is_mixed() {
            ops.release_odd(before.state.slice(), before.key);
        }
        ops.remove(lost, before.state.slice(), before.key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::restart_tests::restarted;
    use super::super::tests::{Index, Letters, SHARDS, blocks, keys_of, remove, store};
    use super::super::{BlockRemoved, BlockStored, LowerTiers};
    use super::*;
    use forebay_kv_decode::Medium;
    use std::time::Duration;

    const TTL: Duration = Duration::from_secs(100);
    const AGEING: LowerTiers = LowerTiers { host: true, disk: true, ttl: TTL };

    /// A rank with a device and a host, its part of the index, and a clock.
    struct Rig {
        blocks: RankBlocks<Letters>,
        ops: SliceOps,
        index: Index,
        start: Instant,
    }

    impl Rig {
        fn new(lower_tiers: LowerTiers) -> Self {
            let mut blocks = blocks(10_000);
            blocks.set_lower_tiers(lower_tiers);
            blocks.expect_lower_tiers();
            let ops = SliceOps::new(SHARDS);
            let index = Index::default();
            Self { blocks, ops, index, start: Instant::now() }
        }

        /// The chain `ab`, `cd` in a medium.
        fn store(&mut self, medium: Medium) {
            let event = BlockStored { medium, ..store(None, &[10, 11], &[0, 1, 2, 3]) };
            self.blocks.stored(&event, &mut self.ops);
            self.index.take(&mut self.ops);
        }

        fn remove(&mut self, hashes: &[u64], medium: Medium) {
            self.blocks.removed(&BlockRemoved { medium, ..remove(hashes) }, &mut self.ops);
            self.index.take(&mut self.ops);
        }

        /// Blocks of the host and the disk that are gone at a second.
        fn expired(&mut self, second: u64) -> [u64; 2] {
            let now = self.start + Duration::from_secs(second);
            let expired = self.blocks.expire(now, 1_000, &mut self.ops);
            assert!(expired.is_done);
            self.index.take(&mut self.ops);
            let [device, host, disk] = expired.tier_blocks;
            assert_eq!(device, 0);
            [host, disk]
        }

        fn held(&self) -> [usize; 3] {
            self.index.all_keys().map(|keys| keys.len())
        }
    }

    #[test]
    fn a_tier_without_removals_forgets_and_the_device_does_not() {
        let mut rig = Rig::new(AGEING);
        rig.store(Medium::Device);
        // However often it was stored.
        (0..9).for_each(|_| rig.store(Medium::Host));
        assert_eq!((rig.expired(0), rig.held()), ([0, 0], [2, 2, 2]));
        rig.remove(&[11], Medium::Device);
        assert_eq!((rig.expired(99), rig.held()), ([0, 0], [1, 2, 2]));
        assert_eq!(rig.blocks.next_expiry(), Some(rig.start + TTL));
        assert_eq!((rig.expired(100), rig.held()), ([2, 0], [1, 1, 1]));
        assert_eq!((rig.blocks.len(), rig.blocks.size().tier_blocks), (1, [1, 0, 0]));
        assert_eq!((rig.expired(10_000), rig.blocks.next_expiry()), ([0, 0], None));
        assert_eq!(rig.index.keys(), keys_of(&["ab"]));
    }

    #[test]
    fn a_block_lives_three_quarters_of_the_time_behind_any_silence() {
        for silence in 0..100 {
            let mut rig = Rig::new(AGEING);
            rig.store(Medium::Host);
            rig.expired(0);
            rig.remove(&[11], Medium::Host);
            rig.expired(silence);
            rig.store(Medium::Host);
            rig.expired(silence);
            assert_eq!(rig.expired(silence + 74), [0, 0], "{silence}");
        }
    }

    #[test]
    fn a_block_that_is_stored_again_stays() {
        let mut rig = Rig::new(AGEING);
        rig.store(Medium::Host);
        for second in (0..400).step_by(50) {
            assert_eq!(rig.expired(second), [0, 0], "{second}");
            rig.store(Medium::Host);
        }
        assert_eq!((rig.expired(400), rig.held()), ([0, 0], [0, 2, 2]));
        assert_eq!((rig.expired(500), rig.held()), ([2, 0], [0, 0, 0]));
    }

    #[test]
    fn a_tier_that_has_announced_a_removal_is_believed_until_all_is_cleared() {
        let mut rig = Rig::new(AGEING);
        rig.store(Medium::Host);
        rig.store(Medium::Disk);
        rig.expired(0);
        // Of a block that was never known: the publisher announces removals all the same.
        rig.remove(&[99], Medium::Host);
        assert_eq!((rig.expired(1_000), rig.held()), ([0, 2], [0, 2, 2]));
        rig.blocks.clear(&mut rig.ops);
        rig.index.take(&mut rig.ops);
        assert_eq!(rig.held(), [0, 0, 0]);
        rig.store(Medium::Host);
        assert_eq!((rig.expired(1_000), rig.expired(1_100)), ([0, 0], [2, 0]));
    }

    #[test]
    fn what_was_cleared_leaves_nothing_to_expire() {
        let mut rig = Rig::new(AGEING);
        rig.store(Medium::Host);
        rig.expired(0);
        rig.blocks.clear(&mut rig.ops);
        rig.index.take(&mut rig.ops);
        assert_eq!((rig.blocks.next_expiry(), rig.blocks.size().bytes), (None, 0));
        assert_eq!(rig.expired(1_000), [0, 0]);
    }

    #[test]
    fn zero_turns_expiry_off() {
        let mut rig = Rig::new(LowerTiers { ttl: Duration::ZERO, ..AGEING });
        rig.store(Medium::Host);
        assert_eq!((rig.expired(0), rig.expired(1 << 30)), ([0, 0], [0, 0]));
        assert_eq!((rig.held(), rig.blocks.next_expiry()), ([0, 2, 2], None));
    }

    #[test]
    fn restored_blocks_have_their_whole_time_again() {
        let mut rig = Rig::new(AGEING);
        (0..9).for_each(|_| rig.store(Medium::Host));
        rig.expired(0);
        let links = rig.index.seen.values().copied().collect();
        let (after, ops, _) = restarted(&rig.blocks, links, AGEING, 100);
        let mut again = Rig { blocks: after, ops, index: Index::default(), start: rig.start };
        assert_eq!((again.expired(90), again.held()), ([0, 0], [0, 2, 2]));
        assert_eq!((again.expired(189), again.expired(190)), ([0, 0], [2, 0]));
        assert_eq!((again.held(), again.blocks.len()), ([0, 0, 0], 0));
    }

    #[test]
    fn one_turn_takes_out_so_many() {
        let mut rig = Rig::new(AGEING);
        for number in 0..500_u64 {
            let token = u32::try_from(number).unwrap();
            let hashes = [number];
            let text = [token % 26, token / 26];
            let event = BlockStored { medium: Medium::Host, ..store(None, &hashes, &text) };
            rig.blocks.stored(&event, &mut rig.ops);
        }
        assert!(rig.blocks.expire(rig.start, 100, &mut rig.ops).is_done);
        rig.index.take(&mut rig.ops);
        for turn in 1..=5 {
            let expired = rig.blocks.expire(rig.start + TTL, 100, &mut rig.ops);
            assert_eq!((expired.tier_blocks, expired.is_done), ([0, 100, 0], false), "{turn}");
            rig.index.take(&mut rig.ops);
            assert_eq!(rig.index.all_keys()[1].len(), 500 - 100 * turn);
        }
        assert!(rig.blocks.expire(rig.start + TTL, 100, &mut rig.ops).is_done);
        assert!(rig.blocks.is_empty());
    }
}
