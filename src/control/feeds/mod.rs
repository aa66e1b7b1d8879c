//! Owner of the connections to engines beside the probes: KV-event feeds with their snapshots, load
//! reports, adapter loads, and calls of engines. Runs on the control plane's thread; the loop calls
//! [`Feeds::tick`] ten times a second. Reads the fleet, and changes no fleet: answers of engines
//! are in the value that the tick returns.

mod adapter_loads;
mod adapters;
mod engine_calls;
mod engine_restarts;
mod kv_feeds;
mod kv_pools;
mod snapshots;

pub(super) use engine_calls::{OrderResult, SleepOrder};
pub use snapshots::refuse_snapshot;

use self::adapter_loads::AdapterLoads;
use self::engine_calls::EngineCalls;
use self::engine_restarts::EngineRestarts;
use self::kv_feeds::{KvFeedSetup, KvFeeds};
use self::snapshots::{SnapshotSetup, Snapshots};
use super::environment::{ChangedKeys, Environment, UPSTREAM_TLS};
use super::fleet::{Fleet, GivenNumbers};
use forebay_admin::{EngineCall, EngineCallRefusal, EngineCallResult, FeedsView, SnapshotFigures};
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_board::account::RankCount;
use forebay_board::{LoadReport, RankLoad};
use forebay_config::Config;
use forebay_discovery::{LastChecks, LoadTasks, WorkerClients};
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::KeySeed;
use forebay_kv_events::{FeedNotice, FeedTimers};
use forebay_load::{LoadReporter, ReportSource};
use forebay_snapshot::SnapshotFile;
use std::collections::BTreeMap;
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use tokio::sync::{mpsc, oneshot};

/// Feeds and calls of all engines.
pub(super) struct Feeds {
    kv: KvFeeds,
    snapshots: Snapshots,
    loads: LoadTasks,
    reporter: Rc<LoadReporter>,
    engines: EngineCalls,
    adapters: AdapterLoads,
    restarts: EngineRestarts,
}

/// Parts of the process that the feeds start with.
pub(super) struct FeedsSetup {
    pub(super) seed: KeySeed,
    pub(super) numbers: Rc<GivenNumbers>,
    pub(super) timers: FeedTimers,
    pub(super) notices: mpsc::Sender<FeedNotice>,
    /// Last snapshot of the index.
    pub(super) snapshot: Option<SnapshotFile>,
    /// Another process may take over, and ask for a copy of the index.
    pub(super) can_hand_over: bool,
    pub(super) clients: WorkerClients,
}

/// Work for the owner of the workers after a tick of the feeds.
#[must_use]
#[derive(Debug, Default)]
pub(super) struct FeedOutcome {
    pub(super) order_results: Vec<OrderResult>,
    /// Workers to probe now: they have loaded an adapter that their last description lacks, or a
    /// call of the admin API may have changed their engines.
    pub(super) doubted: Vec<WorkerIndex>,
    /// Workers at which another process answers, by their KV events or their figures.
    pub(super) restarted: Vec<WorkerIndex>,
    /// Workers with caches that a call of the admin API emptied.
    pub(super) emptied: Vec<WorkerIndex>,
}

impl Feeds {
    /// Begins to read the snapshot. No feed runs yet.
    pub(super) fn start(env: &Environment, setup: FeedsSetup) -> Self {
        let Environment { config, clock, board, ports, .. } = env;
        let FeedsSetup { seed, numbers, timers, notices, clients, .. } = setup;
        let snapshot_setup = SnapshotSetup {
            config: &config.index,
            clock: *clock,
            seed,
            shard_count: ports.shard_count(),
            index: env.index.clone(),
            can_hand_over: setup.can_hand_over,
        };
        let snapshots = Snapshots::start(&snapshot_setup, setup.snapshot);
        let kv_setup = KvFeedSetup::new(config, seed, numbers, timers, notices);
        let kv = KvFeeds::new(kv_setup, ports, &snapshots);
        let to_shards = Rc::clone(ports);
        let post = Box::new(move |reports: &[LoadReport]| to_shards.report(reports));
        let load = config.load;
        let reporter = Rc::new(LoadReporter::new(*clock, Arc::clone(board), load.age_max, post));
        let of_tasks = Rc::clone(&reporter);
        let timeout = config.health.timeout;
        let loads = LoadTasks::new(of_tasks, *clock, clients.clone(), load, timeout);
        let engines = EngineCalls::new(clients);
        let adapters = AdapterLoads::default();
        let restarts = EngineRestarts::default();
        Self { kv, snapshots, loads, reporter, engines, adapters, restarts }
    }

    pub(super) fn tick(
        &mut self,
        env: &Environment,
        fleet: &Fleet,
        published: &FleetSnapshot,
        now: NanosSinceStart,
    ) -> FeedOutcome {
        self.reporter.tick(fleet.rank_count());
        let mut doubted = self.adapters.tick(env, fleet, published, &self.engines, now);
        doubted.extend(self.engines.take_changed());
        self.snapshots.tick(self.kv.counters(), || self.kv.copyable());
        let emptied = self.engines.take_emptied();
        let worker = |rank: RankIndex| published.rank(rank).map(|(shown, _)| shown.worker);
        let mut restarted = self.reporter.take_restarted();
        restarted.iter().for_each(|worker| self.restarts.add(*worker, None));
        for rank in self.kv.take_restarted() {
            let Some(worker) = worker(rank) else { continue };
            self.restarts.add(worker, Some(rank));
            restarted.push(worker);
        }
        FeedOutcome { order_results: self.engines.take_results(), doubted, restarted, emptied }
    }

    /// Holds back faults of feeds that follow from the state of the worker.
    pub(super) fn weigh_faults(
        &self,
        now: NanosSinceStart,
        checks: impl Fn(RankIndex) -> Option<LastChecks>,
    ) {
        self.kv.weigh_faults(now, checks);
    }

    /// Ranks without a batch though their engines have stored blocks.
    pub(super) fn silent(&mut self, env: &Environment) -> Vec<RankIndex> {
        let counters = env.ports.counters();
        let storing = |rank| {
            let of_shards = counters.iter().map(|shard| shard.choices());
            of_shards.map(|choices| choices.value(rank, RankCount::StoringAnswers)).sum()
        };
        let in_flight = |rank| env.board.rank(rank).map_or(0, RankLoad::in_flight);
        self.kv.silent(|rank| (storing(rank), in_flight(rank)))
    }

    /// Starts, replaces and ends KV-event feeds and load reports as the fleet plans.
    pub(super) fn adjust(&mut self, fleet: &Fleet) {
        self.kv.adjust(fleet.feed_plans(), fleet.rank_count());
        self.loads.adjust(fleet.load_plans());
    }

    /// Removes the blocks of a worker with caches that an order of the router emptied.
    pub(super) fn empty(&self, worker: &str) {
        self.kv.empty(worker);
    }

    /// Learns the limits of the ranks of a new fleet, before shards get the fleet.
    pub(super) fn learn_limits(&self, published: &FleetSnapshot) {
        self.reporter.follow(published);
    }

    /// Applies the configuration that was read again.
    pub(super) fn reconfigure(
        &mut self,
        config: &Config,
        changed: &ChangedKeys<'_>,
        fleet: &Fleet,
    ) {
        if changed.any(&["health.", "load.", "worker.", "worker_defaults.", UPSTREAM_TLS]) {
            self.reporter.set_age_max(config.load.age_max);
            self.loads.set_config(config.load, config.health.timeout);
            self.loads.adjust(fleet.load_plans());
        }
        if changed.any(&["kv."]) {
            self.kv.set_kv(&config.kv);
            self.kv.adjust(fleet.feed_plans(), fleet.rank_count());
        }
    }

    pub(super) fn send_order(&mut self, order: SleepOrder) {
        self.engines.send_order(order);
    }

    /// Passes a call of the admin API on to engines.
    pub(super) fn call_engines(
        &self,
        fleet: &Fleet,
        call: &EngineCall,
        answer: oneshot::Sender<Result<Vec<EngineCallResult>, EngineCallRefusal>>,
    ) {
        self.engines.call(fleet, call, answer);
    }

    pub(super) fn reporter(&self) -> &LoadReporter {
        &self.reporter
    }

    /// Restarts of engines, for workers with a restart.
    pub(super) const fn restarts(&self) -> &BTreeMap<WorkerIndex, u64> {
        self.restarts.counts()
    }

    /// Forgets a worker that left: another worker may get its place. `published` has the worker.
    pub(super) fn forget(&mut self, worker: WorkerIndex, published: &FleetSnapshot) {
        self.reporter.forget(worker, published);
        self.restarts.forget(worker);
    }

    /// Source of the worker's load reports.
    pub(super) fn load_source(&self, worker: WorkerIndex) -> Option<ReportSource> {
        self.loads.source(worker)
    }

    pub(super) fn view(&self) -> FeedsView<'_> {
        self.kv.view()
    }

    /// `None` where no snapshots are written.
    pub(super) fn snapshot_figures(&self) -> Option<SnapshotFigures> {
        self.snapshots.figures()
    }

    /// Why the last snapshot could not be written, if it could not.
    pub(super) fn snapshot_concern(&self) -> Option<String> {
        self.snapshots.concern()
    }

    /// Reason why the router is not ready, while ranks wait for their restored blocks.
    pub(super) fn restoring(&self) -> Option<String> {
        self.snapshots.restoring()
    }

    /// Sends a copy of the index to the next process.
    pub(super) fn hand_over_index(&self, answer: SyncSender<Option<File>>) {
        let copy = self.snapshots.copy(self.kv.copyable());
        tokio::task::spawn_local(snapshots::answer(copy, answer));
    }

    /// Writes the last snapshot.
    pub(super) async fn finish(&mut self) {
        self.snapshots.finish(|| self.kv.copyable()).await;
    }
}
