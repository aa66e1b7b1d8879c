//! State of workers and ranks that Forebay's threads share, and the messages between threads.
//!
//! - [`worker`]: the fleet, the load board, windows and breakers.
//! - [`account`]: leases and counters.
//! - [`admit`]: limits in flight and drain rates.
//! - [`tenant`]: tenants, and the API keys that identify them.
//! - [`mailbox`]: messages between threads.

pub mod account;
pub mod admit;
pub mod mailbox;
pub mod tenant;
pub mod worker;
