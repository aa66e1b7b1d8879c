//! The data plane: pinned threads (*shards*) that own a copy of everything that a request needs.
//! `request/serve.rs` calls the phases of a request in order and is the file to open first.
//!
//! Limits: `limits.connections_max`, `limits.in_flight_max`, `limits.buffered_bytes_max` per shard;
//! the rings of `forebay_mailbox`. A shard never waits for another thread, never locks,
//! never resolves names, never opens files. The manifest names no `tokio`, `axum` or `reqwest`.
//!
//! The list of rooms *is* their import order: a room may use only rooms above it (`tests/house`).

pub mod ingress;
pub mod runtime;
pub mod relay;
mod state;
mod story;
mod exchange;
mod intake;
mod reply;
mod resolve;
mod overlap;
mod pair;
mod send;
mod resume;
mod request;
mod conn;
mod thread;

pub use thread::run::{ShardSetup, ShardThread, run};
