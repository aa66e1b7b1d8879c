//! How often a feed tries again, and how often it complains.

use std::time::Duration;
use tokio::time::Instant;

/// Pause before the first reconnection; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Lost batches are reported so often per rank at most.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// Time between attempts to connect.
pub(super) struct Backoff {
    pause: Duration,
    /// The outage has been reported.
    pub(super) silent: bool,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { pause: BACKOFF_MIN, silent: false }
    }
}

impl Backoff {
    pub(super) fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(BACKOFF_MAX);
        pause
    }
}

/// Keeps a stream that is broken again and again from filling the log.
#[derive(Default)]
pub(super) struct Complaints {
    said_at: Option<Instant>,
    unsaid: u64,
}

impl Complaints {
    /// `None`: not now. Else how often it was not said since the last time.
    pub(super) fn say(&mut self) -> Option<u64> {
        if self.said_at.is_some_and(|at| at.elapsed() < COMPLAINT_INTERVAL) {
            self.unsaid += 1;
            return None;
        }
        self.said_at = Some(Instant::now());
        Some(std::mem::take(&mut self.unsaid))
    }
}
