//! How long a feed waits for what. The router runs on the defaults; tests hand in shorter times.

use std::time::Duration;

/// Times of a feed.
#[derive(Clone, Copy, Debug)]
pub struct FeedTimers {
    /// A publisher that was silent for so long is asked for a sign of life; after as long again it
    /// counts as gone.
    pub heartbeat: Duration,
    /// Longest wait for the next batch of a replay; idle engines look at their replay socket ten
    /// times a second.
    pub replay_silence_max: Duration,
    /// Longest recovery of a rank that was followed before: until it is over, what is held is old.
    pub recovery_max: Duration,
    /// Pause after a failed replay; doubles up to 30 times as long.
    pub replay_pause: Duration,
    /// Silence of the live stream after which the engine is asked whether it has published more;
    /// doubles up to 12 times as long while nothing happens.
    pub audit_after: Duration,
    /// The same right after joining: publishers take note of a subscriber in their own time, and
    /// what they publish between the end of the replay and that moment is not sent to it.
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
    /// All times divided by `factor`.
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

    pub(super) fn replay_pause_max(&self) -> Duration {
        self.replay_pause * 30
    }

    pub(super) fn audit_after_max(&self) -> Duration {
        self.audit_after * 12
    }

    pub(super) fn backoff_max(&self) -> Duration {
        self.backoff * 20
    }
}
