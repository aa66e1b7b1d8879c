//! Output of feeds: operations for the owner of a slice, notices for the control plane.

use forebay_base::{RankIndex, ShardIndex};
use forebay_fleet::worker::TierRanks;
use forebay_index::KvBatch;
use std::rc::Rc;

/// Sink of operations: the rings of the shards, or a test.
pub trait KvPort {
    /// Sends a batch to the shard that owns the slice; returns it when the ring is full.
    fn post(&self, slice: ShardIndex, batch: KvBatch) -> Result<(), KvBatch>;
}

impl<P: KvPort> KvPort for Rc<P> {
    fn post(&self, slice: ShardIndex, batch: KvBatch) -> Result<(), KvBatch> {
        P::post(self, slice, batch)
    }
}

/// A change of a feed that concerns routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedNotice {
    pub rank: RankIndex,
    /// True while the feed follows events.
    pub live: bool,
    /// Tokens per block as reported in events, 0 before the first.
    pub block_size_tokens: u32,
    /// The replay endpoint belongs to another engine, as far as its answers show.
    pub has_foreign_replay: bool,
    /// Numbers of the rank's lower tiers and windows in the index.
    pub tiers: TierRanks,
}
