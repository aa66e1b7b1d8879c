//! A pool that several ranks share (Mooncake store, HiCache L3, LMCache): each rank can load blocks
//! that any of the ranks stored. A [`PoolBlocks`] per pool and model, shared by the feeds of its
//! ranks, on the control plane's thread. The index treats a pool like a rank.
//!
//! | the event is about | the pool | the rank's own tiers |
//! |---|---|---|
//! | the pool: shared, `REMOTE`, or disks | stores and removes | unchanged |
//! | the host's memory | stores: engines write through to the pool | change as without a pool |
//! | the device, or all (cleared) | unchanged | change as without a pool |
//!
//! Stores of a pool are not counted: the first removal takes a block out. A block also expires
//! `kv.tier_ttl` after its last store, because pools evict without an event, and no rank reports
//! removals by another rank. So the blocks counted here are an upper bound. At `entries_max` the
//! blocks with the oldest stores make room.

use super::blocks::RankBlocks;
use super::outcome::BatchOutcome;
use super::paths::naming::{BlockText, Naming};
use super::paths::slice_ops::SliceOps;
use super::paths::tier::{Tier, Tree};
use forebay_base::limits::KV_BATCH_OPS_MAX;
use forebay_base::{RankIndex, ShardIndex};
use forebay_index::KvBatch;
use forebay_kv_decode::{BlockRemoved, BlockStored, Medium};
use std::time::Duration;
use tokio::time::Instant;

/// The blocks of a model in a pool.
#[derive(Debug)]
pub struct PoolBlocks<T> {
    blocks: RankBlocks<T>,
    number: RankIndex,
    /// A time, and the number that the next orphan had then.
    orphans_seen: Option<(Instant, u64)>,
    /// Operations of all feeds of the pool that are not posted yet, in their order.
    ops: SliceOps,
}

/// Blocks that an event changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventScope {
    /// Only the blocks of the rank.
    Rank,
    /// The blocks of the rank; stores also change the pool.
    RankAndPool,
    /// Only the blocks of the pool.
    Pool,
}

impl EventScope {
    /// The scope of events about that medium.
    pub(super) const fn of(medium: Medium) -> Self {
        match medium {
            Medium::Device | Medium::Unknown => Self::Rank,
            Medium::Host => Self::RankAndPool,
            Medium::Disk | Medium::Shared => Self::Pool,
        }
    }
}

impl<T: BlockText> PoolBlocks<T> {
    /// An empty pool, which the index knows by `number`.
    #[must_use]
    pub fn new(naming: Naming<T>, entries_max: usize, ttl: Duration, number: RankIndex) -> Self {
        let ops = SliceOps::new(naming.shard_count);
        let blocks = RankBlocks::of_pool(naming, entries_max, ttl);
        Self { blocks, number, orphans_seen: None, ops }
    }

    /// Blocks expire `ttl` after their last store from now on.
    pub fn set_ttl(&mut self, ttl: Duration) {
        self.blocks.set_ttl(ttl);
    }

    /// Decoder of its token ids.
    #[must_use]
    pub fn text(&self) -> Option<&T> {
        self.blocks.text()
    }

    /// The number of the pool in the index.
    #[must_use]
    pub const fn number(&self) -> RankIndex {
        self.number
    }

    /// Blocks stored and neither removed nor expired.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Memory of the blocks and their orphans.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.blocks.size().bytes
    }

    /// Applies a store. Prompts are looked up under the root of the rank's blocks, which have
    /// `block_size_tokens`, or 0 while that size is unknown.
    pub fn stored(&mut self, event: &BlockStored<'_>, block_size_tokens: u32) -> BatchOutcome {
        self.blocks.set_root_tokens(block_size_tokens);
        let event = BlockStored { medium: Medium::Disk, ..*event };
        self.blocks.make_room(&event, &mut self.ops);
        let outcome = self.blocks.stored(&event, &mut self.ops);
        if self.blocks.contradicts_itself() {
            self.blocks.clear(&mut self.ops);
        }
        outcome
    }

    /// Applies a removal; unknown hashes are ignored.
    pub fn removed(&mut self, event: &BlockRemoved<'_>) -> BatchOutcome {
        let event = BlockRemoved { medium: Medium::Disk, ..*event };
        self.blocks.removed(&event, &mut self.ops)
    }

    /// Takes out at most `most` expired blocks; false if there may be more.
    pub fn expire(&mut self, now: Instant, most: usize) -> bool {
        let next = self.blocks.next_orphan();
        let (since, first) = *self.orphans_seen.get_or_insert((now, next));
        if self.blocks.drop_waited_orphans(now.saturating_duration_since(since), first) {
            self.orphans_seen = Some((now, next));
        }
        self.blocks.expire(now, most, &mut self.ops).is_done
    }

    /// Takes out at most `most` blocks, the oldest stores first; true once the pool is empty.
    pub fn shed(&mut self, most: usize) -> bool {
        let is_done = self.blocks.shed(most, &mut self.ops) == 0;
        if is_done {
            self.blocks.clear(&mut self.ops);
        }
        is_done
    }

    /// The operations to post next, which stay until [`Self::posted`].
    #[must_use]
    pub fn next_batch(&self) -> Option<(ShardIndex, KvBatch)> {
        let (slice, ops) = self.ops.next_of(Tier::Disk)?;
        let ops = ops.iter().take(KV_BATCH_OPS_MAX).copied().collect();
        Some((slice, KvBatch { rank: self.number, ops }))
    }

    /// Drops the first `count` operations of a slice, which have been posted.
    pub fn posted(&mut self, slice: ShardIndex, count: usize) {
        let of_slice = |(tree, of, _): &(Tree, ShardIndex, &mut _)| {
            *tree == Tree::Tier(Tier::Disk) && *of == slice
        };
        if let Some((_, _, ops)) = self.ops.trees_mut().find(of_slice) {
            drop(ops.drain(..count.min(ops.len())));
        }
    }
}
