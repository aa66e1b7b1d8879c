//! Restarts of engines that their figures show, also between two health checks. A process that
//! reports its start is another process when the start is later. Of other processes the counters
//! show a restart: a counter never goes back.

use forebay_base::WorkerIndex;
use forebay_board::TokenProgress;
use std::collections::{BTreeMap, BTreeSet};

/// A start that is later by less is the same start: processes compute it from two clocks.
const START_JITTER_MS: u64 = 1_000;

/// Latest start of each worker's process, in milliseconds since 1970. Bounded by the places of
/// workers, because a worker that leaves is forgotten.
#[derive(Debug, Default)]
pub(super) struct ProcessBirths {
    started_ms: BTreeMap<WorkerIndex, u64>,
    restarted: BTreeSet<WorkerIndex>,
}

impl ProcessBirths {
    /// Takes the start that an answer of the worker reports. Behind an address of several processes
    /// the start changes with each answer: an earlier start is no restart.
    pub(super) fn take_start(&mut self, worker: WorkerIndex, started_ms: Option<u64>) {
        let Some(started_ms) = started_ms else { return };
        let known_ms = *self.started_ms.entry(worker).or_insert(started_ms);
        if started_ms.saturating_sub(known_ms) > START_JITTER_MS {
            self.started_ms.insert(worker, started_ms);
            self.restarted.insert(worker);
        }
    }

    /// Compares the counters of a rank with the last reading.
    pub(super) fn take_counts(
        &mut self,
        worker: WorkerIndex,
        before: TokenProgress,
        now: TokenProgress,
    ) {
        let counts = |progress: TokenProgress| {
            let TokenProgress { all, generated, first_tokens, .. } = progress;
            [all, generated, first_tokens]
        };
        let mut pairs = counts(before).into_iter().zip(counts(now));
        let is_back = pairs.any(|(before, now)| before.zip(now).is_some_and(|(b, n)| n < b));
        if is_back && !self.started_ms.contains_key(&worker) {
            self.restarted.insert(worker);
        }
    }

    /// Forgets a worker that left: the next worker in its place is another process, and no restart.
    pub(super) fn forget(&mut self, worker: WorkerIndex) {
        self.started_ms.remove(&worker);
        self.restarted.remove(&worker);
    }

    /// Workers that have restarted since the last call.
    pub(super) fn take_restarted(&mut self) -> Vec<WorkerIndex> {
        std::mem::take(&mut self.restarted).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerIndex = WorkerIndex(3);

    fn counting(all: u64) -> TokenProgress {
        TokenProgress { all: Some(all), ..TokenProgress::default() }
    }

    #[test]
    fn a_later_start_is_a_restart_and_an_earlier_one_another_process_of_the_address() {
        let mut births = ProcessBirths::default();
        let starts = [None, Some(50), Some(51), Some(60), Some(50), Some(60), None, Some(62)];
        let restarts = starts.map(|started_s: Option<u64>| {
            births.take_start(WORKER, started_s.map(|seconds| seconds * 1_000));
            births.take_restarted().len()
        });
        assert_eq!(restarts, [0, 0, 0, 1, 0, 0, 0, 1]);
        for later_ms in 1..=1_000 {
            births.take_start(WORKER, Some(62_000 + later_ms));
        }
        assert!(births.take_restarted().is_empty(), "a clock that creeps");
        births.take_counts(WORKER, counting(9), counting(0));
        assert!(births.take_restarted().is_empty(), "the start is more exact");
    }

    #[test]
    fn without_a_start_the_counters_show_a_restart() {
        let mut births = ProcessBirths::default();
        for (before, now, restarts) in [(0, 0, 0), (7, 9, 0), (9, 9, 0), (9, 0, 1), (9, 8, 1)] {
            births.take_counts(WORKER, counting(before), counting(now));
            assert_eq!(births.take_restarted().len(), restarts, "{before} {now}");
        }
        births.take_counts(WORKER, counting(9), TokenProgress::default());
        assert!(births.take_restarted().is_empty(), "no count is no restart");
    }
}
