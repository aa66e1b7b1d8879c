//! What workers show of themselves beside the answers to checks, and what follows when they come
//! back.

use super::super::environment::TICK;
use super::Control;
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_fleet::worker::{Rank, RankLoad, WorkerState};

impl Control {
    /// What shards saw of workers: that they may have been restarted, and that they live. So does
    /// one that has told of its load since the last tick.
    pub(super) fn pass_on_signs(&self) {
        let now = self.env.clock.now();
        let told = |rank| {
            let report = self.feeds.reporter().reports().newest(rank).map(|report| report.at);
            report.is_some_and(|at| now < at.plus(2 * TICK))
        };
        for (rank, shown) in self.snapshot.ranks.iter().enumerate() {
            let Some(rank) = RankIndex::try_from_index(rank) else { continue };
            let Some(load) = self.env.board.rank(rank) else { continue };
            if load.signs().take_suspicion() {
                self.probes.doubt(shown.worker);
            }
            if load.signs().take_life() || told(rank) {
                self.probes.note_life(shown.worker, now);
            }
        }
    }

    /// A worker is about to enter that state. One that was down, or joins later than the others,
    /// starts slowly.
    pub(super) fn note_comeback(&mut self, worker: WorkerIndex, state: WorkerState) {
        let now = self.env.clock.now();
        let before = self.fleet.checked_state(worker);
        let is_late = before == Some(WorkerState::Unknown) && now > self.env.first_fleet_at;
        let comes_back = before == Some(WorkerState::Down) || is_late;
        if state != WorkerState::Up {
            self.warming.end(worker);
        } else if comes_back && !self.env.config.health.slow_start.is_zero() {
            self.warming.begin(worker, now);
        }
    }

    /// Workers that have come back get more as time passes.
    pub(super) fn warm_up(&mut self, now: NanosSinceStart) {
        let index = |(rank, shown): (usize, &Rank)| {
            RankIndex::try_from_index(rank).map(|rank| (rank, shown.worker))
        };
        let ranks = self.snapshot.ranks.iter().enumerate().filter_map(index);
        let others = ranks.filter(|(rank, worker)| !self.warming.holds(*worker, *rank));
        let load = |(rank, _)| self.env.board.rank(rank).map(RankLoad::in_flight);
        let usual = others.filter_map(load).max();
        if self.warming.grow(now, self.env.config.health.slow_start, usual.unwrap_or(0)) {
            self.publish();
        }
    }
}
