//! Models of every protocol between threads, checked over all interleavings and all values that the
//! memory model allows: `tools/ci/30-loom`. The code under test is the code that ships, on loom's
//! atomics (`ring/sync.rs`).
#![cfg(feature = "loom")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a model that fails must stop")]
#![allow(clippy::print_stdout, reason = "says how much was explored")]

mod doorbell;
mod doubts;
mod index;
mod latest;
mod prefixes;
mod queue_cell;
mod rank_room;
mod rings;
mod tenants;
mod unstreamed;
mod windows;
