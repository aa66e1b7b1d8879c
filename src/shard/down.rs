//! When a request stops to wait for a worker that health checks have marked down. A busy engine may
//! fail its checks and serve on, so a request ends only if the worker sends nothing at all: no byte
//! of any answer has come to this shard for `health.timeout`.

use super::state::Shard;
use crate::relay::Over;
use forebay_base::WorkerIndex;
use forebay_fleet::worker::WorkerState;
use std::time::Duration;

/// Cuts one wait into steps, after each of which the worker is looked at. Costs a busy worker
/// nothing: an answer that goes on begins a new wait with each chunk, and its timer stays where it
/// is.
pub(super) struct DownWatch<'a> {
    shard: &'a Shard,
    worker: WorkerIndex,
    /// What the shard had heard of the worker when the step began.
    heard: u32,
    /// Of the wait, after this step.
    left: Duration,
    /// The wait that began last, its first step and its rest: each chunk of a stream begins the
    /// same one.
    last: (Duration, Duration, Duration),
}

impl<'a> DownWatch<'a> {
    pub(super) fn new(shard: &'a Shard, worker: WorkerIndex) -> Self {
        let (zero, heard) = (Duration::ZERO, shard.heard_of(worker));
        Self { shard, worker, heard, left: zero, last: (zero, zero, zero) }
    }

    /// Goes on with a wait whose present step has begun elsewhere.
    pub(super) fn resumed(shard: &'a Shard, worker: WorkerIndex, left: Duration) -> Self {
        Self { left, ..Self::new(shard, worker) }
    }

    /// What is left of the wait after this step.
    pub(super) const fn left(&self) -> Duration {
        self.left
    }

    /// Begins a wait; returns its first step.
    #[inline]
    pub(super) fn begin(&mut self, wait: Duration) -> Duration {
        if wait != self.last.0 {
            let health = &self.shard.config.health;
            let step = if health.enabled { wait.min(health.timeout) } else { wait };
            self.last = (wait, step, wait.saturating_sub(step));
        }
        self.left = self.last.2;
        self.last.1
    }

    /// A step has passed. The next one, or why there is none.
    pub(super) fn next(&mut self) -> Result<Duration, Over> {
        if self.left.is_zero() {
            return Err(Over::Late);
        }
        let heard = self.shard.heard_of(self.worker);
        let is_silent = std::mem::replace(&mut self.heard, heard) == heard;
        if is_silent && self.shard.is_down(self.worker) {
            return Err(Over::Down);
        }
        Ok(self.begin(self.left))
    }
}

impl Shard {
    /// A byte of an answer has come from the worker.
    #[inline]
    pub(super) fn hear(&self, worker: WorkerIndex) {
        if let Some(heard) = self.heard.get(worker.index()) {
            heard.set(heard.get().wrapping_add(1));
        }
    }

    fn heard_of(&self, worker: WorkerIndex) -> u32 {
        self.heard.get(worker.index()).map_or(0, std::cell::Cell::get)
    }

    fn is_down(&self, worker: WorkerIndex) -> bool {
        let fleet = self.fleet.borrow();
        fleet.workers.get(worker.index()).is_some_and(|worker| worker.state == WorkerState::Down)
    }
}
