//! Chooses the rank of a request. Pure: candidates, loads, overlaps and a random source in, a choice out.
//! Called by `shard::request` on the shard's thread; never blocks, never allocates.

mod candidate;
mod cost;
mod model;
mod pick;
mod tiers;

pub use candidate::{Candidates, NoCandidate};
pub use cost::{RankCost, predicted_work_tokens};
pub use model::{ANY_MODEL, NoModel, cache_namespace, model};
pub use pick::{BYTES_PER_TOKEN_DEFAULT, PickRequest, Policy, RoundRobin, pick};
pub use tiers::{TierOverlaps, weigh_tiers};
