//! Wait of the first fleet for the workers of the start. Sans-IO: answers in, an end out.
//!
//! A first fleet with all workers spares the first clients a 503. A worker that cannot be reached
//! must not delay them: once a worker is up, the wait ends when all other workers have answered or
//! failed, and at the latest after as much time again as the workers that answered needed.

use forebay_base::{NanosSinceStart, WorkerIndex};
use std::collections::HashSet;
use std::time::Duration;

/// Shortest wait for the other workers after a worker is up: a busy engine answers late.
const GRACE_MIN: Duration = Duration::from_millis(500);

/// Workers of the start that the first fleet waits for.
#[derive(Debug)]
pub(super) struct StartWait {
    /// Neither up nor down yet.
    unanswered: HashSet<WorkerIndex>,
    /// The shards have their first fleet.
    has_ended: bool,
    /// Of these, workers with a failed last query.
    failing: HashSet<WorkerIndex>,
    since: NanosSinceStart,
    /// When the last worker came up.
    up_at: Option<NanosSinceStart>,
    /// The wait ends at this time at the latest, also without any worker.
    until: NanosSinceStart,
    /// Workers that are slow to answer are waited for until then.
    is_patient: bool,
}

impl StartWait {
    pub(super) fn new(
        workers: impl Iterator<Item = WorkerIndex>,
        since: NanosSinceStart,
        until: NanosSinceStart,
    ) -> Self {
        let failing = HashSet::new();
        let unanswered = workers.collect();
        Self { unanswered, has_ended: false, failing, since, up_at: None, until, is_patient: false }
    }

    pub(super) const fn wait_for_slow(&mut self) {
        self.is_patient = true;
    }

    /// Another worker of the start, from a source.
    pub(super) fn add(&mut self, worker: WorkerIndex) {
        self.unanswered.insert(worker);
    }

    /// The worker is up or down, or gone.
    pub(super) fn answered(&mut self, worker: WorkerIndex, is_up: bool, now: NanosSinceStart) {
        self.unanswered.remove(&worker);
        self.failing.remove(&worker);
        if is_up {
            self.up_at = Some(now);
        }
    }

    /// A query of the worker failed; its probe tries on.
    pub(super) fn failed(&mut self, worker: WorkerIndex) {
        if self.unanswered.contains(&worker) {
            self.failing.insert(worker);
        }
    }

    /// No worker is waited for.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended || self.unanswered.is_empty()
    }

    /// Is it a worker of the start that has been neither up nor down?
    pub(super) fn is_of_start(&self, worker: WorkerIndex) -> bool {
        self.unanswered.contains(&worker)
    }

    /// The first fleet need not wait longer for workers.
    pub(super) fn is_due(&self, now: NanosSinceStart) -> bool {
        let Some(up_at) = self.up_at else { return now >= self.until };
        let all_known = self.failing.len() == self.unanswered.len();
        let needed = Duration::from_nanos(up_at.since(self.since)).max(GRACE_MIN);
        let by = if self.is_patient { self.until } else { up_at.plus(needed).min(self.until) };
        all_known || now >= by
    }

    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> NanosSinceStart {
        NanosSinceStart(ms * 1_000_000)
    }

    fn wait(count: u16) -> StartWait {
        let workers = (0..usize::from(count)).filter_map(WorkerIndex::try_from_index);
        StartWait::new(workers, at(0), at(3_000))
    }

    fn worker(index: usize) -> WorkerIndex {
        WorkerIndex::try_from_index(index).unwrap()
    }

    /// The first time at which the wait is due, in steps of the loop.
    fn due_ms(wait: &StartWait, from_ms: u64) -> u64 {
        (from_ms..).step_by(100).find(|ms| wait.is_due(at(*ms))).unwrap()
    }

    #[test]
    fn a_silent_worker_delays_no_longer_than_the_others_needed() {
        for answered_ms in [5, 150, 800, 2_900] {
            let mut wait = wait(3);
            wait.answered(worker(0), true, at(3));
            wait.answered(worker(1), true, at(answered_ms));
            let due = due_ms(&wait, answered_ms);
            let needed = answered_ms.max(500);
            assert!(due <= answered_ms + needed + 100 && due <= 3_100, "{answered_ms}: {due}");
            assert!(due >= answered_ms.min(2_900) + needed.min(100), "{answered_ms}: {due}");
        }
    }

    #[test]
    fn an_upgrade_waits_for_slow_workers_and_not_for_refusals() {
        let mut wait = wait(2);
        wait.wait_for_slow();
        wait.answered(worker(0), true, at(5));
        assert_eq!(due_ms(&wait, 0), 3_000, "the process before serves meanwhile");
        wait.failed(worker(1));
        assert!(wait.is_due(at(10)));
    }

    #[test]
    fn a_worker_that_refuses_delays_nothing_once_another_is_up() {
        let mut wait = wait(2);
        wait.failed(worker(1));
        assert!(!wait.is_due(at(900)), "no worker is up: clients wait, and get no 503 at once");
        wait.answered(worker(0), true, at(1_000));
        assert!(wait.is_due(at(1_000)) && !wait.is_over());
        wait.end();
        assert!(wait.is_over());
    }

    #[test]
    fn without_any_worker_the_wait_is_bounded() {
        assert_eq!(due_ms(&wait(2), 0), 3_000);
        assert!(wait(0).is_over());
    }

    #[test]
    fn a_worker_that_failed_and_then_answers_counts_once() {
        let mut wait = wait(3);
        wait.failed(worker(0));
        wait.answered(worker(0), true, at(10));
        wait.failed(worker(0));
        assert!(!wait.is_due(at(20)), "two workers are silent");
    }
}
