//! Load reports: what engines say of their load, as far as it needs no socket.
//!
//! Owns the three forms of a report ([`metrics`], [`json`], [`stat`]), the readings and faults that
//! come of them ([`readings`]), and the [`reporter`], which compares readings with what this router
//! has in flight and hands reports to the shards. [`plan`] says where the reports of a worker come
//! from, [`pace`] how often the worker is asked. Runs on the control plane's thread; the tasks that
//! ask and listen call it. Limits: [`readings`] says which numbers are believed, [`pace`] keeps the
//! questions to a share of the engine's time. Must never trust a number, or wait for a shard.

mod exposition;
mod json;
mod metrics;
mod pace;
mod plan;
mod readings;
mod reporter;
mod stat;
#[cfg(test)]
mod tests;

pub use exposition::{Sample, samples};
pub use json::read_loads;
pub use metrics::read_metrics;
pub use pace::Pace;
pub use plan::{AnnouncedLoad, LoadPlan, PlannedRank, ReportSource};
pub use readings::{ReadFault, Readings};
pub use reporter::{LoadReporter, SCRAPE_BOUNDS, Scrapes};
pub use stat::read_load_stat;
