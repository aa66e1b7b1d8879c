//! The control plane's loop: the one owner of the fleet, the feeds and everything that the admin
//! API shows. Runs on its own thread, on a `tokio` runtime of that thread alone.

mod anew;
mod answering;
mod coming;
mod ending;
mod kept;
mod live;
mod signs;
mod sleeping;

use super::environment::{Environment, TICK};
use super::error::ControlError;
use super::feeds::{Feeds, FeedsSetup};
use super::fleet::{Fleet, ListNews, SharedEngine};
use super::lifecycle::{
    AdminRules, FrontDoor, Handover, Lifecycle, LifecycleStep, StopOrder, StopSignal,
};
use super::membership;
use super::membership::WorkersState;
use super::membership::{ModelMemory, Probes};
use super::membership::{WorkerList, WorkerLists};
use super::ports::Ports;
use super::reports::{EjectionEvent, ReportSources, Reports};
use super::setup::ControlSetup;
use super::shown::Warming;
use crate::log::dropped_lines_count;
use forebay_admin::{
    Explaining, FleetView, LiveFeed, NotesReader, Question, RecordFigures, ScrapeSources,
    ShardsView, WorkerSources,
};
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_config::{Connectors, Policy};
use forebay_discovery::{Listing, ProbeNotice, WorkerClients};
use forebay_fleet::account::StageHistograms;
use forebay_fleet::worker::FleetSnapshot;
use forebay_handover::HostCall;
use forebay_kv_events::FeedNotice;
use forebay_replicas::Replicas;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

/// Notices under way from probes and feeds; full ones wait.
const NOTICES_MAX: usize = 256;
/// Calls of processes that take over.
const HOST_CALLS_MAX: usize = 4;

/// Runs the control plane; returns after the drain that `stopped` or a signal asks for.
///
/// # Errors
/// [`ControlError`] when the runtime, a signal or the admin socket cannot be had.
pub fn run(setup: ControlSetup) -> Result<(), ControlError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let ran = LocalSet::new().block_on(&runtime, Control::start_and_run(setup));
    // A resolver that does not answer must not hold up the end of the process.
    runtime.shutdown_background();
    ran
}

/// All that the loop waits for, beside signals and time.
struct Inboxes {
    probed: mpsc::Receiver<ProbeNotice>,
    fed: mpsc::Receiver<FeedNotice>,
    asked: mpsc::Receiver<Question>,
    called: mpsc::Receiver<HostCall>,
    listed: mpsc::Receiver<WorkerList>,
}

struct Control {
    env: Environment,
    setup: Parts,
    reports: Reports,
    lifecycle: Lifecycle,
    fleet: Fleet,
    snapshot: Arc<FleetSnapshot>,
    feeds: Feeds,
    replicas: Option<Rc<Replicas>>,
    histograms: StageHistograms,
    explaining: Explaining,
    live: LiveFeed,
    probes: Probes,
    sources: WorkerLists,
    warming: Warming,
    /// Workers whose state is not known yet; empty once the shards have their first fleet.
    unheard: HashSet<WorkerIndex>,
}

/// The parts of the setup that stay as they are.
struct Parts {
    connectors: Connectors,
    models: ModelMemory,
    workers_state: Option<WorkersState>,
}

impl Control {
    async fn start_and_run(setup: ControlSetup) -> Result<(), ControlError> {
        let ControlSetup { config, clock, seed, snapshot, end, feed_timers, tls, .. } = setup;
        let ControlSetup { board, index, admin, access, stopped, signals, reloader, .. } = setup;
        let stop = StopSignal::listen(stopped, signals)?;
        let (questions, asked) = mpsc::channel(NOTICES_MAX);
        let admin_rules = AdminRules::new(setup.admin_tls, access);
        let (host_calls, called) = mpsc::channel(HOST_CALLS_MAX);
        let door = admin_rules.door(admin, setup.callers, questions)?;
        let handover = Handover::start(setup.handover, clock, host_calls, door);
        let clients = WorkerClients::new(&config, &tls.connectors).map_err(ControlError::Client)?;
        let clients = clients.of_router(setup.router_id);
        let (probe_notices, probed) = mpsc::channel(NOTICES_MAX);
        let probes = Probes::start(&config, clock, &clients, probe_notices);
        let (feed_notices, fed) = mpsc::channel(NOTICES_MAX);
        let (sources, listed) = WorkerLists::start(&config);
        let mut fleet = Fleet::new(&config, seed);
        fleet.set_connectors(&tls.connectors);
        let front = FrontDoor::open(&config, setup.api_keys, tls.server)?;
        let ports = Rc::new(Ports::new(end));
        let replicas = Replicas::start(&config, clock, &board)?;
        let (workers_state, orders) =
            config.workers_state.as_deref().map(WorkersState::open).unzip();
        let can_hand_over = handover.can_hand_over();
        let env = Environment {
            first_fleet_at: clock.now().plus(config.health.timeout),
            config,
            clock,
            board,
            index,
            ports,
        };
        let feeds = FeedsSetup {
            seed,
            numbers: fleet.tier_numbers(),
            timers: feed_timers,
            notices: feed_notices,
            snapshot,
            can_hand_over,
            clients,
        };
        let feeds = Feeds::start(&env, feeds);
        let mut control = Self {
            unheard: (0..env.config.workers.len())
                .filter_map(WorkerIndex::try_from_index)
                .collect(),
            env,
            setup: Parts {
                connectors: tls.connectors,
                models: ModelMemory::default(),
                workers_state,
            },
            lifecycle: Lifecycle::new(handover, reloader, admin_rules, front),
            reports: Reports::default(),
            fleet,
            snapshot: Arc::default(),
            feeds,
            replicas,
            histograms: StageHistograms::new(),
            explaining: Explaining::start()?,
            live: LiveFeed::default(),
            probes,
            sources,
            warming: Warming::default(),
        };
        control.bring_back(&orders.unwrap_or_default());
        control.turn(Inboxes { probed, fed, asked, called, listed }, stop).await;
        control.finish().await
    }

    /// Until the shards have drained.
    async fn turn(&mut self, mut inboxes: Inboxes, mut stop: StopSignal) {
        self.lifecycle.report_ready();
        let mut tick = tokio::time::interval(TICK);
        let kept = self.setup.workers_state.as_ref().map(WorkersState::ended).unwrap_or_default();
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(notice) = inboxes.probed.recv() => self.probed(notice),
                Some(notice) = inboxes.fed.recv() => self.fed(notice),
                Some(question) = inboxes.asked.recv() => self.answer(question),
                Some(call) = inboxes.called.recv() => self.called(call),
                Some(list) = inboxes.listed.recv() => self.listed(&list),
                () = kept.notified() => self.keep_workers(),
                order = stop.asked() => match order {
                    StopOrder::Stop => self.start_drain(),
                    // Whatever came of it is in the log.
                    StopOrder::Reload => drop(self.reload()),
                },
                _ = tick.tick() => {
                    self.env.ports.merge_histograms(&mut self.histograms);
                    let now = self.env.clock.now();
                    self.tick_feeds(now);
                    self.pass_on_signs();
                    self.live.observe(&self.snapshot, self.env.board.windows(), now);
                    self.show_live();
                    self.stop_waiting();
                    self.end_workers(now);
                    self.turn_sleepers(now);
                    self.keep_workers();
                    self.keep_models();
                    self.tick_reports(now);
                    self.warm_up(now);
                    forebay_heap::give_back();
                    if self.tick_lifecycle(now).ends {
                        return;
                    }
                }
            }
        }
    }

    fn fed(&mut self, notice: FeedNotice) {
        let before = self.snapshot.ranks.get(notice.rank.index());
        // Its publisher has come or gone, and with it perhaps the whole process.
        if let Some(rank) = before.filter(|before| before.kv_feed_live != notice.live) {
            self.probes.doubt(rank.worker);
        }
        if self.fleet.set_feed(notice) {
            self.publish();
        }
    }

    fn probed(&mut self, notice: ProbeNotice) {
        match notice {
            ProbeNotice::State { worker, state } => {
                self.unheard.remove(&worker);
                self.note_comeback(worker, state);
                if self.fleet.set_state(worker, state) {
                    self.publish();
                }
            }
            ProbeNotice::Registered { worker, registration } => {
                if self.fleet.set_registration(worker, &registration) {
                    self.publish();
                }
            }
            ProbeNotice::Described { worker, address, description, texts } => {
                let needs_text = self.env.config.policy == Policy::Kv;
                // Prompts of a worker that lists nothing are seldom its own.
                if !description.listing.is_nothing() {
                    membership::say_new(&self.fleet, &texts, needs_text);
                }
                let before = self.fleet.model_names(worker);
                let sharing = self.fleet.sharing_models();
                let unequal = self.fleet.unequal_lengths();
                let left = self.fleet.describe(worker, address, description, texts);
                self.log_list(worker);
                self.say_other_models(worker, &before);
                membership::say_lengths(&unequal, &self.fleet.unequal_lengths());
                if needs_text {
                    let dir = self.env.config.model_dir.as_deref();
                    membership::say_shared(&sharing, &self.fleet.sharing_models(), dir);
                }
                if left.ranks + left.models > 0 {
                    warn!(
                        ranks = left.ranks,
                        models = left.models,
                        "the fleet is larger than this router's limits: these take no traffic"
                    );
                }
                self.feeds.adjust(&self.fleet);
                self.publish();
            }
        }
    }

    /// One line when the list of a worker goes missing, and one when it is back.
    fn log_list(&mut self, worker: WorkerIndex) {
        let ListNews { lost, is_back } = self.fleet.take_list_news(worker);
        let name = self.logged_name(worker);
        if let Some((fault, does)) = lost {
            warn!(worker = name, fault, does, help = Listing::HELP, "worker lists no models");
        } else if is_back {
            let models = membership::named(&self.fleet.model_names(worker));
            info!(worker = name, models, "worker lists its models");
        }
    }

    fn say_other_models(&self, worker: WorkerIndex, before: &[Arc<str>]) {
        let now = self.fleet.model_names(worker);
        if before.is_empty() || *before == *now {
            return;
        }
        let name = self.logged_name(worker);
        let before = membership::named(before);
        let models = membership::named(&now);
        info!(worker = name, before, models, "worker serves other models now");
    }

    /// What the log calls a worker: its URL, if it is configured.
    fn logged_name(&self, worker: WorkerIndex) -> String {
        let configured = self.env.config.workers.get(worker.index());
        let name = || self.fleet.name(worker).map_or_else(String::new, |name| name.to_string());
        configured.map_or_else(name, |configured| configured.url.clone())
    }

    fn publish(&mut self) {
        let mut fleet = self.fleet.snapshot();
        self.fleet.take_shared_engines().iter().for_each(say_shared_engine);
        self.warming.limit(&mut fleet);
        self.lifecycle.front().equip(&mut fleet);
        fleet.serving.notes = self.reports.note_sink();
        self.live.changed(&self.snapshot, self.env.clock.now(), &fleet);
        self.snapshot = Arc::new(fleet);
        self.snapshot.set_queues(&self.env.board);
        self.feeds.learn_limits(&self.snapshot);
        if let Some(replicas) = &self.replicas {
            replicas.set_fleet(&self.snapshot);
        }
        // Shards listen from their first fleet on; one with all workers in it spares the first
        // clients a 503.
        let is_waiting = self.lifecycle.front().is_waiting();
        if self.unheard.is_empty() && !is_waiting && !self.sources.are_awaited() {
            self.env.ports.publish(&self.snapshot);
        }
    }

    /// Workers that are down at start must not keep the others from serving.
    fn stop_waiting(&mut self) {
        let waits = !self.unheard.is_empty() || self.sources.are_awaited();
        if waits && self.env.clock.now() >= self.env.first_fleet_at {
            self.unheard.clear();
            self.sources.stop_waiting();
            self.publish();
        }
    }

    fn workers<T>(&self, show: impl FnOnce(&WorkerSources<'_>) -> T) -> T {
        show(&WorkerSources {
            fleet: self.fleet_view(),
            feeds: &self.feeds.view(),
            waits_for: &|worker| self.fleet.lacks(worker),
            sleep: &|worker| self.fleet.sleep_word(worker),
            engine_used_by: &|worker| self.fleet.engine_used_by(worker),
            load_source: &|worker| self.feeds.load_source(worker),
        })
    }

    fn fleet_view(&self) -> FleetView<'_> {
        let fleet = &*self.snapshot;
        let board = &*self.env.board;
        FleetView { fleet, board, loads: self.feeds.reporter(), now: self.env.clock.now() }
    }

    fn scrape<T>(&self, show: impl FnOnce(&ScrapeSources<'_>) -> T) -> T {
        let counters = self.env.ports.counters();
        show(&ScrapeSources {
            fleet: self.fleet_view(),
            drain_rates: self.reports.drain_rates(),
            feeds: &self.feeds.view(),
            shards: &ShardsView {
                counters: &counters,
                histograms: &self.histograms,
                stalled: self.lifecycle.stalled_shards(),
            },
            index: &self.env.index,
            snapshots: self.feeds.snapshot_figures(),
            replicas: self.replicas.as_ref().map(|replicas| replicas.figures()),
            records: RecordFigures {
                log_dropped: dropped_lines_count(),
                spans: self.reports.span_figures(),
            },
        })
    }

    fn tick_feeds(&mut self, now: NanosSinceStart) {
        let outcome = self.feeds.tick(&self.env, &self.fleet, &self.snapshot, now);
        outcome.doubted.into_iter().for_each(|worker| self.probes.doubt(worker));
        self.take_order_results(outcome.order_results);
    }

    fn tick_lifecycle(&mut self, now: NanosSinceStart) -> LifecycleStep {
        let is_restoring = self.feeds.restoring().is_some();
        let step = self.lifecycle.tick(&self.env, is_restoring, now);
        if step.publishes {
            self.publish();
        }
        if step.drains {
            self.drain_replicas();
        }
        step
    }

    fn tick_reports(&mut self, now: NanosSinceStart) {
        let sources = ReportSources {
            fleet: &self.fleet,
            published: &self.snapshot,
            reporter: self.feeds.reporter(),
            is_starting: !self.unheard.is_empty(),
        };
        let outcome = self.reports.tick(&self.env, &sources, now);
        for EjectionEvent { kind, text, slow_start } in outcome.ejections {
            if let Some((worker, rank)) = slow_start {
                self.warming.begin_rank(worker, rank, now);
            }
            self.live.ejected(kind, text, now);
        }
        if outcome.publishes {
            self.publish();
        }
    }

    fn read_notes(&mut self) -> Option<NotesReader> {
        let reader = self.reports.read_notes(&self.env.ports)?;
        self.publish();
        self.reports.pass_on_notes(&self.env.ports, &self.snapshot);
        Some(reader)
    }

    fn windows(&self) -> serde_json::Value {
        let windows = self.env.board.windows();
        let now = self.env.clock.now();
        forebay_admin::list_windows(&self.snapshot, windows, now)
    }

    /// Empty when requests can be served, else the reasons why not.
    fn readiness(&self) -> Vec<String> {
        let mut reasons = self.lifecycle.reasons(&self.env.ports);
        reasons.extend(self.feeds.restoring());
        if !self.snapshot.can_serve() {
            reasons.push(forebay_admin::why_not(&self.snapshot));
        }
        reasons
    }
}

fn say_shared_engine(found: &SharedEngine) {
    let SharedEngine { first, second, address, is_certain } = found;
    if *is_certain {
        warn!(
            worker = &**second,
            same_as = &**first,
            %address,
            "one engine by two addresses: requests use only the other worker; remove one of them"
        );
    } else {
        warn!(
            worker = &**second,
            same_as = &**first,
            %address,
            "two names of one address: if they are one engine, remove one of the workers"
        );
    }
}
