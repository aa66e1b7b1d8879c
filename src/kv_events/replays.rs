//! When an engine is asked for batches again: silence of the live stream, pauses after failures.

use super::timers::FeedTimers;
use std::time::Duration;
use tokio::time::Instant;

/// Restarts of an engine behind one connection that come faster are none.
const RESTART_INTERVAL_MIN: Duration = Duration::from_secs(60);

/// Tries on one connection to have the whole history after all; each that fails half way costs what
/// was known.
const DEBT_TRIES_MAX: u32 = 5;

/// When a replay is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayCause {
    /// After connecting.
    Joined,
    /// The live stream is at this number, and something before it is missing.
    Behind(u64),
    /// The live stream is silent.
    Quiet,
}

/// Watches for silence of the live stream.
#[derive(Debug)]
pub(super) struct Audit {
    pub(super) due: Instant,
    pub(super) after: Duration,
    /// The last audit found batches that the live stream had not brought.
    pub(super) found: bool,
}

impl Audit {
    /// Due after so much silence.
    pub(super) fn after(after: Duration) -> Self {
        Self { due: Instant::now() + after, after, found: false }
    }
}

/// When the replay socket is worth asking.
#[derive(Debug)]
pub(super) struct Replays {
    timers: FeedTimers,
    pub(super) not_before: Instant,
    pub(super) pause: Duration,
    /// When another process than the one that publishes answered.
    foreign_at: Option<Instant>,
    /// What the engine remembers was not had: worth another try.
    pub(super) owed: bool,
    /// Such tries on this connection.
    tries: u32,
}

impl Replays {
    pub(super) fn new(timers: FeedTimers) -> Self {
        Self {
            timers,
            not_before: Instant::now(),
            pause: timers.replay_pause,
            foreign_at: None,
            owed: false,
            tries: 0,
        }
    }

    pub(super) fn worked(&mut self) {
        self.pause = self.timers.replay_pause;
        self.owed = false;
    }

    /// Counts the try that it allows.
    pub(super) fn take_debt_try(&mut self) -> bool {
        let due = self.owed && self.tries < DEBT_TRIES_MAX && Instant::now() >= self.not_before;
        self.tries += u32::from(due);
        due
    }

    /// An engine restarts once. One that is always another one is the wrong one.
    pub(super) fn mark_foreign(&mut self) -> bool {
        let before = self.foreign_at.replace(Instant::now());
        before.is_some_and(|at| at.elapsed() < RESTART_INTERVAL_MIN)
    }

    pub(super) fn failed(&mut self) {
        self.owed = true;
        self.not_before = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(self.timers.replay_pause_max());
    }
}
