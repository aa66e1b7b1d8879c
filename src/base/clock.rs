//! The one place that reads the monotonic clock.

use super::NanosSinceStart;
use std::time::Instant;

/// Handle to the process clock. Copied to every thread at start; all copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts the clock. Called once, in `main`, before any thread starts.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Time since [`Clock::start`]. Costs about 23 ns.
    #[must_use]
    pub fn now(&self) -> NanosSinceStart {
        NanosSinceStart(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
