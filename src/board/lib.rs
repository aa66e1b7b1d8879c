//! State that all threads share: atomics of ranks, queues and tenants, and what a request takes and
//! gives back there. `tools/ci/30-loom` checks the protocols.
//!
//! - [`LoadBoard`]: a cell per rank, per queue and per tenant, the rejection windows, and the bells
//!   of the shards.
//! - [`account`]: leases and counters.
//! - [`admit`]: limits in flight and drain rates.

pub mod account;
pub mod admit;
mod counts;
mod faults;
mod limits;
mod load_board;
mod queues;
mod rank_load;
#[cfg(all(test, not(feature = "loom")))]
mod rank_load_tests;
mod report;
mod shard_board;
mod tenant_board;

pub use counts::cache_writes::CacheWrites;
pub use counts::first_token_counts::FirstTokenCounts;
pub use counts::foreign_requests::ForeignOrigin;
pub use counts::kv_report::KvReport;
pub use counts::pinned_prefixes::{PinnedPrefixes, PrefixPins};
pub use counts::rank_past::RankPast;
pub use counts::rank_signs::{FirstBytes, RankSigns};
pub use counts::unstreamed_prompts::{PassedPrompts, PromptNumber, PromptSlot, UnstreamedPrompts};
pub use faults::breaker::{
    BreakerClaim, BreakerRules, FailureScope, FailureWeight, HeldFailures, RankFailure, is_refusal,
};
pub use faults::comparison_turn::ComparisonTurn;
pub use faults::ejection::EjectReason;
pub use faults::suspect::Suspect;
pub use limits::learned_limit::{LearnedLimit, LimitReport};
pub use limits::learned_limits::LearnedLimits;
pub use load_board::LoadBoard;
pub use queues::queue_cell::{QueueCell, QueueFull, QueueLimits};
pub use queues::queue_tenants::QueueDemand;
pub use queues::window::{WindowCause, WindowOrigin, Windows};
pub use rank_load::RankLoad;
pub use report::{
    ForeignLoad, LoadReading, LoadReport, LoadReports, OwnLoad, ReportWeight, TokenProgress,
};
pub use shard_board::ShardBoard;
pub use tenant_board::{InFlightCount, TenantBoard, TenantCell};
