//! Workers that operators take out, add and remove through the admin API.

use super::super::fleet::NoPlace;
use super::Control;
use forebay_admin::{AddRefused, AddWorkerRequest};
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_fleet::worker::RankLoad;
use serde_json::Value;
use tracing::info;

impl Control {
    pub(super) fn set_draining(&mut self, worker: &str, is_draining: bool) {
        let Some(index) = self.fleet.worker_named(worker) else { return };
        if !self.fleet.set_draining(index, is_draining) {
            return;
        }
        if is_draining {
            info!(worker, "drains by the admin API: it gets nothing new");
        } else {
            info!(worker, "takes requests again by the admin API");
        }
        self.publish();
    }

    /// The worker as it is then: not known yet.
    pub(super) fn add_worker(&mut self, asked: &AddWorkerRequest) -> Result<Value, AddRefused> {
        let worker = asked.worker();
        let place = self.fleet.add(&self.setup.config, worker).map_err(|reason| match reason {
            NoPlace::Url => AddRefused::UrlTaken,
            NoPlace::Name => AddRefused::NameTaken,
            NoPlace::Full => AddRefused::Full,
        })?;
        let name = self.fleet.name(place).unwrap_or_default();
        info!(worker = &*name, url = worker.url, "added by the admin API");
        self.probes.add(place, worker);
        self.publish();
        self.workers(|all| forebay_admin::worker_named(&name, all)).ok_or(AddRefused::Full)
    }

    /// Begins the end of a worker.
    pub(super) fn leave(&mut self, worker: &str) {
        let Some(index) = self.fleet.worker_named(worker) else { return };
        let patience = self.setup.config.timeouts.drain;
        if self.fleet.leave(index, self.setup.clock.now().plus(patience)) {
            info!(worker, ?patience, "removed by the admin API: it gets nothing new");
            self.publish();
        }
    }

    /// Ends workers that were removed, once they are idle or their time is over.
    pub(super) fn end_workers(&mut self, now: NanosSinceStart) {
        let board = &self.setup.board;
        let is_idle = |rank| board.rank(rank).map_or(0, RankLoad::in_flight) == 0;
        for worker in self.fleet.leaving(now, is_idle) {
            self.end_worker(worker);
        }
    }

    fn end_worker(&mut self, worker: WorkerIndex) {
        let name = self.fleet.name(worker).unwrap_or_default();
        info!(worker = &*name, "gone");
        self.probes.end(worker);
        self.fleet.remove(worker);
        self.unheard.remove(&worker);
        self.unfed.remove(&worker);
        self.feeds.adjust(self.fleet.feed_plans(), self.fleet.rank_count());
        self.loads.adjust(self.fleet.load_plans());
        self.publish();
    }
}
