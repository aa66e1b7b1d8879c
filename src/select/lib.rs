//! Chooses the rank of a request: overlap of each rank with the prompt, cost of each rank, choice.
//! Pure: candidates, loads, overlaps and a random source in, a choice out. Called by
//! `dataplane::request` on the shard's thread; never blocks, never allocates.

mod choice_reason;
mod beside;
mod bind;
mod candidate;
mod cost;
mod match_request;
mod matched;
mod model;
mod naming;
mod part_keys;
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
mod reported;
mod usable;

pub use bind::Binder;
pub use candidate::{Candidates, NoCandidate, RankSearch};
pub use choice_reason::{ChoiceReason, most_held};
pub use cost::{CostParts, RankCost, RankSnapshot, RankWork, predicted_work};
pub use match_request::MatchRequest;
pub use matched::PromptOverlaps;
pub use model::{NoModel, cache_namespace, model};
pub use naming::served_as;
pub use part_keys::prompt_part_keys;
pub use pick::{
    BYTES_PER_TOKEN_DEFAULT, PickRequest, Policy, RoundRobin, lease_cost, output_tokens, pick,
};
pub use prices::Prices;
pub use prompt::Prompt;
pub use prompt_size::PromptSize;
pub use reach::reaches;
pub use reported::ReportedPaths;
pub use route::{NoPair, Route, RouteRequest, RouteRules, WholeReason, route};
pub use session::is_anchor;
pub use tiers::{TierOverlaps, weigh_tiers};

#[cfg(test)]
mod route_tests;
