//! The load of this router on its ranks, as input of a turn, and the load of the other replicas,
//! for the shards.

use super::wire::WindowLeg;
use forebay_base::{NanosSinceStart, PoolIndex};

/// This router's load on a rank at the time of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalRank {
    /// Requests in flight there.
    pub places: Local,
    /// Tokens in the rank's KV cache.
    pub kv: Local,
    /// Prompt tokens sent and not yet answered.
    pub prefill: u64,
    /// KV tokens in use there, by the last report of the engine.
    pub kv_in_use: Option<KvInUse>,
}

/// KV tokens in use on a rank, by its engine.
#[derive(Clone, Copy, Debug)]
pub struct KvInUse {
    /// Tokens of all routers' requests. What requests share counts once.
    pub used_tokens: u64,
    /// Time of the report.
    pub at: NanosSinceStart,
    /// The report is too old from then on.
    pub counts_until: NanosSinceStart,
}

/// This router's usage of a limit, and its demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// The limit; 0 for none.
    pub max: u64,
    /// Usage by this router.
    pub held: u64,
    /// Demand of this router.
    pub want: u64,
}

/// An open window of this router.
#[derive(Clone, Debug)]
pub struct LocalWindow {
    /// Pool of the window.
    pub pool: PoolIndex,
    /// Leg of the model that the pool serves.
    pub leg: WindowLeg,
    /// Models that the pool serves.
    pub models: Vec<String>,
    /// Time at which the window closes.
    pub until: NanosSinceStart,
    /// Time at which the part of an operator ends; `None`: no operator holds the window open.
    pub hand_until: Option<NanosSinceStart>,
}

/// Usage of a rank by other replicas, for the shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignUsage {
    /// Requests in flight there.
    pub places: u64,
    /// Tokens in the rank's KV cache.
    pub kv: u64,
    /// Prompt tokens without a first token.
    pub prefill: u64,
}

impl ForeignUsage {
    /// The larger usage of each kind.
    pub(crate) fn larger(self, other: Self) -> Self {
        Self {
            places: self.places.max(other.places),
            kv: self.kv.max(other.kv),
            prefill: self.prefill.max(other.prefill),
        }
    }
}
