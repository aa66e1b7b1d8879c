//! State of workers and ranks that Forebay's threads share, and the messages between threads.
//!
//! - [`worker`]: the fleet, the load board, windows and breakers.
//! - [`trust`]: what engines report as cached against what was predicted.
//! - [`account`]: leases and counters.
//! - [`admit`]: limits in flight and drain rates.
//! - [`tenant`]: tenants, and the API keys that identify them.
//! - [`mailbox`]: messages between threads.

pub mod account;
pub mod admit;
pub mod mailbox;
pub mod tenant;
pub mod trust;
pub mod worker;
