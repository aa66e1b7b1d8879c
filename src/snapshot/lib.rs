//! Snapshots of the blocks in the fleet's caches: written while the router runs, and read when it
//! starts, so that a restart keeps the index. `format` documents the layout.
//!
//! The codec ([`Header`], [`RankHead`], [`SnapshotEntry`], [`Link`], [`SnapshotReader`]) reads and
//! writes bytes and has no threads; [`SnapshotWriter`] and [`SnapshotFile`] work on disk. Blocking:
//! for separate threads, never for a shard or the control plane's loop. Limits: a single chunk in
//! memory, with the links ([`Paths`]) of a file that is read, and
//! [`RANKS_MAX`](forebay_base::limits::RANKS_MAX) ranks. Must never trust a length, a count or a
//! checksum of a file, and never replace a whole file by half a file.

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
