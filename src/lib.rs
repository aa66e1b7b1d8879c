//! Forebay: an LLM request router and dataplane for vLLM and SGLang servers.
//!
//! # Threads
//! A pinned OS thread per configured core (a *shard*) runs its own io_uring and owns everything
//! that a request needs: listener, connections, upstream pools, timers, its slice of the radix
//! index. A control thread runs `tokio`: KV-event feeds, health, discovery, admin HTTP. The planes
//! meet in [`mailbox`] and nowhere else.
//!
//! # The path of a request
//! `ingress → parse → admit → render → index → select → queue → dispatch → relay → account`, called
//! in this order by `dataplane/request/serve.rs`, the file to open first. From select on it
//! executes the actions of the state machine in [`request`].
//!
//! # Rooms
//! A room that must not depend on other rooms is a crate of this workspace: its manifest lists its
//! dependencies. The list of modules here *is* their import order: a module may use only modules
//! above it (`tests/house` enforces this).

pub use forebay_admin as admin;
pub use forebay_base as base;
pub use forebay_board::{self as board, account, admit};
pub use forebay_config as config;
pub use forebay_dataplane::{ingress, relay, runtime};
pub use forebay_disagg as disagg;
pub use forebay_discovery as discovery;
pub use forebay_fleet::worker;
pub use forebay_http1 as http1;
pub use forebay_index as index;
pub use forebay_keys as keys;
pub use forebay_kv_decode as kv_decode;
pub use forebay_kv_events as kv_events;
pub use forebay_load as load;
pub use forebay_mailbox as mailbox;
pub use forebay_prompt::{parse, render};
pub use forebay_record as record;
pub use forebay_replicas as replicas;
pub use forebay_ring as ring;
pub use forebay_router::{dispatch, queue, request};
pub use forebay_select as select;
#[cfg(feature = "engine")]
pub use forebay_sim_engine as engine;
pub use forebay_snapshot as snapshot;
pub use forebay_text as text;
pub use forebay_zmq as zmq;

mod worker_lines;
pub mod log;
mod port_holder;
pub mod start_error;
pub mod server;
#[cfg(feature = "engine")]
pub mod demo;
pub mod cli;
