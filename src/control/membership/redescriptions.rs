//! Workers that a reload describes again. Half of a reload shows endpoints that no file has: where
//! two workers exchange their endpoints, both have the same endpoint for a moment.

use forebay_base::{NanosSinceStart, WorkerIndex};
use std::collections::BTreeSet;

/// Workers that are up and not described yet since the last reload.
#[derive(Debug, Default)]
pub(super) struct Redescriptions {
    workers: BTreeSet<WorkerIndex>,
    /// Workers that have not answered by then are not awaited.
    by: NanosSinceStart,
}

impl Redescriptions {
    pub(super) fn of(workers: impl Iterator<Item = WorkerIndex>, by: NanosSinceStart) -> Self {
        Self { workers: workers.collect(), by }
    }

    /// The worker has been described.
    pub(super) fn end(&mut self, worker: WorkerIndex) {
        self.workers.remove(&worker);
    }

    /// Has any worker not been described?
    pub(super) fn is_begun(&self) -> bool {
        !self.workers.is_empty()
    }

    /// As [`Self::is_begun`], until the deadline. Gives the other workers up at the deadline.
    pub(super) fn are_awaited(&mut self, now: NanosSinceStart) -> bool {
        if now >= self.by {
            self.workers.clear();
        }
        self.is_begun()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_waits_for_each_worker_and_not_for_ever() {
        let workers = || [WorkerIndex(0), WorkerIndex(1)].into_iter();
        let mut awaited = Redescriptions::of(workers(), NanosSinceStart(9));
        awaited.end(WorkerIndex(1));
        assert!(awaited.are_awaited(NanosSinceStart(1)));
        awaited.end(WorkerIndex(0));
        assert!(!awaited.are_awaited(NanosSinceStart(1)));
        let mut late = Redescriptions::of(workers(), NanosSinceStart(9));
        assert!(late.are_awaited(NanosSinceStart(8)) && !late.are_awaited(NanosSinceStart(9)));
        assert!(!Redescriptions::default().are_awaited(NanosSinceStart(0)));
    }
}
