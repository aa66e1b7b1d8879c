//! What Forebay's threads know of workers and ranks, and what they tell each other.
//!
//! - [`worker`]: the fleet, the load board, windows and breakers.
//! - [`account`]: leases and counters.
//! - [`admit`]: limits in flight and drain rates.
//! - [`tenant`]: tenants, and the keys that say who is one.
//! - [`mailbox`]: messages between threads.

pub mod account;
pub mod admit;
pub mod mailbox;
pub mod tenant;
pub mod worker;
