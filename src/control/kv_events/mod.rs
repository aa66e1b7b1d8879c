//! KV-event feeds: what engines say about their caches, turned into index operations.
//!
//! Owns one [`Feed`] task per rank, all on the control plane's thread. The path of a message is
//! `socket → rank → decode → blocks → ring`; everything between the socket and the ring is sans-IO. Limits: one
//! message of 64 MiB and its operations per feed, and `entries_max` blocks per rank. Must never block the thread,
//! drop an operation, or trust a length it reads.

mod blocks;
mod counters;
mod decode;
mod endpoint;
mod event;
mod feed;
mod held;
mod holding;
mod msgpack;
mod naming;
mod opaque;
mod orphans;
mod outcome;
mod rank;
mod sequence;
mod slice_ops;
mod socket;
#[cfg(test)]
mod tests;
mod tier;
mod zmtp;

pub use blocks::RankBlocks;
pub use counters::{BatchResult, EventKind, FeedCounters, ResetReason};
pub use decode::{BatchHead, Decoder};
pub use endpoint::{Endpoint, EndpointError, Place, Side};
pub use event::{Event, Medium, Removed, Stored};
pub use feed::{Feed, FeedNotice, FeedSpec, KvPort, TierNumbers};
pub use held::TRACKED_BLOCK_BYTES;
pub use holding::{Holding, OrphansGone};
pub use msgpack::MsgpackError;
pub use naming::{BlockText, Naming};
pub use outcome::Outcome;
pub use rank::{RankFeed, Taken};
pub use slice_ops::SliceOps;
pub use socket::{Connection, SocketError, Source, encode_message};
pub use tier::{LowerTiers, Tier};
pub use zmtp::ZmtpError;
