//! Simulated ranks: steps, caches and tiers.

pub(crate) mod believed_pool;
pub(crate) mod engine;
mod held;
pub(crate) mod host_tier;
pub(crate) mod kv_cache;
pub(crate) mod speed;
