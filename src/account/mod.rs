//! What a request costs and what it did: leases on ranks, counters, latencies.
//! Each shard owns its counters and histograms and is their only writer; the control plane reads.

mod counters;
mod latency;
mod lease;

pub use counters::{Count, OVERLAP_ERROR_BLOCKS_MAX, ShardCounters, ShardPhase};
pub(crate) use counters::{NO_ENDPOINT, REASONS_MAX};
pub use latency::{Stage, StageHistograms};
pub use lease::{Lease, LeaseCost};
