//! Replays a trace against the router's decisions and simulated ranks, in virtual time. The index,
//! predictions, selection, leases, queues and the request state machine are the production code.
//! The ranks are a model: steps in which prefill and decode share the time, and a KV cache.
//!
//! | file | holds |
//! |---|---|
//! | `world` | the order of events; open this file first |
//! | `plan` | what a run simulates: ranks, load, seed |
//! | `routers` | a router, or replicas in front of the same ranks |
//! | `production_router`, `prompt_text` | the router's own code, as a shard runs it |
//! | `fleet`, `messages` | what the router gets: its fleet, messages of other replicas |
//! | `rivals` | rules of other routers, from their descriptions |
//! | `engine`, `kv_cache`, `cache_blocks`, `host_tier` | a rank: its steps, its blocks |
//! | `pool_estimate` | a router's estimate of the pool that ranks share |
//! | `speed` | how long steps take, with the source of each figure |
//! | `trace`, `trace_file`, `generate` | requests and their times |
//! | `summary`, `series`, `index_memory` | figures of the run, in all and over time |
//! | `live`, `live_figures` | requests that arrive while the run goes on, for `forebay shadow` |
//! | `bound` | the same requests under a clairvoyant assignment |
//!
//! A run is a function of its trace, its plan and its seed. Nothing here reads a clock.
#![allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "no input of a client comes here; places come from the trace, and figures are small"
)]

mod ranks;
mod bound;
mod fleet;
mod traces;
mod index_memory;
mod messages;
mod plan;
mod rivals;
mod routers;
mod series;
mod production_router;
mod summary;
mod live_figures;
mod world;
mod live;

pub use bound::{BoundError, SegmentBound, SegmentFigures, TraceSegment, bound};
pub use live::{LiveFleet, LivePrompt};
pub use live_figures::LiveFigures;
pub use plan::{BlockRoom, SimPlan};
pub use ranks::speed::{ModelSpeed, SpeedError, StepCost, TransferCost};
pub use rivals::{Rival, Rule};
pub use routers::{LentClock, RouterUse};
pub use series::{RunSeries, TtftPoint};
pub use summary::PolicySummary;
pub use traces::generate::Scenario;
pub use traces::trace::{Trace, TraceRequest, TurnStart};
pub use traces::trace_file::{TraceError, read};
pub use world::{EngineLoad, PolicyRun, RunObserver, run, simulate};

#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod sim_tests;
