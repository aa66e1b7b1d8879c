//! Chooses the rank of a request: what each rank holds of its prompt, what each would cost, the
//! choice. Pure: candidates, loads, overlaps and a random source in, a choice out.
//! Called by `shard::request` on the shard's thread; never blocks, never allocates.

mod because;
mod bind;
mod candidate;
mod cost;
mod match_request;
mod matched;
mod model;
mod naming;
mod noted;
mod pick;
mod prices;
mod prompt;
mod prompt_size;
mod reach;
mod route;
mod session;
mod sources;
mod speeds;
mod tiers;
mod told;
mod usable;

pub use because::{Because, most_held};
pub use bind::Binder;
pub use candidate::{Candidates, NoCandidate, Seeking};
pub use cost::{CostParts, RankCost, RankNow, RankWork, predicted_work};
pub use match_request::MatchRequest;
pub use matched::Matched;
pub use model::{NoModel, cache_namespace, model};
pub use naming::served_as;
pub use noted::noted_keys;
pub use pick::{
    BYTES_PER_TOKEN_DEFAULT, PickRequest, Policy, RoundRobin, lease_cost, output_tokens, pick,
};
pub use prices::Prices;
pub use prompt::Prompt;
pub use prompt_size::PromptSize;
pub use reach::reaches;
pub use route::{NoPair, Route, RouteRequest, RouteRules, WholeBecause, route};
pub use session::is_anchor;
pub use tiers::{TierOverlaps, weigh_tiers};
pub use told::ToldPaths;

#[cfg(test)]
mod route_tests;
