//! The fleet as data. The control plane publishes immutable snapshots, shared by `Arc`. The load
//! board is the only shared mutable state: padded atomics, a cell per rank.

mod board;
mod faults;
mod counts;
mod fleet;
mod kv_transfer;
mod limits;
mod load;
mod model;
mod nearness;
mod notes;
pub mod pools;
mod queues;
mod report;
mod session;
mod shard_board;
#[cfg(any(test, feature = "test_support"))]
pub mod test_support;

pub use board::LoadBoard;
pub use counts::cache_writes::CacheWrites;
pub use counts::first_token_counts::FirstTokenCounts;
pub use counts::kv_report::KvReport;
pub use counts::past::RankPast;
pub use counts::pinned::{PinnedPrefixes, PrefixPins};
pub use counts::signs::{FirstBytes, RankSigns};
pub use counts::unstreamed::{PassedPrompts, PromptNumber, PromptSlot, UnstreamedPrompts};
pub use faults::breaker::{
    BreakerClaim, BreakerRules, FailureScope, FailureWeight, HeldFailures, RankFailure,
};
pub use faults::doubt::Suspect;
pub use faults::ejection::EjectReason;
pub use faults::tag::Requester;
pub use fleet::{Dialect, FleetSnapshot, Pool, Rank, Serving, TierRanks, Worker, WorkerState};
pub use kv_transfer::{Bootstrap, KvTransfer, Leg, MooncakeSource, PushSource, Role};
pub use limits::learned_limit::{LearnedLimit, LimitReport};
pub use limits::learned_limits::LearnedLimits;
pub use limits::limit_source::{EngineLimits, LimitSource, PlacesLimit};
pub use limits::room_limits::{RoomDemand, RoomLimits};
pub use load::RankLoad;
pub use model::{ANY_MODEL, EngineTexts, Model, ModelKind, ModelText};
pub use notes::{NoteSink, SentNote, ShardNote};
pub use queues::queue_cell::{QueueCell, QueueFull, QueueLimits};
pub use queues::queue_tenants::QueueDemand;
pub use queues::window::{WindowOrigin, Windows};
pub use report::{
    ForeignLoad, LoadReading, LoadReport, LoadReports, OwnLoad, ReportWeight, TokenProgress,
};
pub use session::{SESSION_DRAW_END, SESSION_NAME_BYTES_MAX, SessionKey, SessionSeat};
pub use shard_board::ShardBoard;
