//! KV-event feeds: KV events of engines in, index operations out.
//!
//! Owns a [`Feed`] task per rank, all on the control plane's thread. The path of a message is
//! `socket → rank → decode → blocks → ring`; everything between the socket and the ring is sans-IO.
//! Limits: per feed, a message of at most [`forebay_zmq::zmtp::MESSAGE_BYTES_MAX`] with its
//! operations; per rank, `entries_max` blocks. Must never block the thread, drop an operation, or
//! trust a length of a message.

mod ranks;
mod blocks;
mod counters;
mod feeds;
mod ledger;
#[cfg(test)]
mod hostile_tests;
mod paths;
mod outcome;
mod pool;
#[cfg(test)]
mod report_tests;
mod status;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "test_support"))]
pub mod test_support;

pub use blocks::RankBlocks;
pub use counters::{BatchResult, DropReason, EventKind, FeedCounters, ReplayResult, ResetReason};
pub use feeds::feed::{Feed, FeedSpec};
pub use feeds::feed_size::{ExpiryTurn, FeedSize, OrphanOutcomes};
pub use feeds::pool_task::run_pool;
pub use feeds::port::{FeedNotice, KvPort};
pub use feeds::timers::FeedTimers;
pub use ledger::{LedgerCopy, TRACKED_BLOCK_BYTES};
pub use outcome::BatchOutcome;
pub use paths::naming::{BlockText, NamedImages, Naming};
pub use paths::slice_ops::SliceOps;
pub use paths::tier::{LowerTiers, Tier, TierNumbers, Tree};
pub use paths::windows::Resume;
pub use pool::PoolBlocks;
pub use ranks::rank::{MessageProgress, MessageResult, RankFeed, RankState};
pub use ranks::rank_copy::{BlocksCopy, Groups, RestoredBlocks};
pub use ranks::restore::FeedRestore;
pub use ranks::restore_builder::{OmittedEntries, RestoreBuilder};
pub use ranks::sequence::BatchArrival;
pub use ranks::shared_state::{SharedPool, SharedState};
pub use ranks::text_fit::TextFit;
pub use status::{FEED_HELP, FeedState, FeedStatus, HealthAtFault};
