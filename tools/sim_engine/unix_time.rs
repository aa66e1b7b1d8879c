//! Time of day, for answers, events and logs of engines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970. Jumps when the system's clock is set.
pub(super) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whole seconds since 1970.
pub(super) fn unix_time_s() -> u64 {
    unix_time().as_secs()
}
