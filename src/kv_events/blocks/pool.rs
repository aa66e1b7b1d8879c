//! [`RankBlocks`](super::RankBlocks) of a pool that ranks share: all in the tier of disks.

use super::super::ledger::Ledger;
use super::super::paths::naming::{BlockText, Naming};
use super::super::paths::slice_ops::SliceOps;
use super::super::paths::tier::{LowerTiers, Tier};
use super::{NO_GROUP, RankBlocks};
use forebay_kv_decode::{Attention, BlockStored};
use std::time::Duration;

/// Blocks that leave a full pool at a time, so that not each event looks for the oldest blocks.
const SHED_AT_ONCE: usize = 1_024;
/// At most this part of a pool's limit leaves at a time.
const SHED_PART: usize = 64;
/// An orphan waits for 1 to 2 times the pool's time to live divided by this.
const ORPHAN_PART: u32 = 8;

impl<T: BlockText> RankBlocks<T> {
    /// An empty pool. Stores of a block are not counted, so the first removal takes it out.
    pub(crate) fn of_pool(naming: Naming<T>, entries_max: usize, ttl: Duration) -> Self {
        Self {
            lower_tiers: LowerTiers { host: false, disk: true, ttl },
            ledger: Ledger::of_pool(ttl, entries_max),
            ..Self::new(naming, entries_max)
        }
    }

    pub(crate) fn text(&self) -> Option<&T> {
        self.naming.text.as_ref()
    }

    /// Later sequences start under the root of blocks of that size; 0 changes nothing.
    pub(crate) fn set_root_tokens(&mut self, block_size_tokens: u32) {
        if block_size_tokens > 0 {
            self.sizes.device_tokens = block_size_tokens;
        }
    }

    /// Sheds the oldest stores of a full pool before it takes the event. Blocks that the event
    /// stores again are renewed first, so they stay.
    pub(crate) fn make_room(&mut self, event: &BlockStored<'_>, ops: &mut SliceOps) {
        let most = self.ledger.len() + event.hashes.len();
        if most <= self.entries_max || event.attention != Attention::Whole {
            return;
        }
        let mut wanted = most - self.entries_max;
        for &hash in event.hashes {
            let id = self.id(hash, event.group.unwrap_or(NO_GROUP));
            if self.ledger.get(id).is_some() {
                self.ledger.renew(id, Tier::Disk);
                wanted = wanted.saturating_sub(1);
            }
        }
        if wanted > 0 {
            let part = SHED_AT_ONCE.min(self.entries_max / SHED_PART);
            self.shed(wanted.max(part).min(self.entries_max / 2), ops);
        }
    }

    /// Takes out at most `most` blocks, the oldest stores first; returns how many.
    pub(crate) fn shed(&mut self, most: usize, ops: &mut SliceOps) -> u64 {
        let oldest = self.ledger.take_oldest(Tier::Disk, most);
        self.lose_all(&oldest, Tier::Disk, ops)
    }

    /// The number that the next orphan will have.
    pub(crate) fn next_orphan(&self) -> u64 {
        self.orphans.next_number()
    }

    /// Drops the orphans before that number if they have waited for an eighth of the time to live;
    /// true if so. They must not wait longer, since the age of a block starts when it is adopted.
    pub(crate) fn drop_waited_orphans(&mut self, waited: Duration, number: u64) -> bool {
        let ttl = self.lower_tiers.ttl;
        let is_due = !ttl.is_zero() && waited >= ttl / ORPHAN_PART;
        if is_due {
            self.orphan_outcomes.dropped += self.orphans.forget_before(number);
        }
        is_due
    }

    /// Blocks expire `ttl` after their last store from now on.
    pub(crate) fn set_ttl(&mut self, ttl: Duration) {
        self.lower_tiers.ttl = ttl;
        self.ledger.set_ttl(ttl);
    }
}
