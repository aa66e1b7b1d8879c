//! Conditions and pauses of ejection, by the configuration.

use forebay_config::Config;
use forebay_fleet::worker::EjectReason;
use std::time::Duration;

/// The pause of a slow rank, in times of `health.slow_after`.
const SLOW_PAUSE: u32 = 3;
/// Requests look at their rank each `health.timeout`, and a busy shard is late.
const LATE_MAX: Duration = Duration::from_millis(500);
/// Each pause is twice the pause before, so many times.
const DOUBLINGS_MAX: u32 = 5;

/// Copied for each look.
#[derive(Clone, Copy, Debug)]
pub(super) struct EjectionRules {
    /// Zero: ranks that stand still are not ejected.
    pub(super) stall_timeout: Duration,
    /// 0: slow ranks are not ejected.
    pub(super) slow_factor: u64,
    pub(super) slow_after: Duration,
    pub(super) share_percent: usize,
    first_pause: Duration,
    /// In this time requests that wait at a standing rank have noticed, and left.
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
        let (first, least) = match reason {
            EjectReason::Stalled => (self.first_pause, self.leaving),
            EjectReason::Slow => (self.slow_after.saturating_mul(SLOW_PAUSE), Duration::ZERO),
        };
        first.saturating_mul(1 << row.min(DOUBLINGS_MAX)).max(least)
    }
}
