//! Forebay: an LLM request router and dataplane for vLLM and SGLang servers.
//!
//! # Threads
//! One pinned OS thread per configured core (a *shard*) runs `monoio` on its own io_uring and owns
//! one of everything a request needs: listener, connections, upstream pools, timers, its slice of
//! the radix index. One control thread runs `tokio`: KV-event feeds, health, discovery, admin HTTP.
//! The planes meet in [`mailbox`] and nowhere else.
//!
//! # The path of a request
//! `ingress → parse → admit → render → index → select → queue → dispatch → relay → account`, called
//! in this order by `shard/request.rs`, the file to open first. From select on it does what the
//! machine of [`request`] says.
//!
//! # Import order
//! The list below *is* the import order: a module may use only what stands above it
//! (`tests/house` keeps this true).

#![cfg_attr(
    any(feature = "loom", fuzzing),
    allow(dead_code, unused_imports, reason = "their users are not compiled")
)]

// Things.
pub mod base;
pub mod log;
pub mod framing;
pub mod ring;
pub mod config;
pub mod http1;
pub mod block;
pub mod snapshot;
pub mod chat;
pub mod worker;
pub mod account;
pub mod mailbox;
// Stages, in the order a request meets them.
pub mod ingress;
pub mod parse;
pub mod admit;
pub mod render;
pub mod index;
pub mod select;
pub mod queue;
pub mod handoff;
pub mod dispatch;
pub mod relay;
// What the stages decide together, without any I/O.
pub mod request;
// Planes. Neither loom's models nor fuzz targets need all of them, and both are built anew for each
// run of the tests.
#[cfg(not(any(feature = "loom", fuzzing)))]
pub mod shard;
#[cfg(not(feature = "loom"))]
pub mod control;
#[cfg(not(feature = "loom"))]
pub mod record;
#[cfg(not(any(feature = "loom", fuzzing)))]
pub mod server;
// Programs built from the above.
#[cfg(all(feature = "engine", not(any(feature = "loom", fuzzing))))]
pub mod engine;
#[cfg(all(feature = "engine", not(any(feature = "loom", fuzzing))))]
pub mod demo;
#[cfg(not(any(feature = "loom", fuzzing)))]
pub mod cli;
