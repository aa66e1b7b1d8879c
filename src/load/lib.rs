//! Load reports of engines, apart from sockets.
//!
//! Owns the three forms of a report ([`metrics`], [`json`], [`stat`]), their readings and faults
//! ([`readings`]), and the [`reporter`], which compares readings with this router's requests in
//! flight and sends reports to the shards. [`plan`] defines the source of a worker's reports,
//! [`pace`] the interval of its scrapes. Runs on the control plane's thread, called by the tasks
//! that scrape and subscribe. Limits: [`readings`] bounds each number, [`pace`] keeps scrapes to a
//! share of the engine's time. Must never trust a number, or wait for a shard.

mod births;
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
