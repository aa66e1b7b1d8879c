//! Counts of the restarts of engines. Load reports show a restart, and so does the event stream of
//! each rank. A stream shows it with the first batch of the new process, on an idle fleet minutes
//! later. So the count of a worker is the largest count of a sign, and no sum. A restart that no
//! sign shows is not counted.

use forebay_base::{RankIndex, WorkerIndex};
use std::collections::BTreeMap;

/// Restarts of each worker's engine. Bounded by the places of workers and ranks, because a worker
/// that leaves is forgotten.
#[derive(Debug, Default)]
pub(super) struct EngineRestarts {
    /// By worker, and rank of the event stream; without a rank: by load reports.
    signs: BTreeMap<(WorkerIndex, Option<RankIndex>), u64>,
    counts: BTreeMap<WorkerIndex, u64>,
}

impl EngineRestarts {
    /// Counts a sign of a restart. `stream`: rank with the event stream that began again; `None`:
    /// load reports show it.
    pub(super) fn add(&mut self, worker: WorkerIndex, stream: Option<RankIndex>) {
        let sign = self.signs.entry((worker, stream)).or_default();
        *sign += 1;
        let count = self.counts.entry(worker).or_default();
        *count = (*count).max(*sign);
    }

    /// Forgets a worker that left: the next worker in its place is new.
    pub(super) fn forget(&mut self, worker: WorkerIndex) {
        self.signs.retain(|(of, _), _| *of != worker);
        self.counts.remove(&worker);
    }

    /// The count of each worker with a restart.
    pub(super) const fn counts(&self) -> &BTreeMap<WorkerIndex, u64> {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerIndex = WorkerIndex(3);

    #[test]
    fn a_restart_counts_once_whatever_signs_show_it() {
        let mut restarts = EngineRestarts::default();
        let count = |restarts: &EngineRestarts| restarts.counts().get(&WORKER).copied();
        assert_eq!(count(&restarts), None);
        restarts.add(WORKER, None);
        (0..4).for_each(|rank| restarts.add(WORKER, Some(RankIndex(rank))));
        assert_eq!(count(&restarts), Some(1), "four ranks of one engine");
        // Load reports miss the second: no counter had grown since the first.
        (0..4).for_each(|rank| restarts.add(WORKER, Some(RankIndex(rank))));
        assert_eq!(count(&restarts), Some(2));
        restarts.add(WORKER, None);
        assert_eq!(count(&restarts), Some(2));
        restarts.add(WorkerIndex(4), None);
        restarts.forget(WORKER);
        assert_eq!(count(&restarts), None);
        restarts.add(WORKER, Some(RankIndex(0)));
        assert_eq!(count(&restarts), Some(1), "the next worker in its place");
        assert_eq!(restarts.counts().len(), 2);
    }
}
