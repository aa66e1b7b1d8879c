//! Conditions and pauses of ejection, by the configuration.

use forebay_board::EjectReason;
use forebay_config::Config;
use std::time::Duration;

/// Pause of a slow rank, in multiples of `health.slow_after`.
const SLOW_PAUSE: u32 = 3;
/// Requests check their rank each `health.timeout`; a busy shard is at most this late.
const LATE_MAX: Duration = Duration::from_millis(500);
/// Each pause is twice the pause before, at most this many times.
const DOUBLINGS_MAX: u32 = 5;

/// Rules of ejection, copied for each look.
#[derive(Clone, Copy, Debug)]
pub(super) struct EjectionRules {
    /// Zero: stalled ranks are not ejected.
    pub(super) stall_timeout: Duration,
    /// 0: slow ranks are not ejected.
    pub(super) slow_factor: u64,
    pub(super) slow_after: Duration,
    pub(super) share_percent: usize,
    first_pause: Duration,
    /// Time in which requests that wait at a stalled rank notice and leave.
    leaving: Duration,
}

impl EjectionRules {
    pub(super) fn of(config: &Config) -> Self {
        let health = &config.health;
        // Without health checks nothing is ever marked.
        let (stall_timeout, slow_factor) = match health.enabled {
            true => (health.stall_timeout, u64::from(health.slow_factor)),
            false => (Duration::ZERO, 0),
        };
        Self {
            stall_timeout,
            slow_factor,
            slow_after: health.slow_after,
            share_percent: usize::try_from(health.ejected_share_percent).unwrap_or(100),
            first_pause: config.breaker.open,
            leaving: health.timeout.saturating_add(LATE_MAX),
        }
    }

    /// The pause after so many ejections.
    pub(super) fn pause(&self, reason: EjectReason, row: u32) -> Duration {
        let first = match reason {
            EjectReason::Stalled => self.first_pause.max(self.leaving),
            EjectReason::Slow => self.slow_after.saturating_mul(SLOW_PAUSE),
        };
        first.saturating_mul(1 << row.min(DOUBLINGS_MAX))
    }
}
