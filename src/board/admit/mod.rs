//! Admits or rejects a request before any work is done for it: exact limits of requests and bytes
//! that a shard holds at once. Runs on the shard's thread; state is plain cells of that shard.

mod drain_rate;
mod drain_rates;
mod in_flight;

pub use drain_rate::{BEFORE_JITTER_MAX, DrainRate, EndedSample, later_by_chance};
pub use drain_rates::DrainRates;
pub use in_flight::{AdmittedRequest, ExceededLimit, HeldBytes, InFlight};
