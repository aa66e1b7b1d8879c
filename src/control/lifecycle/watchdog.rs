//! Watchdog of the shards: each shard counts its turns, and the control plane's loop compares the
//! counts.

use super::shard_threads::{ShardThreads, TakenCpu};
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
    /// Use of the CPU, in the middle of the silence.
    threads: Option<(NanosSinceStart, ShardThreads)>,
    /// The core that the shard waits for, if that is the cause.
    taken_core: Option<TakenCpu>,
}

/// Silence after which the use of the CPU is read, and compared when the shard counts as stalled.
const READ_AFTER: Duration = Duration::from_millis(500);
const _: () = assert!(READ_AFTER.as_millis() < SHARD_STALLED_AFTER.as_millis());

impl Watchdog {
    /// Takes the counts; `None` is a shard that has not begun, or has ended. A pause of this
    /// thread, or of the whole machine, is no silence of a shard: each call adds at most a beat's
    /// period.
    pub(super) fn observe(
        &mut self,
        now: NanosSinceStart,
        beats: &[Option<u64>],
        read_threads: impl Fn(usize) -> ShardThreads,
    ) {
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
            if watched.silent >= READ_AFTER && watched.threads.is_none() {
                watched.threads = Some((now, read_threads(shard)));
            }
            if watched.is_stalled && !was_stalled {
                let before = watched.threads;
                watched.taken_core = before.and_then(|(at, before)| {
                    read_threads(shard).taken_core(before, Duration::from_nanos(now.since(at)))
                });
                log_stall(shard, watched.taken_core);
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
            let seconds = shard.silent.as_secs_f64();
            let cause = shard.taken_core.map_or_else(String::new, |core| format!(": it {core}"));
            format!("shard {number} has made no progress for {seconds:.1} s{cause}")
        })
    }

    /// A shard that has made no progress for `patience`, with the cause; none if that is 0.
    pub(super) fn lost(&self, patience: Duration) -> Option<LostShard> {
        let is_lost = |shard: &ShardWatch| !patience.is_zero() && shard.silent >= patience;
        let shard = self.shards.iter().position(is_lost)?;
        let taken_core = self.shards.get(shard)?.taken_core;
        let cause = taken_core.map_or("this is a bug".to_owned(), |core| format!("it {core}"));
        Some(LostShard { shard, cause })
    }
}

/// A shard that ends the process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LostShard {
    pub(super) shard: usize,
    pub(super) cause: String,
}

fn log_stall(shard: usize, taken_core: Option<TakenCpu>) {
    match taken_core {
        Some(TakenCpu { core, waited_ms }) => error!(
            shard,
            core,
            waited_ms,
            help = "move the other program, or name free cores in `cores`; raise CPUQuota or the \
                    CPU limit of the container",
            "a shard waits for its core, and its clients wait: another program runs there, or a \
             CPU limit holds the router"
        ),
        None => error!(
            shard,
            "a shard makes no progress: its clients wait, and /readyz says so; \
             `timeouts.stall_abort` would end the process"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::shard_threads::ThreadUse;
    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    fn asleep(_: usize) -> ShardThreads {
        ShardThreads::default()
    }

    /// A shard whose core another program has is no bug: the readiness and the abort name the core.
    #[test]
    fn a_shard_that_waits_for_its_core_has_that_cause_until_it_goes_on() {
        let mut watchdog = Watchdog::default();
        let starved = |_| {
            let shard = ThreadUse { ran_ns: 7, waited_ns: 7, core: 5, is_runnable: true };
            ShardThreads { shard: Some(shard), offload: None }
        };
        let mut now = NanosSinceStart(0);
        for _ in 0..=12 {
            now = now.plus(STEP);
            watchdog.observe(now, &[Some(1)], starved);
        }
        let cause = "waited 500 ms for its core: another program runs on core 5";
        assert!(watchdog.reasons().all(|reason| reason.contains(cause)));
        assert_eq!(watchdog.reasons().count(), 1);
        let lost = watchdog.lost(Duration::from_secs(1)).unwrap();
        assert!(lost.cause.contains(cause), "{lost:?}");
        watchdog.observe(now.plus(STEP), &[Some(2)], starved);
        assert_eq!(watchdog.reasons().count(), 0);
    }

    #[test]
    fn a_shard_that_stands_still_for_a_second_is_stalled_until_it_goes_on() {
        let mut watchdog = Watchdog::default();
        let mut now = NanosSinceStart(0);
        for step in 0..=10_u64 {
            assert!(!watchdog.are_stalled().any(|stalled| stalled), "after {step} steps");
            now = now.plus(STEP);
            watchdog.observe(now, &[Some(step + 1), Some(7), None], asleep);
        }
        assert_eq!(watchdog.are_stalled().collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(
            watchdog.reasons().collect::<Vec<_>>(),
            ["shard 1 has made no progress for 1.0 s"]
        );
        assert_eq!(watchdog.lost(Duration::ZERO), None);
        let lost = watchdog.lost(Duration::from_secs(1)).unwrap();
        assert_eq!((lost.shard, &*lost.cause), (1, "this is a bug"));
        assert_eq!(watchdog.lost(Duration::from_secs(2)), None);
        watchdog.observe(now.plus(STEP), &[Some(99), Some(8), None], asleep);
        assert!(!watchdog.are_stalled().any(|stalled| stalled));
    }

    #[test]
    fn a_pause_of_the_machine_is_no_stall() {
        let mut watchdog = Watchdog::default();
        let mut now = NanosSinceStart(0);
        for _ in 0..3 {
            now = now.plus(Duration::from_secs(60));
            watchdog.observe(now, &[Some(1)], asleep);
        }
        assert_eq!(watchdog.lost(Duration::from_secs(1)), None);
        assert!(!watchdog.are_stalled().any(|stalled| stalled));
    }
}
