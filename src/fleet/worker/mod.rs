//! The fleet snapshot: workers, ranks, models, pools and sessions, and the rules that read nothing
//! else.

mod engine_losses;
mod feed_suspicion;
mod fleet;
mod generation;
mod kv_transfer;
mod limit_source;
mod model;
mod nearness;
mod notes;
pub mod pools;
mod rank;
mod requester;
mod room_limits;
mod session;
#[cfg(any(test, feature = "test_support"))]
pub mod test_support;

pub use engine_losses::EngineLosses;
pub use feed_suspicion::{EventSocket, FeedSuspicion, OtherFeed, SuspicionSign};
pub use fleet::{Dialect, FleetSnapshot, Pool, Serving, Worker, WorkerState};
pub use generation::WorkerGeneration;
pub use kv_transfer::{Bootstrap, KvTransfer, Leg, MooncakeSource, PushSource, Role};
pub use limit_source::{EngineLimits, LimitSource, PlacesLimit};
pub use model::{ANY_MODEL, EngineTexts, Model, ModelKind, ModelText};
pub use nearness::LoneLeg;
pub use notes::{NoteSink, SentNote, ShardNote};
pub use rank::{Rank, TierRanks};
pub use requester::Requester;
pub use room_limits::{RoomDemand, RoomLimits};
pub use session::{SESSION_DRAW_END, SESSION_NAME_BYTES_MAX, SessionKey, SessionSeat};
