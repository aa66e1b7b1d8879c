//! Watchdog of the shards: each shard counts its turns, and the control plane's loop compares the
//! counts.

use forebay_base::NanosSinceStart;
use forebay_base::limits::{SHARD_BEAT_PERIOD, SHARD_STALLED_AFTER};
use std::time::Duration;
use tracing::{error, info};

/// All shards, in shard order.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    shards: Vec<ShardWatch>,
    observed_at: NanosSinceStart,
}

#[derive(Clone, Debug, Default)]
struct ShardWatch {
    beats: u64,
    /// Time since the count last changed.
    silent: Duration,
    is_stalled: bool,
}

impl Watchdog {
    /// Takes the counts; `None` is a shard that has not begun, or has ended. A pause of this
    /// thread, or of the whole machine, is no silence of a shard: each call adds at most a beat's
    /// period.
    pub(super) fn observe(&mut self, now: NanosSinceStart, beats: &[Option<u64>]) {
        let passed = Duration::from_nanos(now.since(self.observed_at)).min(SHARD_BEAT_PERIOD);
        self.observed_at = now;
        self.shards.resize(beats.len(), ShardWatch::default());
        for (shard, (watched, beats)) in self.shards.iter_mut().zip(beats).enumerate() {
            let silent_before = watched.silent;
            match beats {
                Some(beats) if *beats == watched.beats => watched.silent += passed,
                Some(beats) => *watched = ShardWatch { beats: *beats, ..ShardWatch::default() },
                None => *watched = ShardWatch::default(),
            }
            let was_stalled = silent_before >= SHARD_STALLED_AFTER;
            watched.is_stalled = watched.silent >= SHARD_STALLED_AFTER;
            if watched.is_stalled && !was_stalled {
                error!(
                    shard,
                    "a shard makes no progress: its clients wait, and /readyz says so; \
                     `timeouts.stall_abort` would end the process"
                );
            } else if was_stalled && !watched.is_stalled {
                let silent_ms = u64::try_from(silent_before.as_millis()).unwrap_or(u64::MAX);
                info!(shard, silent_ms, "the shard makes progress again");
            }
        }
    }

    /// For each shard, whether it is stalled.
    pub(super) fn are_stalled(&self) -> impl Iterator<Item = bool> + '_ {
        self.shards.iter().map(|shard| shard.is_stalled)
    }

    /// Reason why the router is not ready, for each stalled shard.
    pub(super) fn reasons(&self) -> impl Iterator<Item = String> + '_ {
        let stalled = self.shards.iter().enumerate().filter(|(_, shard)| shard.is_stalled);
        stalled.map(|(number, shard)| {
            format!("shard {number} has made no progress for {:.1} s", shard.silent.as_secs_f64())
        })
    }

    /// A shard that has made no progress for `patience`; none if that is 0.
    pub(super) fn lost(&self, patience: Duration) -> Option<usize> {
        self.shards.iter().position(|shard| !patience.is_zero() && shard.silent >= patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    #[test]
    fn a_shard_that_stands_still_for_a_second_is_stalled_until_it_goes_on() {
        let mut watchdog = Watchdog::default();
        let mut now = NanosSinceStart(0);
        for step in 0..=10_u64 {
            assert!(!watchdog.are_stalled().any(|stalled| stalled), "after {step} steps");
            now = now.plus(STEP);
            watchdog.observe(now, &[Some(step + 1), Some(7), None]);
        }
        assert_eq!(watchdog.are_stalled().collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(
            watchdog.reasons().collect::<Vec<_>>(),
            ["shard 1 has made no progress for 1.0 s"]
        );
        assert_eq!(watchdog.lost(Duration::ZERO), None);
        assert_eq!(watchdog.lost(Duration::from_secs(1)), Some(1));
        assert_eq!(watchdog.lost(Duration::from_secs(2)), None);
        watchdog.observe(now.plus(STEP), &[Some(99), Some(8), None]);
        assert!(!watchdog.are_stalled().any(|stalled| stalled));
    }

    #[test]
    fn a_pause_of_the_machine_is_no_stall() {
        let mut watchdog = Watchdog::default();
        let mut now = NanosSinceStart(0);
        for _ in 0..3 {
            now = now.plus(Duration::from_secs(60));
            watchdog.observe(now, &[Some(1)]);
        }
        assert_eq!(watchdog.lost(Duration::from_secs(1)), None);
        assert!(!watchdog.are_stalled().any(|stalled| stalled));
    }
}
