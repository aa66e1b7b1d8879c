//! The load of a router on its ranks, as a turn takes it, and that of the other replicas, as shards
//! take it.

use super::wire::WindowLeg;
use forebay_base::{NanosSinceStart, PoolIndex};

/// What this router has on a rank at the moment of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalRank {
    /// Requests in flight there.
    pub places: Local,
    /// Tokens in the rank's KV cache.
    pub kv: Local,
    /// Prompt tokens sent and not yet answered.
    pub prefill: u64,
}

/// The part of one limit that a router has, and could use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// The limit; 0 for none.
    pub max: u64,
    /// What this router has there.
    pub held: u64,
    /// What this router could use.
    pub want: u64,
}

/// A window that this router has open.
#[derive(Clone, Debug)]
pub struct LocalWindow {
    /// The pool whose window it is.
    pub pool: PoolIndex,
    /// Which of the model's pools that is.
    pub leg: WindowLeg,
    /// Models that the pool serves.
    pub models: Vec<String>,
    /// The moment when it closes.
    pub until: NanosSinceStart,
}

/// What other replicas hold on a rank, for the shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// Requests in flight there.
    pub places: u64,
    /// Tokens in the rank's KV cache.
    pub kv: u64,
    /// Prompt tokens without a first token.
    pub prefill: u64,
}
