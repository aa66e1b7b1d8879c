//! Workers that operators take out, add and remove through the admin API.

use super::super::fleet::NoPlace;
use super::super::membership::{SourceNews, WorkerList};
use super::Control;
use forebay_admin::{AddRefused, AddWorkerRequest, StreamsStay, WorkerDrain};
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_config::{KnownConnectors, WorkerChanges, WorkerConfig, WorkerUrl};
use forebay_fleet::worker::{RankLoad, WorkerState};
use serde_json::Value;
use tracing::{error, info, warn};

impl Control {
    pub(super) fn set_draining(
        &mut self,
        worker: &str,
        order: WorkerDrain,
    ) -> Result<(), StreamsStay> {
        let Some(index) = self.fleet.worker_named(worker) else { return Ok(()) };
        if order == WorkerDrain::MoveStreams && !self.env.config.retry.mid_stream {
            return Err(StreamsStay);
        }
        if !self.fleet.set_draining(index, order) {
            return Ok(());
        }
        let moves_streams = order == WorkerDrain::MoveStreams;
        match order {
            WorkerDrain::Off => info!(worker, "takes requests again by the admin API"),
            _ => info!(worker, moves_streams, "drains by the admin API: it gets nothing new"),
        }
        self.publish();
        Ok(())
    }

    /// A worker gets a place, and is asked about itself from now on. Reads the files of TLS to one
    /// with `https://` that the configuration does not have, small as those of a reload.
    /// `known`: what was read for others of the same list.
    pub(super) fn add(
        &mut self,
        worker: &WorkerConfig,
        known: &mut KnownConnectors,
    ) -> Result<WorkerIndex, NoPlace> {
        let connectors = &mut self.setup.connectors;
        let config = &self.env.config;
        let authority =
            WorkerUrl::parse(&worker.url).map_or_else(|_| String::new(), |url| url.authority);
        let is_same = |one: &WorkerConfig| one.url == worker.url && one.tls == worker.tls;
        let is_configured = config.workers.iter().any(is_same);
        let connector = match connectors.get(&authority) {
            Some(known) if is_configured => Some(known.clone()),
            _ => config.connector(worker, known).map_err(NoPlace::Tls)?,
        };
        let place = self.fleet.add(config, worker, connector.clone())?;
        if let Some(connector) = connector {
            connectors.insert(authority, connector);
            let workers = std::slice::from_ref(worker);
            if let Err(error) = self.probes.clients().renew(config, workers, connectors) {
                error!(%error, url = worker.url, "not asked over TLS: mend `upstream_tls`, reload");
            }
        }
        self.probes.add(place, worker);
        Ok(place)
    }

    /// The worker as it is then: not known yet.
    pub(super) fn add_worker(&mut self, asked: &AddWorkerRequest) -> Result<Value, AddRefused> {
        let worker = asked.worker();
        let place =
            self.add(worker, &mut KnownConnectors::new()).map_err(|reason| match reason {
                NoPlace::Url => AddRefused::UrlTaken,
                NoPlace::Engine(name) => AddRefused::EngineTaken(name.to_string()),
                NoPlace::Tls(fault) => AddRefused::Tls(fault),
                NoPlace::Name => AddRefused::NameTaken,
                NoPlace::Full => AddRefused::Full,
            })?;
        let name = self.fleet.name(place).unwrap_or_default();
        info!(worker = &*name, url = worker.url, "added by the admin API");
        self.publish();
        self.workers(|all| forebay_admin::worker_named(&name, all)).ok_or(AddRefused::Full)
    }

    /// A source says what it lists now.
    pub(super) fn listed(&mut self, listed: &WorkerList) {
        let is_start = self.sources.are_awaited();
        let fleet = &self.fleet;
        let serves = |worker: &WorkerConfig| {
            let place = fleet.worker_at(&worker.url);
            place.and_then(|place| fleet.checked_state(place)) == Some(WorkerState::Up)
        };
        let SourceNews { joined, left } = self.sources.news(listed, serves);
        let ends_wait = is_start && !self.sources.are_awaited();
        let changes = !joined.is_empty() || !left.is_empty();
        let mut refused = Vec::new();
        let mut known = KnownConnectors::new();
        for worker in joined {
            let url = worker.url.clone();
            if let Err(reason) = self.join(&listed.source, worker, is_start, &mut known) {
                refused.push((url, reason));
            }
        }
        self.sources.were_refused(&listed.source, &refused);
        self.leave_with(&left, &listed.source);
        if changes || ends_wait {
            self.publish();
        }
    }

    /// One that finds no place is tried again with the next list.
    fn join(
        &mut self,
        source: &str,
        worker: WorkerConfig,
        is_start: bool,
        known: &mut KnownConnectors,
    ) -> Result<(), NoPlace> {
        if let Some(place) = self.fleet.worker_at(&worker.url) {
            // By another source, or on its way out.
            if self.fleet.stay(place) {
                info!(source, url = worker.url, "stays, for its source lists it again");
            }
            self.sources.has_brought(source, worker);
            return Ok(());
        }
        let place = self.add(&worker, known)?;
        info!(source, url = worker.url, "added by its source");
        if is_start {
            self.unheard.insert(place);
        }
        let url = worker.url.clone();
        self.sources.has_brought(source, worker);
        self.obey_earlier(place, &url);
        Ok(())
    }

    /// Workers that a source lists no more leave, unless the configuration has them.
    pub(super) fn leave_with(&mut self, left: &[String], source: &str) {
        for url in left {
            let is_configured = self.env.config.workers.iter().any(|one| one.url == *url);
            if let Some(place) = self.fleet.worker_at(url).filter(|_| !is_configured) {
                self.leave_by(place, source);
            }
        }
    }

    /// Workers that the configuration file has, or has no more, since it was read last.
    pub(super) fn change_workers(&mut self, changes: &WorkerChanges) {
        for url in &changes.left {
            let place = self.fleet.worker_at(url).filter(|_| !self.sources.lists(url));
            if let Some(place) = place {
                self.leave_by(place, "the configuration");
            }
        }
        let held_back = self.sources.take_held_back();
        for url in held_back.iter().chain(&changes.joined) {
            let mut workers = self.env.config.workers.iter();
            let Some(worker) = workers.find(|worker| worker.url == *url).cloned() else { continue };
            match self.add(&worker, &mut KnownConnectors::new()) {
                Ok(_) => info!(url, "added by the configuration"),
                Err(reason @ (NoPlace::Name | NoPlace::Url)) if self.fleet.is_leaving(&worker) => {
                    info!(url, ?reason, "joins once the worker that leaves is gone");
                    self.sources.hold_back(url);
                }
                Err(reason) => {
                    warn!(
                        url,
                        ?reason,
                        "not added: its address or its name is in use; reload again once it is free"
                    );
                    self.lifecycle.mark_not_joined(std::slice::from_ref(url));
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
        let patience = self.env.config.timeouts.drain;
        if self.fleet.leave(place, self.env.clock.now().plus(patience)) {
            let worker = self.fleet.name(place).unwrap_or_default();
            info!(worker = &*worker, by, ?patience, "removed: it gets nothing new");
        }
    }

    /// Ends workers that were removed, once they are idle or their time is over.
    pub(super) fn end_workers(&mut self, now: NanosSinceStart) {
        let board = &self.env.board;
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
        self.change_workers(&WorkerChanges::default());
        self.unheard.remove(&worker);
        self.reports.forget(worker);
        self.feeds.adjust(&self.fleet);
        self.publish();
    }
}
