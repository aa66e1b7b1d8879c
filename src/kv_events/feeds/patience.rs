//! Rates of reconnections and of log lines of a feed.

use super::timers::FeedTimers;
use std::time::Duration;
use tokio::time::Instant;

/// Shortest time between two log lines of a [`LogLimit`].
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Time between attempts to connect.
pub(crate) struct Backoff {
    pause: Duration,
    pause_max: Duration,
    /// The outage has been logged.
    pub(crate) is_reported: bool,
}

impl Backoff {
    pub(crate) fn new(timers: &FeedTimers) -> Self {
        Self { pause: timers.backoff, pause_max: timers.backoff_max(), is_reported: false }
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(self.pause_max);
        pause
    }
}

/// Keeps a stream that breaks again and again from filling the log.
#[derive(Default)]
pub(crate) struct LogLimit {
    logged_at: Option<Instant>,
    suppressed: u64,
}

impl LogLimit {
    /// Admits a log line, and returns the number of lines suppressed before it; `None` suppresses
    /// the line.
    pub(crate) fn admit(&mut self) -> Option<u64> {
        if self.logged_at.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.logged_at = Some(Instant::now());
        Some(std::mem::take(&mut self.suppressed))
    }
}
