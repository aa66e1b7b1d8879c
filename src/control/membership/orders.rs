//! Operators' orders through the admin API: drain, sleep, add and remove a worker.

use super::super::environment::{Environment, TICK};
use super::super::feeds::{OrderResult, SleepOrder};
use super::super::fleet::PlaceError;
use super::{FleetChange, Membership};
use forebay_admin::{AddRefusal, AddWorkerRequest, NoStreamMove, SleepRefusal, WorkerDrain};
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_board::RankLoad;
use forebay_config::KnownConnectors;
use forebay_fleet::worker::FleetSnapshot;
use std::sync::Arc;
use tracing::{error, info};

impl Membership {
    pub(crate) fn set_draining(
        &mut self,
        env: &Environment,
        worker: &str,
        order: WorkerDrain,
    ) -> Result<FleetChange, NoStreamMove> {
        let Some(index) = self.fleet.worker_named(worker) else {
            return Ok(FleetChange::default());
        };
        if order == WorkerDrain::MoveStreams && !env.config.retry.mid_stream {
            return Err(NoStreamMove);
        }
        if !self.fleet.set_draining(index, order) {
            return Ok(FleetChange::default());
        }
        let moves_streams = order == WorkerDrain::MoveStreams;
        match order {
            WorkerDrain::Off => info!(worker, "takes requests again by the admin API"),
            _ => info!(worker, moves_streams, "drains by the admin API: it gets nothing new"),
        }
        Ok(FleetChange::published())
    }

    /// Adds a worker and returns its name. The worker has not answered yet.
    pub(crate) fn add_worker(
        &mut self,
        env: &Environment,
        request: &AddWorkerRequest,
    ) -> Result<(Arc<str>, FleetChange), AddRefusal> {
        let worker = request.worker();
        let place =
            self.add(env, worker, &mut KnownConnectors::new()).map_err(|reason| match reason {
                PlaceError::Url => AddRefusal::UrlTaken,
                PlaceError::Engine(name) => AddRefusal::EngineTaken(name.to_string()),
                PlaceError::Tls(fault) => AddRefusal::Tls(fault),
                PlaceError::Name => AddRefusal::NameTaken,
                PlaceError::Full => AddRefusal::Full,
            })?;
        self.forget_orders(&worker.url);
        let name = self.fleet.name(place).unwrap_or_default();
        info!(worker = &*name, url = worker.url, "added by the admin API");
        Ok((name, FleetChange::published()))
    }

    /// Begins the end of a worker.
    pub(crate) fn remove_worker(&mut self, env: &Environment, worker: &str) -> FleetChange {
        let Some(index) = self.fleet.worker_named(worker) else { return FleetChange::default() };
        self.leave_by(env, index, "the admin API");
        FleetChange::published()
    }

    /// The worker drains before its engine gets the order to sleep.
    pub(crate) fn set_sleeping(
        &mut self,
        env: &Environment,
        name: &str,
        sleeps: bool,
    ) -> Result<FleetChange, SleepRefusal> {
        let worker = self.fleet.worker_named(name).ok_or(SleepRefusal::Unknown)?;
        let mut change = FleetChange::published();
        if sleeps {
            let now = env.clock.now();
            let by = now.plus(env.config.timeouts.drain);
            self.fleet.send_to_sleep(worker, now.plus(2 * TICK), by)?;
            info!(worker = name, "goes to sleep by the admin API: its requests wait");
        } else if self.fleet.wake(worker)? {
            info!(worker = name, "is woken by the admin API");
            change.sleep_orders.extend(self.sleep_order(worker, "/wake_up"));
        }
        Ok(change)
    }

    /// Sleep orders for engines of workers that are idle, or have drained for long enough.
    pub(super) fn send_to_sleep(
        &mut self,
        env: &Environment,
        published: &FleetSnapshot,
        now: NanosSinceStart,
    ) -> FleetChange {
        let board = &env.board;
        let is_idle = |worker| {
            let of_worker = published.ranks.iter().enumerate().filter(|(_, r)| r.worker == worker);
            let mut ranks = of_worker.filter_map(|(rank, _)| RankIndex::try_from_index(rank));
            ranks.all(|rank| board.rank(rank).map_or(0, RankLoad::in_flight) == 0)
        };
        let sleepy = self.fleet.sleepy(now, is_idle);
        let publishes = !sleepy.is_empty();
        let orders = sleepy.into_iter().filter_map(|worker| self.sleep_order(worker, "/sleep"));
        FleetChange { sleep_orders: orders.collect(), ..FleetChange::published_if(publishes) }
    }

    /// Takes the results of orders to sleep and to wake up.
    pub(crate) fn take_order_results(&mut self, results: Vec<OrderResult>) -> FleetChange {
        let mut change = FleetChange::published_if(!results.is_empty());
        for (worker, result) in results {
            let name = self.fleet.name(worker).unwrap_or_default();
            match &result {
                Ok(()) => info!(worker = &*name, "the engine did as it was told"),
                Err(fault) => error!(
                    worker = &*name,
                    "not done by the engine: {fault}; read its log, call again"
                ),
            }
            if self.fleet.answered_call(worker, result.is_ok()) {
                change.emptied.push(worker);
            }
        }
        change
    }

    /// Takes workers with caches that a call of the admin API emptied.
    pub(crate) fn take_emptied(&mut self, emptied: Vec<WorkerIndex>) -> FleetChange {
        for worker in &emptied {
            let name = self.fleet.name(*worker).unwrap_or_default();
            info!(worker = &*name, "the engine emptied its cache by the admin API");
            self.fleet.empty_caches(*worker);
        }
        let change = FleetChange::published_if(!emptied.is_empty());
        FleetChange { emptied, ..change }
    }

    fn sleep_order(&self, worker: WorkerIndex, path: &'static str) -> Option<SleepOrder> {
        let access = self.fleet.engine_access(worker)?;
        Some(SleepOrder { worker, access, path })
    }
}
