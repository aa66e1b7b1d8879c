//! Owner of the KV-event feeds.

mod adapter_loads;
mod adapters;
mod kv_feeds;
mod kv_pools;
mod snapshots;

pub(super) use adapter_loads::{AdapterLoads, LoadOutcome};
pub(super) use kv_feeds::{FeedSetup, Feeds};
pub use snapshots::refuse_snapshot;
pub(super) use snapshots::{Setup as SnapshotSetup, Snapshots, answer};
