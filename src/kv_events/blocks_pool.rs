//! [`RankBlocks`](super::RankBlocks) of a pool that ranks share: all in one tier, behind none.

use super::super::held::HeldBlocks;
use super::super::naming::{BlockText, Naming};
use super::super::slice_ops::SliceOps;
use super::super::tier::{LowerTiers, Tier};
use super::{NO_GROUP, RankBlocks};
use forebay_kv_decode::{Attention, Stored};
use std::time::Duration;

/// Blocks that leave a full pool at a time, so that not each event looks for the oldest ones.
const SHED_AT_ONCE: usize = 1_024;
/// But no larger part of it.
const SHED_PART: usize = 64;
/// An orphan waits for between one and two such parts of the time that blocks are believed.
const ORPHAN_PART: u32 = 8;

impl<T: BlockText> RankBlocks<T> {
    /// Each block is there or not, whoever and however often stored it.
    pub(crate) fn of_pool(naming: Naming<T>, entries_max: usize, ttl: Duration) -> Self {
        Self {
            lower_tiers: LowerTiers { host: false, disk: true, ttl },
            held: HeldBlocks::of_pool(ttl, entries_max),
            ..Self::new(naming, entries_max)
        }
    }

    pub(crate) fn text(&self) -> Option<&T> {
        self.naming.text.as_ref()
    }

    /// Sequences to come start under the root of blocks of that size, if it is known.
    pub(crate) fn set_root_tokens(&mut self, block_size_tokens: u32) {
        if block_size_tokens > 0 {
            self.device_block_tokens = block_size_tokens;
        }
    }

    /// Before a store comes to a full pool: the blocks that were stored longest ago go, those of
    /// the event not among them.
    pub(crate) fn make_room(&mut self, event: &Stored<'_>, ops: &mut SliceOps) {
        let most = self.held.len() + event.hashes.len();
        if most <= self.entries_max || event.attention != Attention::Whole {
            return;
        }
        let mut wanted = most - self.entries_max;
        for &hash in event.hashes {
            let id = self.id(hash, event.group.unwrap_or(NO_GROUP));
            if self.held.get(id).is_some() {
                self.held.renew(id, Tier::Disk);
                wanted = wanted.saturating_sub(1);
            }
        }
        if wanted > 0 {
            let part = SHED_AT_ONCE.min(self.entries_max / SHED_PART);
            self.shed(wanted.max(part).min(self.entries_max / 2), ops);
        }
    }

    /// Takes out the blocks that were stored longest ago, no more than `most`; how many it were.
    pub(crate) fn shed(&mut self, most: usize, ops: &mut SliceOps) -> u64 {
        let oldest = self.held.take_oldest(Tier::Disk, most);
        self.lose_all(&oldest, Tier::Disk, ops)
    }

    /// The number of the orphan that comes next.
    pub(crate) fn next_orphan(&self) -> u64 {
        self.orphans.next_number()
    }

    /// Drops the orphans before that number once they have waited for an eighth of the time that
    /// blocks are believed: adopted, a block begins to age anew. True if so.
    pub(crate) fn forgets_orphans(&mut self, waited: Duration, number: u64) -> bool {
        let ttl = self.lower_tiers.ttl;
        let is_due = !ttl.is_zero() && waited >= ttl / ORPHAN_PART;
        if is_due {
            self.orphans_gone.dropped += self.orphans.forget_before(number);
        }
        is_due
    }

    /// Blocks leave so long after their last store from now on.
    pub(crate) fn set_ttl(&mut self, ttl: Duration) {
        self.lower_tiers.ttl = ttl;
        self.held.set_ttl(ttl);
    }
}
