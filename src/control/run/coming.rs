//! Workers that operators take out, add and remove through the admin API.

use super::super::fleet::NoPlace;
use super::Control;
use forebay_admin::{AddRefused, AddWorkerRequest};
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_config::WorkerChanges;
use forebay_fleet::worker::RankLoad;
use serde_json::Value;
use tracing::{info, warn};

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

    /// Workers that the configuration file has, or has no more, since it was read last.
    pub(super) fn change_workers(&mut self, changes: &WorkerChanges) {
        for url in &changes.left {
            if let Some(place) = self.fleet.worker_at(url) {
                self.leave_by(place, "the configuration");
            }
        }
        let Some(reloader) = &mut self.setup.reloader else { return };
        for url in &changes.joined {
            let workers = &reloader.running().workers;
            let Some(worker) = workers.iter().find(|worker| worker.url == *url) else { continue };
            match self.fleet.add(&self.setup.config, worker) {
                Ok(place) => {
                    info!(url, "added by the configuration");
                    self.probes.add(place, worker);
                }
                Err(reason) => {
                    warn!(
                        url,
                        ?reason,
                        "not added: its address or its name is in use; reload again once it is free"
                    );
                    reloader.did_not_join(url);
                }
            }
        }
    }

    /// Begins the end of a worker.
    pub(super) fn leave(&mut self, worker: &str) {
        let Some(index) = self.fleet.worker_named(worker) else { return };
        self.leave_by(index, "the admin API");
        self.publish();
    }

    fn leave_by(&mut self, place: WorkerIndex, by: &str) {
        let patience = self.setup.config.timeouts.drain;
        if self.fleet.leave(place, self.setup.clock.now().plus(patience)) {
            let worker = self.fleet.name(place).unwrap_or_default();
            info!(worker = &*worker, by, ?patience, "removed: it gets nothing new");
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

    pub(super) fn end_worker(&mut self, worker: WorkerIndex) {
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
