//! API keys of clients: who a key is. The file has one table for each key, with the key's hash and
//! never the key. Shards look a key up in a [`KeyRing`], which never changes.
//!
//! Parsing and lookup are pure. Only [`read`] and [`change`] touch the disk, and shards call
//! neither.

mod digest;
mod document;
mod file;
mod key_ring;

pub use digest::{FreshKey, KeyDigest};
pub use document::{KeyFault, add, parse, remove};
pub use file::{KeyFileError, change, read};
pub use key_ring::{KeyRing, StoredKey};
