//! Engines that operators put to sleep and wake up through the admin API.

use super::super::environment::TICK;
use super::super::feeds::{OrderResult, SleepOrder};
use super::Control;
use forebay_admin::SleepRefused;
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_fleet::worker::RankLoad;
use serde_json::Value;
use tracing::{error, info};

impl Control {
    /// The worker as it is then: it drains before its engine is told.
    pub(super) fn set_sleeping(&mut self, name: &str, sleeps: bool) -> Result<Value, SleepRefused> {
        let worker = self.fleet.worker_named(name).ok_or(SleepRefused::Unknown)?;
        if sleeps {
            let now = self.env.clock.now();
            let by = now.plus(self.env.config.timeouts.drain);
            self.fleet.send_to_sleep(worker, now.plus(2 * TICK), by)?;
            info!(worker = name, "goes to sleep by the admin API: its requests wait");
        } else if self.fleet.wake(worker)? {
            info!(worker = name, "is woken by the admin API");
            self.call_engine(worker, "/wake_up");
        }
        self.publish();
        self.workers(|all| forebay_admin::worker_named(name, all)).ok_or(SleepRefused::Unknown)
    }

    /// Tells engines that are due, and takes what they have said.
    pub(super) fn turn_sleepers(&mut self, now: NanosSinceStart) {
        let board = &self.env.board;
        let snapshot = &self.snapshot;
        let is_idle = |worker| {
            let of_worker = snapshot.ranks.iter().enumerate().filter(|(_, r)| r.worker == worker);
            let mut ranks = of_worker.filter_map(|(rank, _)| RankIndex::try_from_index(rank));
            ranks.all(|rank| board.rank(rank).map_or(0, RankLoad::in_flight) == 0)
        };
        let told = self.fleet.sleepy(now, is_idle);
        let is_new = !told.is_empty();
        told.into_iter().for_each(|worker| self.call_engine(worker, "/sleep"));
        if is_new {
            self.publish();
        }
    }

    pub(super) fn take_order_results(&mut self, results: Vec<OrderResult>) {
        let is_new = !results.is_empty();
        for (worker, answer) in results {
            let name = self.fleet.name(worker).unwrap_or_default();
            match &answer {
                Ok(()) => info!(worker = &*name, "the engine did as it was told"),
                Err(fault) => error!(
                    worker = &*name,
                    "not done by the engine: {fault}; read its log, call again"
                ),
            }
            self.fleet.answered_call(worker, answer.is_ok());
        }
        if is_new {
            self.publish();
        }
    }

    fn call_engine(&mut self, worker: WorkerIndex, path: &'static str) {
        let Some(access) = self.fleet.engine_access(worker) else { return };
        self.feeds.send_order(SleepOrder { worker, access, path });
    }
}
