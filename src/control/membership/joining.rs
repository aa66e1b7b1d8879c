//! Workers that sources and the configuration add and remove, from their place in the fleet to
//! their end.

use super::super::environment::Environment;
use super::super::fleet::PlaceError;
use super::sources::{SourceNews, SourceReading};
use super::{FleetChange, Membership};
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_board::RankLoad;
use forebay_config::{KnownConnectors, WorkerChanges, WorkerConfig, WorkerUrl};
use forebay_fleet::worker::WorkerState;
use tracing::{debug, error, info, warn};

impl Membership {
    /// Gives the worker a place and starts its probe. Reads the files of TLS to a worker with
    /// `https://` that the configuration does not have; they are as small as the files of a reload.
    /// `known`: connectors that were read for other workers of the same list.
    pub(super) fn add(
        &mut self,
        env: &Environment,
        worker: &WorkerConfig,
        known: &mut KnownConnectors,
    ) -> Result<WorkerIndex, PlaceError> {
        let config = &env.config;
        let authority =
            WorkerUrl::parse(&worker.url).map_or_else(|_| String::new(), |url| url.authority);
        let is_same = |other: &WorkerConfig| other.url == worker.url && other.tls == worker.tls;
        let is_configured = config.workers.iter().any(is_same);
        let connector = match self.connectors.get(&authority) {
            Some(known) if is_configured => Some(known.clone()),
            _ => config.connector(worker, known).map_err(PlaceError::Tls)?,
        };
        let place = self.fleet.add(config, worker, connector.clone())?;
        if let Some(connector) = connector {
            self.connectors.insert(authority, connector);
            let workers = std::slice::from_ref(worker);
            if let Err(error) = self.probes.clients().renew(config, workers, &self.connectors) {
                error!(%error, url = worker.url, "not asked over TLS: mend `upstream_tls`, reload");
            }
        }
        self.probes.add(place, worker);
        Ok(place)
    }

    /// Takes the current list of a source, or its fault.
    pub(crate) fn take_reading(&mut self, env: &Environment, read: SourceReading) -> FleetChange {
        let is_start = self.sources.are_awaited();
        let was_incomplete = self.sources.are_incomplete();
        let listed = self.sources.list(read);
        let ends_wait = is_start && !self.sources.are_awaited();
        let is_news = ends_wait || was_incomplete != self.sources.are_incomplete();
        let Some(listed) = &listed else { return FleetChange::published_if(is_news) };
        let fleet = &self.fleet;
        let serves = |worker: &WorkerConfig| {
            let place = fleet.worker_at(&worker.url);
            place.and_then(|place| fleet.checked_state(place)) == Some(WorkerState::Up)
        };
        let SourceNews { joined, changed, left } = self.sources.news(listed, serves);
        let publishes = !joined.is_empty() || !changed.is_empty() || !left.is_empty() || is_news;
        let mut change = FleetChange::published_if(publishes);
        let mut refused = Vec::new();
        let mut known = KnownConnectors::new();
        // A name or an address may go from a worker that leaves to a worker that joins.
        self.leave_with(env, &left, &listed.source);
        for worker in joined {
            match self.join(env, &listed.source, &worker, is_start, &mut known) {
                Ok(joined) => change = change.and(joined),
                Err(PlaceError::Name | PlaceError::Url) if self.fleet.is_leaving(&worker) => {
                    debug!(url = worker.url, "joins once the worker that leaves is gone");
                }
                Err(reason) => refused.push((worker.url, reason)),
            }
        }
        self.sources.take_refused(&listed.source, &refused);
        let is_news = was_incomplete != self.sources.are_incomplete();
        change = change.and(FleetChange::published_if(is_news));
        for worker in &changed {
            self.change_settings(env, worker, &listed.source);
        }
        change
    }

    /// A worker without a place is tried again with the next list.
    fn join(
        &mut self,
        env: &Environment,
        source: &str,
        worker: &WorkerConfig,
        is_start: bool,
        known: &mut KnownConnectors,
    ) -> Result<FleetChange, PlaceError> {
        if let Some(place) = self.fleet.worker_at(&worker.url) {
            let is_same = |old: &WorkerConfig| old.name == worker.name && old.tls == worker.tls;
            if self.fleet.is_leaving(worker) && !self.probes.worker(place).is_some_and(is_same) {
                return Err(PlaceError::Url);
            }
            // Present by another source, or about to leave.
            if self.fleet.stay(place) {
                info!(source, url = worker.url, "stays, for its source lists it again");
            }
            self.sources.add_brought(source, worker.clone());
            return Ok(FleetChange::default());
        }
        let place = self.add(env, worker, known)?;
        info!(source, url = worker.url, "added by its source");
        if is_start {
            self.start_wait.add(place);
        }
        self.sources.add_brought(source, worker.clone());
        Ok(self.apply_pending_order(env, place, &worker.url))
    }

    /// Gives a worker the settings that its source lists now, and describes it by them. Settings of
    /// the configuration file count more.
    fn change_settings(&mut self, env: &Environment, worker: &WorkerConfig, source: &str) {
        let is_configured = env.config.workers.iter().any(|other| other.url == worker.url);
        let Some(place) = self.fleet.worker_at(&worker.url).filter(|_| !is_configured) else {
            return;
        };
        self.fleet.configure(&env.config, worker);
        let is_up = self.fleet.checked_state(place) == Some(WorkerState::Up);
        self.probes.renew(place, worker, is_up);
        let name = self.fleet.name(place).unwrap_or_default();
        info!(worker = &*name, source, "its settings were changed by its source");
    }

    /// Removes workers that a source no longer lists, unless the configuration has them.
    pub(super) fn leave_with(&mut self, env: &Environment, left: &[String], source: &str) {
        for url in left {
            let is_configured = env.config.workers.iter().any(|worker| worker.url == *url);
            if let Some(place) = self.fleet.worker_at(url).filter(|_| !is_configured) {
                self.leave_by(env, place, source);
            }
        }
    }

    /// Applies the changes of the configuration file: adds and removes workers.
    pub(super) fn change_workers(
        &mut self,
        env: &Environment,
        changes: &WorkerChanges,
    ) -> FleetChange {
        for url in &changes.left {
            let place = self.fleet.worker_at(url).filter(|_| !self.sources.lists(url));
            if let Some(place) = place {
                self.leave_by(env, place, "the configuration");
            }
        }
        let held_back = self.retry_held_back(env);
        held_back.and(self.join_configured(env, &changes.joined))
    }

    /// Adds workers of the configuration that waited for the name or the address of a worker that
    /// was leaving.
    fn retry_held_back(&mut self, env: &Environment) -> FleetChange {
        let held_back = self.sources.take_held_back();
        self.join_configured(env, &held_back)
    }

    fn join_configured(&mut self, env: &Environment, urls: &[String]) -> FleetChange {
        let mut change = FleetChange::default();
        for url in urls {
            let mut workers = env.config.workers.iter();
            let Some(worker) = workers.find(|worker| worker.url == *url) else { continue };
            match self.add(env, worker, &mut KnownConnectors::new()) {
                Ok(_) => {
                    self.forget_orders(url);
                    info!(url, "added by the configuration");
                }
                Err(reason @ (PlaceError::Name | PlaceError::Url))
                    if self.fleet.is_leaving(worker) =>
                {
                    info!(url, ?reason, "joins once the worker that leaves is gone");
                    self.sources.hold_back(url);
                }
                Err(reason) => {
                    warn!(
                        url,
                        ?reason,
                        "not added: its address or its name is in use; reload again once it is free"
                    );
                    change.not_joined.push(url.clone());
                }
            }
        }
        change
    }

    /// Begins the removal of a worker. The log names `by`.
    pub(super) fn leave_by(&mut self, env: &Environment, place: WorkerIndex, by: &str) {
        let patience = env.config.timeouts.drain;
        if self.fleet.leave(place, env.clock.now().plus(patience)) {
            let worker = self.fleet.name(place).unwrap_or_default();
            info!(worker = &*worker, by, ?patience, "removed: it gets nothing new");
        }
    }

    /// Ends leaving workers that are idle or late.
    pub(super) fn end_idle_workers(
        &mut self,
        env: &Environment,
        now: NanosSinceStart,
    ) -> FleetChange {
        let board = &env.board;
        let is_idle = |rank| board.rank(rank).map_or(0, RankLoad::in_flight) == 0;
        let leaving = self.fleet.leaving(now, is_idle);
        let ended = leaving.into_iter().map(|worker| self.end_worker(env, worker));
        ended.fold(FleetChange::default(), FleetChange::and)
    }

    pub(super) fn end_worker(&mut self, env: &Environment, worker: WorkerIndex) -> FleetChange {
        let name = self.fleet.name(worker).unwrap_or_default();
        info!(worker = &*name, "gone");
        self.probes.end(worker);
        self.fleet.remove(worker);
        let joined = self.retry_held_back(env);
        self.start_wait.answered(worker, false, env.clock.now());
        let ended = FleetChange { replans: true, gone: vec![worker], ..FleetChange::published() };
        joined.and(ended)
    }
}
