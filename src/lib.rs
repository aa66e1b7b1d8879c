//! Forebay: an LLM request router and dataplane for vLLM and SGLang servers.
//!
//! # Threads
//! One pinned OS thread per configured core (a *shard*) runs `monoio` on its own io_uring and owns one
//! of everything a request needs: listener, connections, upstream pools, timers, its slice of the radix
//! index. One control thread runs `tokio`: KV-event feeds, health, discovery, admin HTTP. The planes
//! meet in [`mailbox`] and nowhere else.
//!
//! # The path of a request
//! `ingress → parse → admit → render → index → select → dispatch → relay → account`, called in this order by
//! `shard/request.rs`, the file to open first.
//!
//! # Import order
//! The list below *is* the import order: a module may use only what stands above it
//! (`tests/house.rs` keeps this true).

// Things.
pub mod account;
pub mod base;
pub mod block;
pub mod chat;
pub mod config;
pub mod http1;
pub mod mailbox;
pub mod ring;
pub mod worker;
// Stages, in the order a request meets them.
pub mod admit;
pub mod dispatch;
pub mod index;
pub mod ingress;
pub mod parse;
pub mod relay;
pub mod render;
pub mod select;
// Planes.
pub mod control;
pub mod server;
pub mod shard;
// Programs built from the above.
pub mod engine;
// Runs engines and a router.
pub mod demo;
// Runs all programs.
pub mod cli;
