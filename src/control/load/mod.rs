//! Load reports: what engines say of their load, read and handed to the shards.
//!
//! One task per worker asks over HTTP ([`poll`]), and one per rank listens to what SGLang publishes
//! ([`push`]); both read with the sans-IO functions below and lay their readings on the [`desk`],
//! which compares them with what this router has in flight and passes them on. Limits: one answer
//! of 8 MiB or one message of 64 MiB under way per task, [`pace`] keeps the questions to a share of
//! the engine's time. Must never trust a number, wait for a shard, or take a worker out.

mod desk;
mod json;
mod pace;
mod plan;
mod poll;
mod push;
mod readings;
mod stat;
mod tasks;
#[cfg(test)]
mod tests;
mod text;

pub(super) use desk::{LoadReporter, SCRAPE_BOUNDS};
pub use json::read_loads;
pub(super) use plan::{LoadPlan, PlannedRank, ReportSource};
pub use readings::{ReadFault, Readings};
pub use stat::read_load_stat;
pub(super) use tasks::LoadTasks;
pub use text::read_metrics;
