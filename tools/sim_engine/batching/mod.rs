//! The ranks: schedules, caches and the time of the engine.

pub(crate) mod prefix_cache;
pub(crate) mod rank_stats;
mod rank_time;
pub(crate) mod ranks;
pub(crate) mod schedule;
