//! KV-event feeds: KV events of engines in, index operations out.
//!
//! Owns a [`Feed`] task per rank, all on the control plane's thread. The path of a message is
//! `socket → rank → decode → blocks → ring`; everything between the socket and the ring is sans-IO.
//! Limits: per feed, a message of at most [`forebay_zmq::zmtp::MESSAGE_BYTES_MAX`] with its
//! operations; per rank, `entries_max` blocks. Must never block the thread, drop an operation, or
//! trust a length of a message.

mod event_target;
mod block_sizes;
mod blocks;
mod rank_copy;
mod counters;
mod expiry;
mod feed;
mod text_fit;
mod follow;
#[cfg(test)]
mod feed_tests;
mod ledger;
#[cfg(test)]
mod hostile_tests;
mod feed_size;
mod naming;
mod opaque;
mod orphans;
mod outcome;
mod patience;
mod pool;
mod pool_task;
mod port;
mod rank;
mod recent_links;
mod recovery;
mod relay;
#[cfg(test)]
mod report_tests;
#[cfg(test)]
mod restore_tests;
mod replays;
mod restore;
mod restore_builder;
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
pub use counters::{BatchResult, Dropped, EventKind, FeedCounters, ReplayResult, ResetReason};
pub use feed::{Feed, FeedSpec};
pub use feed_size::{ExpiryTurn, FeedSize, OrphanOutcomes};
pub use ledger::{LedgerCopy, TRACKED_BLOCK_BYTES};
pub use naming::{BlockText, NamedImages, Naming};
pub use outcome::BatchOutcome;
pub use pool::PoolBlocks;
pub use pool_task::run_pool;
pub use port::{FeedNotice, KvPort};
pub use rank::{MessageProgress, MessageResult, RankFeed, RankState};
pub use rank_copy::{BlocksCopy, Groups, RestoredBlocks};
pub use restore::FeedRestore;
pub use restore_builder::{Left, RestoreBuilder};
pub use sequence::BatchArrival;
pub use shared_state::{SharedPool, SharedState};
pub use slice_ops::SliceOps;
pub use status::{FeedState, FeedStatus};
pub use text_fit::TextFit;
pub use tier::{LowerTiers, Tier, TierNumbers, Tree};
pub use timers::FeedTimers;
pub use windows::Resume;
