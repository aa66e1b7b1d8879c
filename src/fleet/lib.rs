//! The fleet as immutable data, published by the control plane. No atomics, no I/O, no clock.
//!
//! - [`trust`]: what engines report as cached against what was predicted.
//! - [`tenant`]: tenants, the API keys that identify them, and limits per minute.
//! - [`worker`]: workers, ranks, models, pools and sessions.

pub mod tenant;
pub mod trust;
pub mod worker;
