//! KV-event feeds: what engines say about their caches, turned into index operations.
//!
//! Owns one [`Feed`] task per rank, all on the control plane's thread. The path of a message is
//! `socket → rank → decode → blocks → ring`; everything between the socket ([`super::zmq`]) and the ring is sans-IO. Limits: one
//! message of 64 MiB and its operations per feed, and `entries_max` blocks per rank. Must never block the thread,
//! drop an operation, or trust a length it reads.

mod blocks;
mod counters;
mod decode;
mod event;
mod feed;
pub(in crate::control) mod msgpack;
mod rank;
mod sequence;
#[cfg(test)]
mod tests;

pub use blocks::{BlockText, Naming, Outcome, RankBlocks, SliceOps};
pub use counters::{BatchResult, EventKind, FeedCounters, ResetReason};
pub use decode::{BatchHead, Decoder};
pub use event::{Event, Medium, Removed, Stored};
pub use feed::{Feed, FeedNotice, FeedSpec, KvPort};
pub use msgpack::MsgpackError;
pub use rank::{RankFeed, Taken};
