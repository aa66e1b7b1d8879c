//! API keys of clients. The file has a table for each key, with the key's hash and never the key.
//! Shards look a key up in an immutable [`KeyRing`].
//!
//! A client may send a JSON Web Token instead. [`TokenVerifier`] checks it, and [`TokenCache`]
//! caches the tokens that a shard has verified.
//!
//! Parsing and lookup are pure. Only [`read`] and [`change`] access the disk, and shards call
//! neither.

mod digest;
mod document;
mod file;
mod key_ring;
mod token;
mod token_cache;
mod token_keys;
mod token_signature;

pub use digest::{FreshKey, KEY_START, KeyDigest};
pub use document::{KeyFault, add, parse, remove};
pub use file::{KeyFileError, change, read, read_token_keys};
pub use key_ring::{KeyRing, StoredKey, UnservedModel};
pub use token::{TokenGrant, TokenRules, TokenVerifier};
pub use token_cache::TokenCache;
pub use token_keys::{TokenKey, TokenKeys};
