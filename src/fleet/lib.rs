//! What Forebay's threads know of workers and ranks, and what they tell each other.
//!
//! - [`worker`]: the fleet, the load board, windows and breakers.
//! - [`account`]: leases and counters.
//! - [`admit`]: limits in flight and drain rates.
//! - [`mailbox`]: messages between threads.

pub mod account;
pub mod admit;
pub mod mailbox;
pub mod worker;
