//! KV-event feeds: KV events of engines in, index operations out.
//!
//! Owns a [`Feed`] task per rank, all on the control plane's thread. The path of a message is
//! `socket → rank → decode → blocks → ring`; everything between the socket and the ring is sans-IO.
//! Limits: per feed, a message of at most [`MESSAGE_BYTES_MAX`](forebay_zmq::zmtp) with its
//! operations; per rank, `entries_max` blocks. Must never block the thread, drop an operation, or
//! trust a length of a message.

mod applying;
mod blocks;
mod copies;
mod counters;
mod expiry;
mod feed;
mod fit;
mod follow;
#[cfg(test)]
mod feed_tests;
mod held;
#[cfg(test)]
mod lies_tests;
mod holding;
mod naming;
mod opaque;
mod orphans;
mod outcome;
mod patience;
mod pool;
mod pooled;
mod port;
mod rank;
mod recent;
mod recovery;
#[cfg(test)]
mod restore_tests;
mod replays;
mod restored;
mod restoring;
mod sequence;
mod shared_state;
mod slice_ops;
mod status;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "test_support"))]
pub mod test_support;
mod tier;
mod timers;
mod windows;

pub use blocks::RankBlocks;
pub use copies::{Groups, KeptBlocks, RestoredBlocks};
pub use counters::{BatchResult, Dropped, EventKind, FeedCounters, ReplayResult, ResetReason};
pub use feed::{Feed, FeedSpec};
pub use fit::TextFit;
pub use held::{Kept, TRACKED_BLOCK_BYTES};
pub use holding::{Expired, FeedHolding, OrphansGone};
pub use naming::{BlockText, NamedImages, Naming};
pub use outcome::BatchOutcome;
pub use pool::PoolBlocks;
pub use pooled::keep_pool;
pub use port::{FeedNotice, KvPort};
pub use rank::{RankFeed, RankState, TakenMessage, Taking};
pub use restored::Restored;
pub use restoring::{Left, Restoring};
pub use sequence::Arrived;
pub use shared_state::{SharedPool, SharedState};
pub use slice_ops::SliceOps;
pub use status::{FeedState, FeedStatus};
pub use tier::{LowerTiers, Tier, TierNumbers, Tree};
pub use timers::FeedTimers;
pub use windows::Resume;
