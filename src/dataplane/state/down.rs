//! When a request stops to wait for a worker that health checks have marked down. A busy engine may
//! fail its checks and serve on, so a request ends only if the worker sends nothing at all: no byte
//! of any answer has come to this shard for `health.timeout`. A request without a byte of its
//! answer also leaves a rank that stands still, if it may go elsewhere.

use super::env::Env;
use super::workers::Workers;
use crate::relay::Over;
use forebay_base::{RankIndex, WorkerIndex};
use std::time::Duration;

/// No rank has the last index. Each open stream holds a watch, so that an `Option` would cost.
const NO_RANK: RankIndex = RankIndex(u16::MAX);

/// Cuts one wait into steps, after each of which the worker is looked at. Costs a busy worker
/// nothing: an answer that goes on begins a new wait with each chunk, and its timer stays where it
/// is.
pub(crate) struct DownWatch<'a> {
    env: &'a Env,
    workers: &'a Workers,
    worker: WorkerIndex,
    /// Left once it stands still; [`NO_RANK`] if none is.
    rank: RankIndex,
    /// What the shard had heard of the worker when the step began.
    heard: u32,
    /// Of the wait, after this step.
    left: Duration,
    /// The wait that began last, its first step and its rest: each chunk of a stream begins the
    /// same one.
    last: (Duration, Duration, Duration),
}

impl<'a> DownWatch<'a> {
    pub(crate) fn new(env: &'a Env, workers: &'a Workers, worker: WorkerIndex) -> Self {
        let zero = Duration::ZERO;
        let heard = workers.heard_of(worker);
        Self { env, workers, worker, rank: NO_RANK, heard, left: zero, last: (zero, zero, zero) }
    }

    /// Leaves the rank once it stands still.
    pub(crate) fn leaving(self, rank: RankIndex) -> Self {
        Self { rank, ..self }
    }

    /// Goes on with a wait whose present step has begun elsewhere.
    pub(crate) fn resumed(self, left: Duration) -> Self {
        Self { left, ..self }
    }

    /// What is left of the wait after this step.
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

    /// A step has passed. The next one, or why there is none.
    pub(crate) fn next(&mut self) -> Result<Duration, Over> {
        if self.left.is_zero() {
            return Err(Over::Late);
        }
        let heard = self.workers.heard_of(self.worker);
        let is_silent = std::mem::replace(&mut self.heard, heard) == heard;
        if is_silent && self.workers.is_down(self.worker) {
            return Err(Over::Down);
        }
        if self.workers.is_stalled(self.rank) {
            return Err(Over::Stalled);
        }
        Ok(self.begin(self.left))
    }
}
