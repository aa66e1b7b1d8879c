//! Expected cost and accounted use of requests: leases on ranks, counters, latencies. Each shard
//! owns its counters and histograms and is their only writer; the control plane reads.

mod blame_scope;
mod choice_counts;
mod count;
mod counters;
mod first_tokens;
mod held_tokens;
mod latency;
mod lease;
mod metric;
mod no_continuation;
mod rows;
mod tenant_result;
mod ttft_history;

pub use blame_scope::BlameScope;
pub use choice_counts::{ChoiceCounts, RankCount, TTFT_BOUNDS_NS};
pub use count::Count;
pub use counters::{NO_ENDPOINT, REASONS_MAX};
pub use counters::{OVERLAP_ERROR_BLOCKS_MAX, ShardCounters, ShardPhase};
pub use first_tokens::{FirstTokenKind, FirstTokens};
pub use held_tokens::PromptPrefixes;
pub use latency::{Stage, StageHistograms};
pub use lease::{BodyStart, FailedTrial, Lease, LeaseCost, LeaseRequest};
pub use metric::{Metric, MetricKind};
pub use no_continuation::NoContinuation;
pub use tenant_result::TenantResult;
pub use ttft_history::{TtftHistory, TtftMean};
