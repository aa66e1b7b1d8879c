//! Says admit or reject before any work is done for a request: exact limits of what a shard holds at once.
//! Runs on the shard's thread; state is plain cells of that shard.

mod in_flight;

pub use in_flight::{Admitted, Full, InFlight};
