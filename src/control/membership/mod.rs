//! Owner of the workers: places in the fleet, probes, sources of workers, operators' orders and
//! their file. Runs on the control plane's thread; the loop calls [`Membership::tick`] ten times a
//! second. Starts no feed and publishes no fleet: work for the other owners is in the
//! [`FleetChange`] that each method returns.

mod change;
mod joining;
mod line_file;
mod model_log;
mod model_memory;
mod operator_state;
mod orders;
mod probes;
mod redescriptions;
mod signs;
mod source_faults;
mod sources;
mod start_wait;
mod workers_state;

pub(super) use change::{FleetChange, SlowStart};
pub(super) use sources::SourceReading;
pub(super) use workers_state::Confirmation;

use self::model_log::{log_left_out, log_shared_engine};
use self::model_memory::ModelMemory;
use self::probes::Probes;
use self::signs::pass_on_signs;
use self::sources::WorkerLists;
use self::start_wait::StartWait;
use self::workers_state::WorkersState;
use super::environment::{ChangedKeys, Environment, UPSTREAM_TLS, WORKER_KEYS};
use super::fleet::Fleet;
use super::tls::take_connectors;
use forebay_admin::{StateFileFigures, WorkerSource};
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_board::{ForeignOrigin, LoadBoard, RankLoad};
use forebay_config::{Connectors, WorkerChanges, WorkerConfig};
use forebay_discovery::{LastChecks, ProbeNotice, WorkerClients};
use forebay_fleet::worker::{FleetSnapshot, WorkerState};
use forebay_index::KeySeed;
use forebay_kv_events::FeedNotice;
use forebay_load::LoadReporter;
use std::collections::BTreeMap;
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tracing::{error, info, warn};

/// An engine takes longer to start.
const RESTARTS_APART_MIN: Duration = Duration::from_secs(10);
/// Longest pause between the signs of a worker that count.
const RESTARTS_APART_MAX: Duration = Duration::from_secs(3_600);

/// A sign of a restart that counted. Behind an address of several processes the signs come again
/// and again: such signs count less and less often.
#[derive(Clone, Copy, Debug)]
struct RestartSign {
    at: NanosSinceStart,
    /// Pause until the next sign counts.
    apart: Duration,
}

impl RestartSign {
    /// A later sign, if it counts.
    fn next(self, now: NanosSinceStart) -> Option<Self> {
        if now < self.at.plus(self.apart) {
            return None;
        }
        let is_recent = now < self.at.plus(self.apart * 4);
        let apart = if is_recent { self.apart * 2 } else { RESTARTS_APART_MIN };
        Some(Self { at: now, apart: apart.min(RESTARTS_APART_MAX) })
    }
}

/// Keys that probes depend on.
const OF_PROBES: [&str; 8] = [
    "health.",
    "model_dir",
    "engine",
    "image_key_file",
    "worker.",
    "worker_defaults.",
    "timeouts.connect",
    UPSTREAM_TLS,
];

/// Workers of the fleet, and the tasks that watch the workers and their sources.
pub(super) struct Membership {
    fleet: Fleet,
    sources: WorkerLists,
    probes: Probes,
    connectors: Connectors,
    /// File of operators' orders, if the configuration names a file.
    orders_file: Option<WorkersState>,
    models: ModelMemory,
    start_wait: StartWait,
    /// When a worker's failures were last forgotten by a sign of a restart.
    restarts: BTreeMap<WorkerIndex, RestartSign>,
}

impl Membership {
    /// Starts the probes of the configured workers and the reading of the sources. Readings come
    /// out of the receiver.
    pub(super) fn start(
        env: &Environment,
        seed: KeySeed,
        connectors: Connectors,
        clients: &WorkerClients,
        notices: mpsc::Sender<ProbeNotice>,
    ) -> (Self, mpsc::Receiver<SourceReading>) {
        let config = &env.config;
        let mut fleet = Fleet::new(config, seed);
        fleet.set_connectors(&connectors);
        let probes = Probes::start(config, env.clock, clients, notices);
        let (sources, lists) = WorkerLists::start(config);
        let all = 0..config.workers.len();
        let membership = Self {
            fleet,
            sources,
            probes,
            connectors,
            orders_file: None,
            models: ModelMemory::default(),
            restarts: BTreeMap::new(),
            start_wait: StartWait::new(
                all.filter_map(WorkerIndex::try_from_index),
                env.clock.now(),
                env.first_fleet_at,
            ),
        };
        (membership, lists)
    }

    pub(super) fn tick(
        &mut self,
        env: &Environment,
        published: &FleetSnapshot,
        reporter: &LoadReporter,
        now: NanosSinceStart,
    ) -> FleetChange {
        pass_on_signs(&self.probes, env, published, reporter, now);
        self.count_left_requests(&env.board);
        let change = self.stop_waiting(env, now).and(self.judge_feeds_again(now));
        let change = change.and(self.end_idle_workers(env, now));
        change.and(self.send_to_sleep(env, published, now))
    }

    /// Counts requests of a worker that has left its engine to another worker, for the limits of
    /// that worker. Called before each fleet is published, and with each tick.
    pub(super) fn count_left_requests(&self, board: &LoadBoard) {
        let in_flight = |rank| board.rank(rank).map_or(0, RankLoad::in_flight);
        let mut left = BTreeMap::<RankIndex, (u32, u64)>::new();
        for (rank, twin) in self.fleet.busy_twins(in_flight) {
            let Some(load) = board.rank(twin) else { continue };
            let (places, kv_tokens) = left.entry(rank).or_default();
            *places = places.saturating_add(load.in_flight());
            *kv_tokens = kv_tokens.saturating_add(load.kv_tokens());
        }
        for rank in (0..self.fleet.rank_count()).filter_map(RankIndex::try_from_index) {
            let (places, kv_tokens) = left.get(&rank).copied().unwrap_or_default();
            board.set_elsewhere(rank, ForeignOrigin::SameEngine, places, kv_tokens);
        }
    }

    /// Judges the feeds without the workers that have not answered since the last reload.
    fn judge_feeds_again(&mut self, now: NanosSinceStart) -> FleetChange {
        let was_deferred = self.probes.redescriptions.is_begun();
        let is_deferred = self.probes.redescriptions.are_awaited(now);
        self.fleet.defer_judgement(is_deferred);
        FleetChange::published_if(was_deferred && !is_deferred)
    }

    pub(super) const fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// A new generation of the fleet, before other owners add to the snapshot.
    pub(super) fn snapshot(&mut self) -> FleetSnapshot {
        let mut snapshot = self.fleet.snapshot();
        snapshot.serving.is_incomplete |= self.sources.are_incomplete();
        self.fleet.take_shared_engines().iter().for_each(log_shared_engine);
        snapshot
    }

    /// The configured sources of workers, with their faults.
    pub(super) fn configured_sources(&self) -> &[WorkerSource] {
        self.sources.configured()
    }

    /// Workers of the start have not answered yet.
    pub(super) fn is_starting(&self) -> bool {
        !self.start_wait.is_over()
    }

    /// Another process serves meanwhile: the first fleet waits for slow workers too.
    pub(super) const fn wait_for_slow(&mut self) {
        self.start_wait.wait_for_slow();
    }

    /// May shards get a fleet? Shards listen from their first fleet on. A first fleet with all
    /// workers spares the first clients a 503.
    pub(super) fn may_publish(&self) -> bool {
        self.start_wait.is_over() && !self.sources.are_awaited()
    }

    /// Probes the worker now: it may have been restarted.
    pub(super) fn doubt(&self, worker: WorkerIndex) {
        self.probes.doubt(worker);
    }

    /// The last health checks of the worker.
    pub(super) fn last_checks(&self, worker: WorkerIndex) -> Option<LastChecks> {
        self.probes.last_checks(worker)
    }

    pub(super) fn take_feed_notice(
        &mut self,
        notice: FeedNotice,
        published: &FleetSnapshot,
    ) -> FleetChange {
        let before = published.ranks.get(notice.rank.index());
        // The publisher connected or disconnected, perhaps because the process restarted.
        if let Some(rank) = before.filter(|before| before.kv_feed_live != notice.live) {
            self.probes.doubt(rank.worker);
        }
        FleetChange::published_if(self.fleet.set_feed(notice))
    }

    /// Takes the ranks without a batch though their engines have stored blocks.
    pub(super) fn take_silent(&mut self, silent: &[RankIndex]) -> FleetChange {
        FleetChange::published_if(self.fleet.set_silent(silent))
    }

    pub(super) fn take_probe_notice(
        &mut self,
        env: &Environment,
        notice: ProbeNotice,
    ) -> FleetChange {
        match notice {
            ProbeNotice::State { worker, state } => {
                let is_up = state == WorkerState::Up;
                let slow_start = self.slow_start(env, worker, state);
                self.start_wait.answered(worker, is_up, env.clock.now());
                if is_up && self.fleet.checked_state(worker) == Some(WorkerState::Down) {
                    self.forget_failures(env, worker);
                }
                let publishes = self.fleet.set_state(worker, state);
                FleetChange { publishes, slow_start, ..FleetChange::default() }
            }
            ProbeNotice::Restarted { worker } => {
                self.forget_failures(env, worker);
                FleetChange::default()
            }
            ProbeNotice::Trouble { worker, error } => {
                if error.is_some() {
                    self.start_wait.failed(worker);
                }
                FleetChange::published_if(self.fleet.set_error(worker, error))
            }
            ProbeNotice::Registered { worker, registration } => {
                FleetChange::published_if(self.fleet.set_registration(worker, &registration))
            }
            ProbeNotice::Described { worker, address, description, texts } => {
                let config = &env.config;
                let needs_text = config.policy.uses_overlap();
                // Prompts of a worker that lists nothing are seldom its own.
                if !description.listing.is_nothing() {
                    model_log::log_texts(&self.fleet, &texts, needs_text);
                }
                let before = self.fleet.model_names(worker);
                let sharing = self.fleet.sharing_models();
                let unequal = self.fleet.unequal_lengths();
                let is_other = self.fleet.is_other_engine(worker, &description);
                let left = self.fleet.describe(worker, address, description, texts);
                self.probes.redescriptions.end(worker);
                self.fleet.defer_judgement(self.probes.redescriptions.are_awaited(env.clock.now()));
                if is_other {
                    self.forget_failures(env, worker);
                }
                model_log::log_list(&mut self.fleet, worker);
                model_log::log_other_models(&self.fleet, worker, &before);
                model_log::log_lengths(&unequal, &self.fleet.unequal_lengths());
                if needs_text {
                    let dir = config.model_dir.as_deref();
                    model_log::log_sharing(&sharing, &self.fleet.sharing_models(), dir);
                }
                log_left_out(&left);
                FleetChange { replans: true, ..FleetChange::published() }
            }
        }
    }

    /// Takes the configuration that was read again, and reads the files of keys of workers and of
    /// TLS to workers. Returns the keys of files that give a worker another key or connector.
    pub(super) fn take_config(&mut self, env: &Environment) -> Vec<&'static str> {
        let config = &env.config;
        let keys = self.fleet.keys();
        self.fleet.set_config(Arc::clone(config));
        let is_listed = |url: &str| config.workers.iter().any(|worker| worker.url == url);
        for worker in self.probes.workers().filter(|worker| !is_listed(&worker.url)) {
            self.fleet.configure(config, worker);
        }
        let has_new_keys = keys != self.fleet.keys();
        let has_new_connectors = self.renew_connectors(env);
        let changed = [(has_new_keys, WORKER_KEYS), (has_new_connectors, UPSTREAM_TLS)];
        changed.into_iter().filter_map(|(is_new, key)| is_new.then_some(key)).collect()
    }

    /// Restarts probes and sources that depend on changed keys. Workers join and leave.
    pub(super) fn reconfigure(
        &mut self,
        env: &Environment,
        changed: &ChangedKeys<'_>,
        workers: &WorkerChanges,
    ) -> FleetChange {
        if changed.any(&OF_PROBES) {
            let fleet = &self.fleet;
            let is_up = |worker| fleet.checked_state(worker) == Some(WorkerState::Up);
            let by = env.clock.now().plus(env.config.health.timeout);
            self.probes.restart(&env.config, is_up, by);
            self.fleet.defer_judgement(self.probes.redescriptions.is_begun());
        }
        if changed.any(&["discovery.", UPSTREAM_TLS]) {
            let left = self.sources.look(&env.config);
            self.leave_with(env, &left, "the configuration");
        }
        self.change_workers(env, workers)
    }

    /// Sends the names of models to the next process, in a file.
    pub(super) fn hand_over_models(&self, answer: SyncSender<Option<File>>) {
        let workers = self.fleet.remembered();
        tokio::task::spawn_blocking(move || {
            let file = model_memory::file_of(&workers);
            let file = file.inspect_err(|error| {
                warn!(%error, "the models of the workers are not handed over");
            });
            let _ = answer.send(file.ok());
        });
    }

    /// Why the file does not hold the operators' orders.
    pub(super) fn orders_concern(&self, now: NanosSinceStart) -> Option<String> {
        self.orders_file.as_ref()?.concern(now)
    }

    /// Writes of the orders' file; `None` without a file.
    pub(super) fn orders_figures(&self) -> Option<StateFileFigures> {
        self.orders_file.as_ref().map(WorkersState::figures)
    }

    /// Notified when a write of the orders' file has ended.
    pub(super) fn orders_written(&self) -> Rc<Notify> {
        self.orders_file.as_ref().map(WorkersState::ended).unwrap_or_default()
    }

    /// Forgets failures of workers with a sign of a restart, and describes them again.
    pub(super) fn take_restarted(
        &mut self,
        env: &Environment,
        workers: &[WorkerIndex],
        now: NanosSinceStart,
    ) {
        for &worker in workers {
            let sign = match self.restarts.get(&worker) {
                None => Some(RestartSign { at: now, apart: RESTARTS_APART_MIN }),
                Some(last) => last.next(now),
            };
            if let Some(sign) = sign {
                self.restarts.insert(worker, sign);
                self.forget_failures(env, worker);
                self.probes.doubt(worker);
            }
        }
    }

    /// The process that answers from now on may be another, which did not cause the failures.
    fn forget_failures(&self, env: &Environment, worker: WorkerIndex) {
        let ranks = self.fleet.rank_indices(worker).filter_map(|rank| env.board.rank(rank));
        let mut held = 0_usize;
        for rank in ranks {
            held += usize::from(rank.held().is_some());
            rank.forget_failures();
        }
        if held > 0 {
            let worker = self.fleet.name(worker).unwrap_or_default();
            info!(
                worker = &*worker,
                ranks = held,
                "the worker answers again, maybe as another process: its failures are forgotten"
            );
        }
    }

    /// Begins or ends the slow start of a worker that enters the state. A worker that was down, or
    /// that joins after the start of the router, starts slowly.
    fn slow_start(
        &self,
        env: &Environment,
        worker: WorkerIndex,
        state: WorkerState,
    ) -> Option<SlowStart> {
        let before = self.fleet.checked_state(worker);
        let joins = before == Some(WorkerState::Unknown) && !self.start_wait.is_of_start(worker);
        let comes_back = before == Some(WorkerState::Down) || joins;
        if state != WorkerState::Up {
            return Some(SlowStart::End(worker));
        }
        let begins = comes_back && !env.config.health.slow_start.is_zero();
        begins.then_some(SlowStart::Begin(worker))
    }

    /// Workers that are down at start delay the first fleet for a bounded time.
    fn stop_waiting(&mut self, env: &Environment, now: NanosSinceStart) -> FleetChange {
        if self.may_publish() {
            return FleetChange::default();
        }
        let is_late = now >= env.first_fleet_at;
        if is_late {
            self.sources.stop_waiting();
        }
        if is_late || self.start_wait.is_due(now) && !self.sources.are_awaited() {
            self.start_wait.end();
        }
        FleetChange::published_if(self.may_publish())
    }

    /// True if a worker gets another connector.
    fn renew_connectors(&mut self, env: &Environment) -> bool {
        let config = &env.config;
        let is_configured = |url: &str| config.workers.iter().any(|worker| worker.url == url);
        // A worker that leaves may have lost its own files.
        let has_own_files = |worker: &WorkerConfig| worker.tls.has_files();
        let added = self.probes.workers();
        let added = added.filter(|worker| !is_configured(&worker.url) && !has_own_files(worker));
        let workers: Vec<WorkerConfig> = config.workers.iter().chain(added).cloned().collect();
        let read = match config.connectors_of(&workers) {
            Ok(read) => read,
            Err(fault) => {
                error!(%fault, "TLS to workers: not read again, the files from before stay in use");
                return false;
            }
        };
        let is_new = take_connectors(&mut self.connectors, read);
        self.fleet.set_connectors(&self.connectors);
        let clients = self.probes.clients();
        clients.forget(|authority| self.fleet.knows(authority));
        if let Err(error) = clients.renew(config, &workers, &self.connectors) {
            error!(%error, "workers are asked about themselves as before");
        }
        is_new
    }
}

#[cfg(test)]
mod restart_sign_tests {
    use super::*;

    fn at(seconds: u64) -> NanosSinceStart {
        NanosSinceStart(seconds * 1_000_000_000)
    }

    /// An address of two processes shows a sign each second of a day.
    #[test]
    fn signs_that_never_end_count_less_and_less_often() {
        let mut sign = RestartSign { at: at(0), apart: RESTARTS_APART_MIN };
        let mut counted = Vec::new();
        for second in 1..86_400 {
            if let Some(next) = sign.next(at(second)) {
                counted.push(second);
                sign = next;
            }
        }
        assert_eq!(counted[..4], [10, 30, 70, 150]);
        assert!(counted.len() < 40, "{counted:?}");
        let restart = sign.next(at(86_400 * 2)).unwrap();
        assert_eq!(restart.apart, RESTARTS_APART_MIN, "a restart of the next day");
    }
}
