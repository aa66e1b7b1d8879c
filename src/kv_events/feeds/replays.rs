//! Times of replay requests: silence of the live stream, pauses after failures.

use super::timers::FeedTimers;
use crate::ranks::sequence::Mark;
use std::time::Duration;
use tokio::time::Instant;

/// An engine does not restart more often than this behind a connection.
const RESTART_INTERVAL_MIN: Duration = Duration::from_secs(60);

/// Tries on a connection to get the whole history after a failure. Each try that fails early costs
/// the present blocks.
const DEBT_TRIES_MAX: u32 = 5;

/// Why a replay is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayCause {
    /// The feed has just connected.
    Joined,
    /// The live stream is at this batch, and batches before it are missing.
    Behind(Mark),
    /// The live stream is silent.
    Quiet,
}

/// Watches for silence in the live stream.
#[derive(Debug)]
pub(crate) struct Audit {
    pub(crate) due: Instant,
    pub(crate) after: Duration,
    /// The last audit found batches that the live stream lacked.
    pub(crate) found: bool,
}

impl Audit {
    /// An audit that is due after so much silence.
    pub(crate) fn after(after: Duration) -> Self {
        Self { due: Instant::now() + after, after, found: false }
    }
}

/// Times and failures of replay requests.
#[derive(Debug)]
pub(crate) struct Replays {
    timers: FeedTimers,
    pub(crate) not_before: Instant,
    pub(crate) pause: Duration,
    /// Last answer from another process than the publisher.
    foreign_at: Option<Instant>,
    /// The replay endpoint belongs to another engine, as far as its answers show.
    pub(crate) is_foreign: bool,
    /// The feed lacks part of the engine's history and should try again.
    pub(crate) owed: bool,
    /// Tries for the whole history on this connection.
    tries: u32,
}

impl Replays {
    pub(crate) fn new(timers: FeedTimers) -> Self {
        Self {
            timers,
            not_before: Instant::now(),
            pause: timers.replay_pause,
            foreign_at: None,
            is_foreign: false,
            owed: false,
            tries: 0,
        }
    }

    /// Times of the next connection. The endpoint stays foreign until an answer shows the opposite.
    pub(crate) fn of_next_connection(&self) -> Self {
        Self { is_foreign: self.is_foreign, ..Self::new(self.timers) }
    }

    pub(crate) fn worked(&mut self) {
        self.pause = self.timers.replay_pause;
        self.owed = false;
        self.is_foreign = false;
    }

    /// True if a try for the whole history is due; counts the try.
    pub(crate) fn take_debt_try(&mut self) -> bool {
        let due = self.owed && self.tries < DEBT_TRIES_MAX && Instant::now() >= self.not_before;
        self.tries += u32::from(due);
        due
    }

    /// Records an answer from another process. True if these come too fast for restarts: then the
    /// replay endpoint belongs to another engine.
    pub(crate) fn mark_foreign(&mut self) -> bool {
        let before = self.foreign_at.replace(Instant::now());
        self.is_foreign |= before.is_some_and(|at| at.elapsed() < RESTART_INTERVAL_MIN);
        self.is_foreign
    }

    pub(crate) fn failed(&mut self) {
        self.owed = true;
        self.not_before = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(self.timers.replay_pause_max());
    }
}
