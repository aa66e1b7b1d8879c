//! The data plane: one pinned thread that owns one of everything. `request.rs` calls the stages in
//! order and is the file to open first.
//!
//! Limits: `limits.connections_max`, `limits.in_flight_max`, `limits.buffered_bytes_max` per shard;
//! the rings of `mailbox`. A shard never waits for another thread, never locks, never resolves
//! names, never opens files.

mod abort;
mod adapter;
mod admin_call;
mod answer;
mod arrival;
mod attempt;
mod bill;
mod configure;
mod connect;
mod connection;
mod discard;
mod down;
mod drain;
mod env;
mod facts;
mod handshake;
mod identity;
mod inbox;
mod io;
mod judge;
mod keeping;
mod kept;
mod kept_scan;
mod labels;
mod leg;
mod legs;
mod links;
mod matching;
mod meter;
mod models;
mod naming;
mod open_trace;
mod noted;
mod noting;
mod outbound;
mod own_page;
mod pair;
#[cfg(debug_assertions)]
mod plant;
mod predict;
mod preflight;
mod prefill;
mod pressure;
mod prompt_text;
mod queues;
mod pulse;
mod quota;
mod quota_use;
mod rate_fields;
mod read;
mod record;
mod records;
mod refuse;
mod request;
mod rest;
mod routing;
mod run;
mod slice;
mod slot;
mod slow_log;
mod standing;
mod state;
mod trace_outlet;
mod traces;
mod tunnel;
mod verdict;
mod wait;
mod websocket;
mod workers;

pub use run::{ShardSetup, ShardThread, run};
