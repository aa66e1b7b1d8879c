//! Chooses the rank of a request: overlap of each rank with the prompt, cost of each rank, choice.
//! Pure: candidates, loads, overlaps and a random source in, a choice out. Called by
//! `dataplane::request` on the shard's thread; never blocks, never allocates.

mod choice_reason;
mod matching;
mod bind;
mod candidate;
mod pricing;
mod model;
mod naming;
mod pick;
mod reach;
mod route;
mod session;
mod sources;
mod usable;

pub use bind::Binder;
pub use candidate::{Candidates, NoCandidate, RankSearch};
pub use choice_reason::{ChoiceReason, most_held};
pub use matching::match_request::MatchRequest;
pub use matching::part_keys::prompt_part_keys;
pub use matching::prompt::Prompt;
pub use matching::prompt_overlaps::PromptOverlaps;
pub use matching::prompt_size::PromptSize;
pub use matching::reported_paths::ReportedPaths;
pub use matching::tiers::{TierOverlaps, weigh_tiers};
pub use model::{NoModel, cache_namespace, model};
pub use naming::{is_settled, served_as, unserved_adapters, unserved_tables};
pub use pick::{
    BYTES_PER_TOKEN_DEFAULT, PickRequest, Policy, RoundRobin, lease_cost, output_tokens, pick,
};
pub use pricing::cost::{CostParts, RankCost, RankSnapshot, RankWork, predicted_work};
pub use pricing::prices::Prices;
pub use reach::reaches;
pub use route::{NoPair, Route, RouteRequest, RouteRules, WholeReason, route};
pub use session::is_anchor;

#[cfg(test)]
mod route_tests;
