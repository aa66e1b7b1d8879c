//! When a request stops waiting for a worker that health checks have marked down. A busy engine may
//! fail its checks but keep serving. A request therefore ends only if the worker is silent: no byte
//! of any answer has reached this shard for `health.timeout`. A request without a byte of its
//! answer also leaves a stalled rank, if another rank may serve it.

use super::env::Env;
use super::workers::Workers;
use crate::relay::WatchEnd;
use forebay_base::{RankIndex, WorkerIndex};
use std::time::Duration;

/// No rank has the last index. Each open stream holds a watch, and an `Option` would enlarge it.
const NO_RANK: RankIndex = RankIndex(u16::MAX);

/// Cuts a wait into steps and checks the worker after each step. A busy worker costs nothing: each
/// chunk of its answer begins a new wait, and the timer is not rearmed.
pub(crate) struct DownWatch<'a> {
    env: &'a Env,
    workers: &'a Workers,
    worker: WorkerIndex,
    /// Rank to leave once it stalls; [`NO_RANK`] if none.
    rank: RankIndex,
    /// Receipts of the worker when the step began.
    receipts: u32,
    /// Remaining wait after this step.
    left: Duration,
    /// Latest wait, its first step and the remainder. Cached, because each chunk of a stream begins
    /// an equal wait.
    last: (Duration, Duration, Duration),
}

impl<'a> DownWatch<'a> {
    pub(crate) fn new(env: &'a Env, workers: &'a Workers, worker: WorkerIndex) -> Self {
        let zero = Duration::ZERO;
        let receipts = workers.receipts_of(worker);
        Self { env, workers, worker, rank: NO_RANK, receipts, left: zero, last: (zero, zero, zero) }
    }

    /// Also ends the wait once the rank stalls.
    pub(crate) fn leaving(self, rank: RankIndex) -> Self {
        Self { rank, ..self }
    }

    /// Continues a wait whose current step began elsewhere.
    pub(crate) fn resumed(self, left: Duration) -> Self {
        Self { left, ..self }
    }

    pub(crate) const fn left(&self) -> Duration {
        self.left
    }

    /// Begins a wait; returns its first step.
    #[inline]
    pub(crate) fn begin(&mut self, wait: Duration) -> Duration {
        if wait != self.last.0 {
            let health = &self.env.config().health;
            let step = if health.enabled { wait.min(health.timeout) } else { wait };
            self.last = (wait, step, wait.saturating_sub(step));
        }
        self.left = self.last.2;
        self.last.1
    }

    /// Begins a wait for bytes in the middle of an answer; returns its first step.
    pub(crate) fn begin_idle(&mut self) -> Duration {
        self.begin(self.env.config().timeouts.stream_idle)
    }

    /// Ends a step. Returns the next step, or why the wait is over.
    pub(crate) fn next(&mut self) -> Result<Duration, WatchEnd> {
        if self.left.is_zero() {
            return Err(WatchEnd::Late);
        }
        let receipts = self.workers.receipts_of(self.worker);
        let is_silent = std::mem::replace(&mut self.receipts, receipts) == receipts;
        if is_silent && self.workers.is_down(self.worker) {
            return Err(WatchEnd::Down);
        }
        if self.workers.is_stalled(self.rank) {
            return Err(WatchEnd::Stalled);
        }
        Ok(self.begin(self.left))
    }
}
