//! The fleet as data. The control plane publishes immutable snapshots, shared by `Arc`. The load
//! board is the only shared mutable state: padded atomics, a cell per rank.

mod board;
mod breaker;
mod cache_writes;
mod doubt;
mod ejection;
mod first_token_counts;
mod fleet;
mod kv_report;
mod kv_transfer;
mod learned_limit;
mod learned_limits;
mod limit_source;
mod load;
mod model;
mod nearness;
mod notes;
mod past;
mod pinned;
pub mod pools;
mod prompt_counts;
mod queue_tenants;
mod queue_cell;
mod refusal;
mod report;
mod room_limits;
mod session;
mod shard_board;
mod signs;
mod tag;
#[cfg(any(test, feature = "test_support"))]
pub mod test_support;
mod unstreamed;
mod window;

pub use board::LoadBoard;
pub use breaker::{
    BreakerClaim, BreakerRules, FailureScope, FailureWeight, HeldFailures, RankFailure,
};
pub use cache_writes::CacheWrites;
pub use doubt::Suspect;
pub use ejection::EjectReason;
pub use first_token_counts::FirstTokenCounts;
pub use fleet::{Dialect, FleetSnapshot, Pool, Rank, Serving, TierRanks, Worker, WorkerState};
pub use kv_report::KvReport;
pub use kv_transfer::{Bootstrap, KvTransfer, Leg, MooncakeSource, PushSource, Role};
pub use learned_limit::{LearnedLimit, LimitReport};
pub use learned_limits::LearnedLimits;
pub use limit_source::{EngineLimits, LimitSource, PlacesLimit};
pub use load::RankLoad;
pub use model::{ANY_MODEL, Model, ModelKind, ModelText};
pub use notes::{NoteSink, SentNote, ShardNote};
pub use past::RankPast;
pub use pinned::{PinnedPrefixes, PrefixPins};
pub use queue_cell::{QueueCell, QueueFull, QueueLimits};
pub use queue_tenants::QueueDemand;
pub use report::{
    ForeignLoad, LoadReading, LoadReport, LoadReports, OwnLoad, ReportWeight, TokenProgress,
};
pub use room_limits::{RoomDemand, RoomLimits};
pub use session::{SESSION_DRAW_END, SESSION_NAME_BYTES_MAX, SessionKey, SessionSeat};
pub use shard_board::ShardBoard;
pub use signs::{FirstBytes, RankSigns};
pub use tag::Requester;
pub use unstreamed::{PassedPrompts, PromptNumber, PromptSlot, UnstreamedPrompts};
pub use window::{WindowOrigin, Windows};
