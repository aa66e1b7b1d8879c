//! The control plane's loop: the one owner of the fleet, the feeds and everything that the admin API shows. Runs on
//! its own thread, on a `tokio` runtime of that thread alone.

use super::admin::{self, Question};
use super::fleet::{FeedPlan, Fleet};
use super::kv_events::{Feed, FeedCounters, FeedNotice, FeedSpec, Naming};
use super::model_text::ModelTexts;
use super::ports::Ports;
use super::probe::{Probe, ProbeNotice};
use super::{ControlError, ControlSetup, scrape, workers};
use crate::account::{ShardPhase, StageHistograms};
use crate::base::limits::RANKS_MAX;
use crate::base::{NanosSinceStart, RankIndex, WorkerIndex};
use crate::index::slice_of;
use crate::worker::{FleetSnapshot, WorkerState};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

/// How often histograms are fetched, commands repeated and the end of the shards looked for.
const TICK: Duration = Duration::from_millis(100);
/// Notices under way from probes and feeds; full ones wait.
const NOTICES_MAX: usize = 256;
/// Time after the drain's deadline in which shards have to end.
const AFTER_DRAIN_MAX: Duration = Duration::from_secs(5);
/// Memory of one tracked block in a feed's maps, with their spare room.
const TRACKED_BLOCK_BYTES: usize = 80;
/// Blocks that a rank may track at least, however small the budget.
const RANK_BLOCKS_MIN: usize = 4_096;

/// Runs the control plane; returns after the drain that `stopped` or a signal asks for.
///
/// # Errors
/// [`ControlError`] when the runtime, a signal or the admin socket cannot be had.
pub fn run(setup: ControlSetup) -> Result<(), ControlError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, Control::start_and_run(setup))
}

struct Control {
    setup: Parts,
    ports: Rc<Ports>,
    fleet: Fleet,
    snapshot: Arc<FleetSnapshot>,
    feeds: HashMap<RankIndex, RunningFeed>,
    feed_counters: Rc<FeedCounters>,
    feed_notices: mpsc::Sender<FeedNotice>,
    histograms: StageHistograms,
    notes: BTreeMap<Arc<str>, String>,
    unfed: Vec<bool>,
    /// Workers whose state is not known yet; empty once the shards have their first fleet.
    unheard: HashSet<WorkerIndex>,
    /// When the shards get a fleet even if some workers have not been heard of.
    first_fleet_at: NanosSinceStart,
    drain: Option<Drain>,
}

/// The parts of the setup that stay as they are.
struct Parts {
    config: Arc<crate::config::Config>,
    clock: crate::base::Clock,
    seed: crate::block::KeySeed,
    board: Arc<crate::worker::LoadBoard>,
    index: crate::index::IndexReader,
}

struct RunningFeed {
    plan: FeedPlan,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy)]
struct Drain {
    deadline: NanosSinceStart,
    given_up: NanosSinceStart,
}

impl Control {
    async fn start_and_run(setup: ControlSetup) -> Result<(), ControlError> {
        let ControlSetup { config, clock, seed, end, board, index, admin, stopped, signals } =
            setup;
        let signals = if signals { Some(Signals::install()?) } else { None };
        let (questions, mut asked) = mpsc::channel(NOTICES_MAX);
        let listener = tokio::net::TcpListener::from_std(admin)?;
        tokio::task::spawn_local(admin::serve(listener, questions));
        let client = reqwest::Client::builder()
            .no_proxy()
            .pool_idle_timeout(config.timeouts.upstream_idle)
            .connect_timeout(config.timeouts.connect)
            .build()
            .map_err(ControlError::Client)?;
        let (probe_notices, mut probed) = mpsc::channel(NOTICES_MAX);
        for probe in Probe::all(&config, &client, &ModelTexts::default(), &probe_notices) {
            tokio::task::spawn_local(probe.run());
        }
        let (feed_notices, mut fed) = mpsc::channel(NOTICES_MAX);
        let fleet = Fleet::new(&config, seed);
        let unfed = vec![false; config.workers.len()];
        let unheard = (0..unfed.len()).filter_map(WorkerIndex::try_from_index).collect();
        let first_fleet_at = clock.now().plus(config.health.timeout);
        let mut control = Self {
            setup: Parts { config, clock, seed, board, index },
            ports: Rc::new(Ports::new(end)),
            fleet,
            snapshot: Arc::default(),
            feeds: HashMap::new(),
            feed_counters: Rc::new(FeedCounters::new()),
            feed_notices,
            histograms: StageHistograms::new(),
            notes: BTreeMap::new(),
            unfed,
            unheard,
            first_fleet_at,
            drain: None,
        };
        control.turn(&mut probed, &mut fed, &mut asked, Stop { stopped, signals }).await;
        control.stop_feeds().await;
        Ok(())
    }

    /// Until the shards have drained.
    async fn turn(
        &mut self,
        probed: &mut mpsc::Receiver<ProbeNotice>,
        fed: &mut mpsc::Receiver<FeedNotice>,
        asked: &mut mpsc::Receiver<Question>,
        mut stop: Stop,
    ) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(notice) = probed.recv() => self.probed(notice).await,
                Some(notice) = fed.recv() => {
                    if self.fleet.set_feed(notice.rank, notice.live, notice.block_size_tokens) {
                        self.publish();
                    }
                }
                Some(question) = asked.recv() => self.answer(question),
                () = stop.asked() => self.start_drain(),
                _ = tick.tick() => {
                    self.ports.merge_histograms(&mut self.histograms);
                    self.stop_waiting();
                    if self.drained() {
                        return;
                    }
                }
            }
        }
    }

    async fn probed(&mut self, notice: ProbeNotice) {
        match notice {
            ProbeNotice::State { worker, state } => {
                self.unheard.remove(&worker);
                if self.fleet.set_state(worker, state) {
                    self.publish();
                }
            }
            ProbeNotice::Described { worker, address, description, texts } => {
                for (model, found) in &texts {
                    if self.notes.get(model) != Some(&found.note) {
                        info!(model = &**model, text = found.note, "prompts of this model");
                        self.notes.insert(Arc::clone(model), found.note.clone());
                    }
                }
                let fed = description.ranks.iter().any(|rank| rank.events.is_some());
                self.hint_at_events(worker, fed);
                let left = self.fleet.describe(worker, address, description, texts);
                if left.ranks + left.models > 0 {
                    warn!(
                        ranks = left.ranks,
                        models = left.models,
                        "the fleet is larger than this router's limits: these take no traffic"
                    );
                }
                self.adjust_feeds().await;
                self.publish();
            }
        }
    }

    /// Says once per worker what is missing for matching.
    fn hint_at_events(&mut self, worker: WorkerIndex, fed: bool) {
        let Some(said) = self.unfed.get_mut(worker.index()) else { return };
        if fed || std::mem::replace(said, true) {
            return;
        }
        let name = self.setup.config.workers.get(worker.index()).map_or("", |worker| &*worker.url);
        info!(
            worker = name,
            "no KV events known: its prefix cache is invisible and it is chosen by load alone; start vLLM or \
             SGLang with --kv-events-config, or set `kv_events`"
        );
    }

    /// Starts, replaces and ends feeds so that they are as planned.
    async fn adjust_feeds(&mut self) {
        let mut plans: HashMap<RankIndex, FeedPlan> =
            self.fleet.feed_plans().into_iter().map(|plan| (plan.rank, plan)).collect();
        let stale: Vec<RankIndex> = self
            .feeds
            .iter()
            .filter(|(rank, feed)| !plans.get(rank).is_some_and(|plan| plan.same_as(&feed.plan)))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in stale {
            if let Some(feed) = self.feeds.remove(&rank) {
                feed.end().await;
            }
        }
        plans.retain(|rank, _| !self.feeds.contains_key(rank));
        for (rank, plan) in plans {
            let feed = self.start_feed(plan);
            self.feeds.insert(rank, feed);
        }
    }

    fn start_feed(&self, plan: FeedPlan) -> RunningFeed {
        let budget = self.setup.config.limits.index_bytes_max / TRACKED_BLOCK_BYTES;
        let entries_max =
            (budget / RANKS_MAX.min(self.snapshot.ranks.len().max(8))).max(RANK_BLOCKS_MIN);
        let spec = FeedSpec {
            rank: plan.rank,
            dp_rank: plan.dp_rank,
            worker: Arc::clone(&plan.worker),
            endpoint: plan.events.endpoint.clone(),
            topic: plan.events.topic.clone(),
            naming: Naming {
                seed: self.setup.seed,
                model: Arc::clone(&plan.model),
                text: plan.text.as_ref().map(|text| Arc::clone(&text.vocabulary)),
                slice_of,
                shard_count: self.ports.shard_count(),
            },
            entries_max,
            block_size_tokens: plan.block_size_tokens,
        };
        let (stop, stopped) = oneshot::channel();
        let counters = Rc::clone(&self.feed_counters);
        let feed = Feed::new(spec, Rc::clone(&self.ports), counters, self.feed_notices.clone());
        RunningFeed { plan, stop, task: tokio::task::spawn_local(feed.run(stopped)) }
    }

    async fn stop_feeds(&mut self) {
        for (_, feed) in self.feeds.drain() {
            // The shards are gone: their rings take nothing any more.
            feed.task.abort();
            let _ = feed.task.await;
        }
    }

    fn publish(&mut self) {
        self.snapshot = Arc::new(self.fleet.snapshot());
        // Shards listen from their first fleet on; one with all workers in it spares the first clients a 503.
        if self.unheard.is_empty() {
            self.ports.publish(&self.snapshot);
        }
    }

    /// Workers that are down at start must not keep the others from serving.
    fn stop_waiting(&mut self) {
        if !self.unheard.is_empty() && self.setup.clock.now() >= self.first_fleet_at {
            self.unheard.clear();
            self.publish();
        }
    }

    fn answer(&self, question: Question) {
        match question {
            Question::Ready(answer) => {
                let _ = answer.send(self.readiness());
            }
            Question::Metrics(answer) => {
                let text = scrape::render(&scrape::Sources {
                    fleet: &self.snapshot,
                    board: &self.setup.board,
                    index: &self.setup.index,
                    counters: &self.ports.counters(),
                    histograms: &self.histograms,
                    feeds: &self.feed_counters,
                });
                let _ = answer.send(text);
            }
            Question::Workers(answer) => {
                let _ = answer.send(workers::list(&self.snapshot, &self.setup.board));
            }
        }
    }

    /// Empty when requests can be served, else the reasons why not.
    fn readiness(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.drain.is_some() {
            reasons.push("draining".to_owned());
        }
        let phases = self.ports.phases();
        let listening = phases.iter().filter(|phase| **phase == ShardPhase::Listening).count();
        if listening < phases.len() {
            reasons.push(format!("{listening} of {} shards listen", phases.len()));
        }
        if !self.snapshot.workers.iter().any(|worker| worker.state == WorkerState::Up) {
            reasons.push(format!("none of {} workers is usable", self.snapshot.workers.len()));
        }
        reasons
    }

    /// The first call drains, the second cuts.
    fn start_drain(&mut self) {
        let now = self.setup.clock.now();
        let deadline = match self.drain {
            None => {
                let patience = self.setup.config.timeouts.drain;
                info!(
                    seconds_max = patience.as_secs(),
                    "draining: no new connections; again to cut"
                );
                now.plus(patience)
            }
            Some(_) => {
                info!("cutting what is left");
                now
            }
        };
        self.drain = Some(Drain { deadline, given_up: deadline.plus(AFTER_DRAIN_MAX) });
        self.ports.drain(deadline);
    }

    /// True when all shards have ended, or should have.
    fn drained(&mut self) -> bool {
        let Some(drain) = self.drain else {
            // Shards end on their own only if their runtime failed; without any there is nothing to control.
            return self.ports.phases().iter().all(|phase| *phase == ShardPhase::Ended);
        };
        self.ports.drain(drain.deadline);
        let ended = self.ports.phases().iter().all(|phase| *phase == ShardPhase::Ended);
        let late = self.setup.clock.now() > drain.given_up;
        if late && !ended {
            warn!("shards did not end in time: leaving without them");
        }
        ended || late
    }
}

impl RunningFeed {
    /// Ends the feed after it has taken its blocks out of the index.
    async fn end(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Who may ask for the end.
struct Stop {
    stopped: watch::Receiver<bool>,
    signals: Option<Signals>,
}

impl Stop {
    /// Resolves once per request to stop. Cancel-safe.
    async fn asked(&mut self) {
        let Self { stopped, signals } = self;
        let told = async {
            loop {
                if stopped.changed().await.is_err() {
                    return std::future::pending().await;
                }
                if *stopped.borrow() {
                    return;
                }
            }
        };
        match signals {
            None => told.await,
            Some(signals) => tokio::select! {
                () = told => {}
                _ = signals.terminate.recv() => {}
                _ = signals.interrupt.recv() => {}
            },
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn install() -> Result<Self, ControlError> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}
