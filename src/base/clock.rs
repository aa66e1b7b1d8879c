//! The only module that reads clocks.

use super::NanosSinceStart;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Handle to the process clock. Copied to every thread at start; all copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: u64,
}

impl Clock {
    /// Starts the clock. Called once, in `main`, before any thread starts.
    #[must_use]
    pub fn start() -> Self {
        Self { start: monotonic_ns() }
    }

    /// Time since [`Clock::start`]. Costs about 23 ns.
    #[must_use]
    pub fn now(&self) -> NanosSinceStart {
        NanosSinceStart(monotonic_ns().saturating_sub(self.start))
    }
}

/// Time since 1970, for data that outlives the process. It may jump.
#[must_use]
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Nanoseconds of the monotonic clock. A request reads it a dozen times; the arithmetic of
/// `std::time::Instant` costs more than the reading.
fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// CPU time of all threads of the process, ended threads included, in nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
