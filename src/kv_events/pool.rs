//! A pool that several ranks share (Mooncake store, HiCache L3, LMCache): what one of them stores
//! there, all of them can load. One [`PoolBlocks`] per pool and model, shared by the feeds of its
//! ranks, on the control plane's thread. In the index it is like a rank of its own.
//!
//! | the event is about | the pool | the rank's own tiers |
//! |---|---|---|
//! | the pool: shared, `REMOTE`, or disks | stores and removes | nothing |
//! | the host's memory | stores: engines write on to the pool | as ever |
//! | the device, or all (cleared) | nothing | as ever |
//!
//! A block is there or not, whoever and however often stored it. A block goes with one removal, and
//! `kv.tier_ttl` after its last store in any case: pools evict without a word, and no rank hears
//! what another one removed. So what a pool holds is an upper bound. At `entries_max` the blocks
//! that were stored longest ago go first.

use super::blocks::RankBlocks;
use super::naming::{BlockText, Naming};
use super::outcome::BatchOutcome;
use super::slice_ops::SliceOps;
use super::tier::{Tier, Tree};
use forebay_base::limits::KV_BATCH_OPS_MAX;
use forebay_base::{RankIndex, ShardIndex};
use forebay_index::KvBatch;
use forebay_kv_decode::{Medium, Removed, Stored};
use std::time::Duration;
use tokio::time::Instant;

/// What a pool holds of one model.
#[derive(Debug)]
pub struct PoolBlocks<T> {
    blocks: RankBlocks<T>,
    number: RankIndex,
    /// A look at the time, and the number of the orphan that came next.
    orphans_seen: Option<(Instant, u64)>,
    /// Operations of all its feeds that are not posted, in their order.
    ops: SliceOps,
}

/// Whose an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InPool {
    /// It is the rank's alone.
    No,
    /// The rank's, and what it stores goes on to the pool.
    Too,
    /// It is the pool's alone.
    Alone,
}

impl InPool {
    /// By where the blocks lie.
    pub(super) const fn of(medium: Medium, remote: bool) -> Self {
        match (medium, remote) {
            (Medium::Device | Medium::Unknown, _) => Self::No,
            (Medium::Host, false) => Self::Too,
            (Medium::Host, true) | (Medium::Disk | Medium::Shared, _) => Self::Alone,
        }
    }
}

impl<T: BlockText> PoolBlocks<T> {
    /// Holds nothing yet. In the index it has that number.
    #[must_use]
    pub fn new(naming: Naming<T>, entries_max: usize, ttl: Duration, number: RankIndex) -> Self {
        let ops = SliceOps::new(naming.shard_count);
        let blocks = RankBlocks::of_pool(naming, entries_max, ttl);
        Self { blocks, number, orphans_seen: None, ops }
    }

    /// Believes stores so long from now on.
    pub fn set_ttl(&mut self, ttl: Duration) {
        self.blocks.set_ttl(ttl);
    }

    /// What its blocks are read by.
    #[must_use]
    pub fn text(&self) -> Option<&T> {
        self.blocks.text()
    }

    /// Its number in the index.
    #[must_use]
    pub const fn number(&self) -> RankIndex {
        self.number
    }

    /// Blocks that it is believed to hold.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Memory of what is known of it.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.blocks.holding().bytes
    }

    /// Takes a store. Prompts are looked for under the root of the rank's blocks, which have
    /// `block_size_tokens`; 0 if that is not known yet.
    pub fn stored(&mut self, event: &Stored<'_>, block_size_tokens: u32) -> BatchOutcome {
        self.blocks.set_root_tokens(block_size_tokens);
        let event = Stored { medium: Medium::Disk, remote: false, ..*event };
        self.blocks.make_room(&event, &mut self.ops);
        let outcome = self.blocks.stored(&event, &mut self.ops);
        if self.blocks.contradicts_itself() {
            self.blocks.clear(&mut self.ops);
        }
        outcome
    }

    /// Takes a removal; unknown hashes are ignored.
    pub fn removed(&mut self, event: &Removed<'_>) -> BatchOutcome {
        let event = Removed { medium: Medium::Disk, remote: false, ..*event };
        self.blocks.removed(&event, &mut self.ops)
    }

    /// Takes out what is too old, looking at no more than `most` entries; false if there may be
    /// more.
    pub fn expire(&mut self, now: Instant, most: usize) -> bool {
        let next = self.blocks.next_orphan();
        let (since, first) = *self.orphans_seen.get_or_insert((now, next));
        if self.blocks.forgets_orphans(now.saturating_duration_since(since), first) {
            self.orphans_seen = Some((now, next));
        }
        self.blocks.expire(now, most, &mut self.ops).is_done
    }

    /// Takes out the blocks that were stored longest ago, no more than `most`; true once nothing
    /// is left.
    pub fn shed(&mut self, most: usize) -> bool {
        let is_done = self.blocks.shed(most, &mut self.ops) == 0;
        if is_done {
            self.blocks.clear(&mut self.ops);
        }
        is_done
    }

    /// The operations to be posted next. They stay until they are [`Self::posted`].
    #[must_use]
    pub fn next_batch(&self) -> Option<(ShardIndex, KvBatch)> {
        let (slice, ops) = self.ops.next_of(Tier::Disk)?;
        let ops = ops.iter().take(KV_BATCH_OPS_MAX).copied().collect();
        Some((slice, KvBatch { rank: self.number, ops }))
    }

    /// So many of the operations for a slice have been posted.
    pub fn posted(&mut self, slice: ShardIndex, count: usize) {
        let of_slice = |(tree, of, _): &(Tree, ShardIndex, &mut _)| {
            *tree == Tree::Tier(Tier::Disk) && *of == slice
        };
        if let Some((_, _, ops)) = self.ops.trees_mut().find(of_slice) {
            drop(ops.drain(..count.min(ops.len())));
        }
    }
}
