//! Descriptions of workers: engine, models, ranks, limits, and missing features.

pub(crate) mod capacity;
pub(crate) mod engine_report;
pub(crate) mod event_announcement;
pub(crate) mod describe;
pub(crate) mod description;
#[cfg(test)]
mod description_tests;
pub(crate) mod examination;
pub(crate) mod kv_source;
pub(crate) mod missing_features;
pub(crate) mod contradictions;
pub(crate) mod registry;
pub(crate) mod suspect_feeds;
#[cfg(test)]
mod suspect_feeds_tests;
