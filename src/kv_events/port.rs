//! What feeds hand on: operations to the owner of a slice, notices to the control plane.

use forebay_base::{RankIndex, ShardIndex};
use forebay_fleet::worker::TierRanks;
use forebay_index::KvBatch;
use std::rc::Rc;

/// Where operations go: the rings of the shards, or a test.
pub trait KvPort {
    /// Hands a batch to the shard that owns the slice; gives it back when the ring is full.
    fn post(&self, slice: ShardIndex, batch: KvBatch) -> Result<(), KvBatch>;
}

impl<P: KvPort> KvPort for Rc<P> {
    fn post(&self, slice: ShardIndex, batch: KvBatch) -> Result<(), KvBatch> {
        P::post(self, slice, batch)
    }
}

/// What a feed tells the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedNotice {
    /// Which rank.
    pub rank: RankIndex,
    /// True while events are followed.
    pub live: bool,
    /// Tokens per block as seen in events, 0 before the first.
    pub block_size_tokens: u32,
    /// Where the index has what its lower tiers hold.
    pub tiers: TierRanks,
}
