//! Timeouts and intervals of a feed. The router runs on the defaults; tests set shorter times.

use std::time::Duration;

/// Timeouts and intervals of a feed.
#[derive(Clone, Copy, Debug)]
pub struct FeedTimers {
    /// A publisher that was silent for this long gets a PING; after as long again the connection
    /// ends.
    pub heartbeat: Duration,
    /// Longest wait for the next batch of a replay; idle engines poll their replay socket ten times
    /// a second.
    pub replay_silence_max: Duration,
    /// Longest recovery of a rank that was followed before; until its end the blocks are out of
    /// date.
    pub recovery_max: Duration,
    /// Pause after a failed replay; doubles up to 30 times as long.
    pub replay_pause: Duration,
    /// Silence of the live stream after which a replay request checks for missed batches; doubles
    /// up to 12 times as long while the stream stays silent.
    pub audit_after: Duration,
    /// The same right after joining: a publisher registers a subscriber with a delay, and does not
    /// send it batches from between the end of the replay and the registration.
    pub audit_joined: Duration,
    /// Pause before the first reconnection; doubles up to 20 times as long.
    pub backoff: Duration,
}

impl Default for FeedTimers {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(5),
            replay_silence_max: Duration::from_secs(2),
            recovery_max: Duration::from_secs(10),
            replay_pause: Duration::from_secs(10),
            audit_after: Duration::from_secs(5),
            audit_joined: Duration::from_millis(500),
            backoff: Duration::from_millis(100),
        }
    }
}

impl FeedTimers {
    /// The same timers, all divided by `factor`.
    #[must_use]
    pub fn faster(self, factor: u32) -> Self {
        Self {
            heartbeat: self.heartbeat / factor,
            replay_silence_max: self.replay_silence_max / factor,
            recovery_max: self.recovery_max / factor,
            replay_pause: self.replay_pause / factor,
            audit_after: self.audit_after / factor,
            audit_joined: self.audit_joined / factor,
            backoff: self.backoff / factor,
        }
    }

    pub(crate) fn replay_pause_max(&self) -> Duration {
        self.replay_pause * 30
    }

    pub(crate) fn audit_after_max(&self) -> Duration {
        self.audit_after * 12
    }

    pub(crate) fn backoff_max(&self) -> Duration {
        self.backoff * 20
    }
}
