//! Last signs of life of workers: stream data, load reports, and passed health checks.

use forebay_base::{Clock, NanosSinceStart, WorkerIndex};
use forebay_kv_events::HealthAtFault;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

/// The last health checks of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastChecks {
    Failed,
    /// Passed in a row, by the times at which the first check and the last check began.
    Passed {
        since: NanosSinceStart,
        last: NanosSinceStart,
    },
}

impl LastChecks {
    /// Of a worker without health checks: its state explains nothing.
    const ALWAYS: Self =
        Self::Passed { since: NanosSinceStart(0), last: NanosSinceStart(u64::MAX) };

    /// Health of the worker at that time. `None` until a check that began later has passed.
    #[must_use]
    pub fn health_at(self, at: NanosSinceStart) -> Option<HealthAtFault> {
        match self {
            Self::Failed => Some(HealthAtFault::Failed),
            Self::Passed { since, .. } if at < since => Some(HealthAtFault::Unchecked),
            Self::Passed { last, .. } => (at < last).then_some(HealthAtFault::Passed),
        }
    }
}

/// Signs are written by the control plane's loop and read by probes, checks the other way.
#[derive(Debug)]
pub struct SignsOfLife {
    clock: Clock,
    last: RefCell<HashMap<WorkerIndex, NanosSinceStart>>,
    checks: RefCell<HashMap<WorkerIndex, LastChecks>>,
}

impl SignsOfLife {
    /// Without any sign yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, last: RefCell::default(), checks: RefCell::default() }
    }

    /// Time at which a check begins.
    pub(super) fn now(&self) -> NanosSinceStart {
        self.clock.now()
    }

    /// Records a passed check that began at that time.
    pub(super) fn pass(&self, worker: WorkerIndex, began_at: NanosSinceStart) {
        let mut checks = self.checks.borrow_mut();
        let since = match checks.get(&worker) {
            Some(LastChecks::Passed { since, last }) if *last <= began_at => *since,
            _ => began_at,
        };
        checks.insert(worker, LastChecks::Passed { since, last: began_at });
    }

    /// Records that a worker has no health checks.
    pub(super) fn pass_always(&self, worker: WorkerIndex) {
        self.checks.borrow_mut().insert(worker, LastChecks::ALWAYS);
    }

    /// Records a failed check.
    pub(super) fn fail(&self, worker: WorkerIndex) {
        self.checks.borrow_mut().insert(worker, LastChecks::Failed);
    }

    /// Forgets the checks of a worker: another worker may take its place.
    pub fn forget(&self, worker: WorkerIndex) {
        self.checks.borrow_mut().remove(&worker);
    }

    /// The last checks; `None` before the first check.
    #[must_use]
    pub fn last_checks(&self, worker: WorkerIndex) -> Option<LastChecks> {
        self.checks.borrow().get(&worker).copied()
    }

    /// Records a sign at that time.
    pub fn note(&self, worker: WorkerIndex, at: NanosSinceStart) {
        self.last.borrow_mut().insert(worker, at);
    }

    /// True if a sign came within that time before now.
    #[must_use]
    pub fn were_within(&self, time: Duration, worker: WorkerIndex) -> bool {
        let last = self.last.borrow().get(&worker).copied();
        last.is_some_and(|last| self.clock.now() <= last.plus(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_checks_enclose_a_time_only_without_a_failure_between() {
        use HealthAtFault::{Failed, Passed, Unchecked};
        let at = NanosSinceStart;
        let worker = WorkerIndex::try_from_index(0).unwrap();
        let signs = SignsOfLife::new(Clock::start());
        let healthy_at = |time| signs.last_checks(worker)?.health_at(at(time));
        assert_eq!(signs.last_checks(worker), None);
        signs.pass(worker, at(10));
        assert_eq!([10, 11].map(healthy_at), [None; 2], "no later check");
        signs.pass(worker, at(20));
        let wanted = [Some(Unchecked), Some(Passed), Some(Passed), None];
        assert_eq!([9, 10, 19, 20].map(healthy_at), wanted);
        signs.fail(worker);
        assert_eq!(healthy_at(15), Some(Failed));
        signs.pass(worker, at(30));
        signs.pass(worker, at(40));
        assert_eq!(
            [25, 35].map(healthy_at),
            [Some(Unchecked), Some(Passed)],
            "the engine was gone"
        );
        signs.pass_always(worker);
        assert_eq!(healthy_at(1), Some(Passed));
        signs.pass(worker, at(50));
        assert_eq!(healthy_at(45), Some(Unchecked), "checks begin again after a reload");
        signs.forget(worker);
        assert_eq!(signs.last_checks(worker), None);
    }
}
