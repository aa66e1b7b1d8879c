//! Snapshots of what the fleet's caches hold: written while the router runs, read when it starts
//! again, so that a restart does not forget. The layout stands in `format`.
//!
//! The codec ([`Header`], [`RankHead`], [`SnapshotEntry`], [`Link`], [`SnapshotReader`]) knows
//! readers and writers of bytes and nothing of threads; [`SnapshotWriter`] and [`SnapshotFile`] put
//! it on disk. Blocking: for threads of their own, never for a shard or the control plane's loop.
//! Limits: one chunk in memory, of a file that is read also its links ([`Paths`]),
//! [`RANKS_MAX`](forebay_base::limits::RANKS_MAX) ranks. Must never trust a length, a count or a
//! checksum that it reads, and never leave half a file where the last whole one was.

mod entry;
mod file;
mod format;
pub mod framing;
mod items;
mod link;
mod paths;
mod rank;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use entry::{SnapshotEntry, TIERS};
pub use file::{Contents, RankPlace, SnapshotFile, SnapshotWriter};
pub use format::{Damage, HEADER_BYTES, Header, SnapshotError, VERSION};
pub use items::{Item, Items};
pub use link::Link;
pub use paths::Paths;
pub use rank::{RankHead, RankName};
pub use reader::{Part, SnapshotReader};
pub use writer::Encoder;
