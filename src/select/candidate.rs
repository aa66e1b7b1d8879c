//! Which ranks may take a request at all: role, health, breaker, not tried before.

use crate::base::{NanosSinceStart, RankIndex};
use crate::worker::{FleetSnapshot, LoadBoard, Model, Role, WorkerState};

/// Ranks that may take the request; reused, keeps its capacity.
#[derive(Debug, Default)]
pub struct Candidates {
    ranks: Vec<RankIndex>,
}

/// Why nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCandidate {
    /// No worker that serves the model is healthy, or all were tried.
    NoneHealthy,
}

impl Candidates {
    /// Collects the eligible ranks of `model`, leaving out the workers in `tried`.
    ///
    /// # Errors
    /// [`NoCandidate`] when none is left.
    pub fn collect(
        &mut self,
        fleet: &FleetSnapshot,
        model: &Model,
        board: &LoadBoard,
        tried: &[RankIndex],
        now: NanosSinceStart,
    ) -> Result<(), NoCandidate> {
        self.ranks.clear();
        for &index in &model.ranks {
            if Self::eligible(fleet, board, index, tried, now) {
                self.ranks.push(index);
            }
        }
        if self.ranks.is_empty() { Err(NoCandidate::NoneHealthy) } else { Ok(()) }
    }

    /// The ranks, in index order.
    #[must_use]
    pub fn ranks(&self) -> &[RankIndex] {
        &self.ranks
    }

    /// Takes one out: it had no room.
    pub fn remove(&mut self, rank: RankIndex) {
        self.ranks.retain(|&candidate| candidate != rank);
    }

    fn eligible(
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        index: RankIndex,
        tried: &[RankIndex],
        now: NanosSinceStart,
    ) -> bool {
        let Some((rank, worker)) = fleet.rank(index) else { return false };
        // A retry goes to another worker: the ranks of one worker share its fate.
        let tried_worker =
            tried.iter().any(|&t| fleet.rank(t).is_some_and(|(r, _)| r.worker == rank.worker));
        worker.state == WorkerState::Up
            && rank.role != Role::Prefill
            && !tried_worker
            && board.rank(index).is_some_and(|load| load.breaker_admits(now))
    }
}
