//! What the benches share: stub workers and client connections in one loop on one thread
//! ([`Rig`]), the readers of requests and answers, and CPU time of threads.
//!
//! Cheap on purpose: a worker never copies a body, and an answer is read in place.
#![allow(
    clippy::indexing_slicing,
    reason = "a bench that is wrong stops; all indexes are its own numbers"
)]

mod answer;
mod connection;
mod cpu;
mod event;
mod poll;
mod request;
mod rig;
mod stub;

pub use answer::{AnswerReader, Part, decimal, field};
pub use connection::Connection;
pub use cpu::{CpuMeter, threads, threads_named};
pub use event::{Event, EventReader};
pub use poll::{Poller, Token};
pub use rig::Rig;
pub use stub::{StreamPlan, Stub, StubCounts, unary_body};
