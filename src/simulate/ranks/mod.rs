//! Simulated ranks: steps, caches and tiers.

pub(crate) mod pool_estimate;
pub(crate) mod engine;
mod cache_blocks;
pub(crate) mod host_tier;
pub(crate) mod kv_cache;
pub(crate) mod speed;
