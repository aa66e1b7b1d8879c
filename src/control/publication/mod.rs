//! Owner of the published fleet and of the answers of the admin API: slow start, the live page,
//! metrics, `/workers`, replicas. Runs on the control plane's thread; the loop calls
//! [`Publication::tick`] ten times a second. Reads the other owners, and changes none of them.

mod owners;
mod slow_start;
mod suspicion_log;
mod window_log;

pub(super) use owners::Owners;

use self::slow_start::{WarmLoads, WarmingRanks};
use self::window_log::WindowLog;
use super::environment::Environment;
use super::membership::SlowStart;
use super::ports::Ports;
use super::reports::RankEvent;
use forebay_admin::{
    ExplainFacts, ExplainThread, FleetView, LiveFeed, LiveSources, LiveViewer, PortCertificate,
    ProcessFigures, ReloadRefusal, ReloadReport, RouterReadiness, ScrapeSources, ShardsView,
    WorkerSource, WorkerSources,
};
use forebay_base::{NanosSinceStart, since_1970};
use forebay_board::RankLoad;
use forebay_board::account::StageHistograms;
use forebay_fleet::worker::FleetSnapshot;
use forebay_replicas::{MessageStream, ReplicaFigures, ReplicaId, Replicas, SubscribeError};
use serde_json::Value;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use tracing::error;

/// The published fleet, and its views for operators and other routers.
pub(super) struct Publication {
    fleet: Arc<FleetSnapshot>,
    warming: WarmingRanks,
    live: LiveFeed,
    window_log: WindowLog,
    histograms: StageHistograms,
    explaining: ExplainThread,
    /// `None` for a router without replicas.
    replicas: Option<Rc<Replicas>>,
    /// Lines that the log has dropped.
    log_dropped: fn() -> u64,
}

impl Publication {
    pub(super) fn start(env: &Environment, log_dropped: fn() -> u64) -> io::Result<Self> {
        Ok(Self {
            fleet: Arc::default(),
            warming: WarmingRanks::default(),
            live: LiveFeed::default(),
            window_log: WindowLog::default(),
            histograms: StageHistograms::new(),
            explaining: ExplainThread::start()?,
            replicas: Replicas::start(&env.config, env.clock, &env.board)?,
            log_dropped,
        })
    }

    /// True if the shards need the fleet again: a rank in its slow start may have more requests.
    pub(super) fn tick(&mut self, owners: &Owners<'_>, now: NanosSinceStart) -> bool {
        let env = owners.env;
        env.ports.merge_histograms(&mut self.histograms);
        self.live.observe(&self.fleet, env.board.windows(), now);
        self.window_log.observe(&self.fleet, env.board.windows(), now);
        self.show_live(owners);
        self.warm_up(env, now)
    }

    /// The newest fleet generation.
    pub(super) const fn fleet(&self) -> &Arc<FleetSnapshot> {
        &self.fleet
    }

    /// Takes a new generation, with the limits of ranks in their slow start.
    pub(super) fn renew(&mut self, env: &Environment, mut fleet: FleetSnapshot) {
        self.warming.limit(&mut fleet);
        if self.fleet.can_serve() && !fleet.can_serve() {
            let reason = forebay_admin::why_not(&fleet);
            let help = "`forebay workers` has the reason of each worker, and what to do";
            error!(reason, help, "not ready: requests are refused until a worker is up");
        }
        suspicion_log::log_suspicions(&self.fleet, &fleet);
        self.live.changed(&self.fleet, env.clock.now(), &fleet);
        self.fleet = Arc::new(fleet);
        env.board.set_queues(&self.fleet);
    }

    /// Sends the fleet to the replicas, and to the shards if they may have a fleet.
    pub(super) fn publish(&self, ports: &Ports, to_shards: bool) {
        if let Some(replicas) = &self.replicas {
            replicas.set_fleet(&self.fleet);
        }
        if to_shards {
            ports.publish(&self.fleet);
        }
    }

    pub(super) fn set_slow_start(&mut self, change: SlowStart, now: NanosSinceStart) {
        match change {
            SlowStart::Begin(worker) => self.warming.begin(worker, now),
            SlowStart::End(worker) => self.warming.end(worker),
        }
    }

    /// Shows the event on the live page. A readmitted rank starts slowly.
    pub(super) fn take_rank_event(&mut self, event: RankEvent, now: NanosSinceStart) {
        let RankEvent { kind, text, slow_start } = event;
        if let Some((worker, rank)) = slow_start {
            self.warming.begin_rank(worker, rank, now);
        }
        self.live.ejected(kind, text, now);
    }

    /// Shows the result of a reload on the live page.
    pub(super) fn show_reload(
        &mut self,
        done: &Result<ReloadReport, ReloadRefusal>,
        now: NanosSinceStart,
    ) {
        let text = match done {
            Ok(done) => match done.changes.applied.len() {
                0 => "configuration read again: no key changed".to_owned(),
                _ => format!("configuration read again: {}", done.changes.applied.join(", ")),
            },
            Err(_) => "configuration read again: refused, nothing changed".to_owned(),
        };
        self.live.reloaded(text, now);
    }

    /// A stream for a client that opens the live page.
    pub(super) fn watch(&mut self) -> Option<LiveViewer> {
        self.live.join()
    }

    /// Sends a snapshot to the live page and remembers figures, each when due.
    pub(super) fn show_live(&mut self, owners: &Owners<'_>) {
        let now = owners.env.clock.now();
        if self.live.is_history_due(now) {
            let mut live = std::mem::take(&mut self.live);
            self.scrape(owners, |scrape| live.remember(scrape));
            self.live = live;
        }
        if !self.live.is_due(now) {
            return;
        }
        let mut live = std::mem::take(&mut self.live);
        let router_id = owners.env.router_id;
        let readiness = self.readiness(owners);
        let replicas = self.replicas();
        self.scrape(owners, |scrape| {
            self.workers(owners, |workers| {
                live.show(&LiveSources { router_id, scrape, workers, readiness, replicas });
            });
        });
        self.live = live;
    }

    /// Makes a view from the sources of `/workers`.
    pub(super) fn workers<T>(
        &self,
        owners: &Owners<'_>,
        show: impl FnOnce(&WorkerSources<'_>) -> T,
    ) -> T {
        let fleet = owners.membership.fleet();
        show(&WorkerSources {
            fleet: self.fleet_view(owners),
            feeds: &owners.feeds.view(),
            waits_for: &|worker| fleet.lacks(worker),
            trouble: &|worker| fleet.trouble(worker),
            sleep: &|worker| fleet.sleep_word(worker),
            engine_used_by: &|worker| fleet.engine_used_by(worker),
            load_source: &|worker| owners.feeds.load_source(worker),
        })
    }

    /// Makes a view from the sources of `/metrics`.
    pub(super) fn scrape<T>(
        &self,
        owners: &Owners<'_>,
        show: impl FnOnce(&ScrapeSources<'_>) -> T,
    ) -> T {
        let counters = owners.env.ports.counters();
        show(&ScrapeSources {
            fleet: self.fleet_view(owners),
            drain_rates: owners.reports.drain_rates(),
            feeds: &owners.feeds.view(),
            shards: &ShardsView {
                counters: &counters,
                histograms: &self.histograms,
                stalled: owners.lifecycle.stalled_shards(),
            },
            index: &owners.env.index,
            snapshots: owners.feeds.snapshot_figures(),
            replicas: self.replicas.as_ref().map(|replicas| replicas.figures()),
            process: ProcessFigures {
                log_dropped: (self.log_dropped)(),
                state_file: owners.membership.orders_figures(),
                spans: owners.reports.span_figures(),
                reload: owners.lifecycle.reload_figures(),
            },
        })
    }

    pub(super) fn readiness(&self, owners: &Owners<'_>) -> RouterReadiness {
        let mut reasons = owners.lifecycle.reasons(&owners.env.ports);
        reasons.extend(owners.feeds.restoring());
        if !self.fleet.can_serve() {
            reasons.push(forebay_admin::why_not(&self.fleet));
        }
        let Environment { board, clock, .. } = owners.env;
        let sources = owners.membership.configured_sources();
        let unread = sources.iter().filter_map(WorkerSource::concern);
        let lost = self.replicas.as_ref().and_then(|replicas| lost_replicas(&replicas.figures()));
        let acceptor = self.fleet.serving.acceptor.as_ref();
        let of_admin = owners.lifecycle.admin_acceptor();
        let certificates = PortCertificate::of("listen", acceptor);
        let certificates = certificates.chain(PortCertificate::of("admin", of_admin.as_ref()));
        let unfed = forebay_admin::missing_feeds(&self.fleet, &owners.feeds.view());
        let suspect = forebay_admin::suspect_feeds(&self.fleet);
        let not_reloaded = owners.lifecycle.refused_reload();
        let unsaved = owners.feeds.snapshot_concern();
        let unsaved = unsaved.into_iter().chain(owners.membership.orders_concern(clock.now()));
        let further =
            not_reloaded.into_iter().chain(unread).chain(lost).chain(unfed).chain(suspect);
        let odd = forebay_admin::odd_prompts(&self.fleet, &owners.feeds.view());
        // Without any pair it is the reason.
        let lone = if reasons.is_empty() { forebay_admin::lone_legs(&self.fleet) } else { vec![] };
        let further = further.chain(odd).chain(lone).chain(unsaved);
        let further = further.chain(forebay_admin::locked_out(&self.fleet));
        let further = further.chain(owners.reports.unserved_names());
        let fleet = owners.membership.fleet();
        let has_failed = |worker| fleet.trouble(worker).is_some();
        RouterReadiness::new(reasons, further, &self.fleet, has_failed, board, clock.now())
            .with_certificates(certificates.collect(), since_1970())
    }

    pub(super) fn windows(&self, env: &Environment) -> Value {
        let holders = |pool| {
            let replicas = self.replicas.as_ref();
            replicas.map_or_else(Vec::new, |replicas| replicas.window_holders(pool))
        };
        forebay_admin::list_windows(&self.fleet, env.board.windows(), holders, env.clock.now())
    }

    pub(super) const fn explaining(&self) -> &ExplainThread {
        &self.explaining
    }

    pub(super) fn explain_facts(&self, owners: &Owners<'_>) -> ExplainFacts {
        let env = owners.env;
        ExplainFacts {
            config: Arc::clone(&env.config),
            fleet: Arc::clone(&self.fleet),
            board: Arc::clone(&env.board),
            reports: owners.feeds.reporter().reports().clone(),
            index: env.index.clone(),
            counters: env.ports.counters(),
            now: env.clock.now(),
        }
    }

    pub(super) fn replicas(&self) -> Option<Value> {
        self.replicas.as_ref().map(|replicas| replicas.list())
    }

    /// Messages for another router.
    pub(super) fn replica_messages(
        &self,
        reader: Option<ReplicaId>,
    ) -> Result<MessageStream, SubscribeError> {
        self.replicas.as_ref().ok_or(SubscribeError::NoPeers)?.subscribe(reader)
    }

    /// The replicas expect no new requests from this router.
    pub(super) fn drain_replicas(&self) {
        if let Some(replicas) = &self.replicas {
            replicas.drain();
        }
    }

    /// Another process answers at this router's address: live page and replicas connect there.
    pub(super) fn hand_over(&mut self) {
        self.live.end();
        if let Some(replicas) = &self.replicas {
            replicas.hand_over();
        }
    }

    /// Sends the replicas a farewell.
    pub(super) async fn leave(&self) {
        if let Some(replicas) = &self.replicas {
            replicas.leave().await;
        }
    }

    fn fleet_view<'a>(&'a self, owners: &Owners<'a>) -> FleetView<'a> {
        let Environment { board, clock, .. } = owners.env;
        FleetView {
            fleet: &self.fleet,
            board,
            loads: owners.feeds.reporter(),
            sources: owners.membership.configured_sources(),
            restarts: owners.feeds.restarts(),
            ttft_history: owners.reports.ttft_history(),
            now: clock.now(),
        }
    }

    /// Ranks in their slow start get more as time passes, up to the fullest warm sibling.
    fn warm_up(&mut self, env: &Environment, now: NanosSinceStart) -> bool {
        if self.warming.is_empty() {
            return false;
        }
        let usable = |rank| env.board.rank(rank).filter(|rank| rank.ejected().is_none());
        let load = |rank| usable(rank).map(RankLoad::in_flight);
        let warm = WarmLoads::of(&self.fleet, &self.warming, load);
        let usual = |worker, rank| warm.usual(&self.fleet, worker, rank);
        self.warming.grow(now, env.config.health.slow_start, usual)
    }
}

/// Replicas that this router has lost, without their addresses.
fn lost_replicas(figures: &ReplicaFigures) -> Option<String> {
    if figures.is_nats_connected == Some(false) {
        return Some("NATS not connected: this router goes on alone".to_owned());
    }
    let all = figures.peers.len();
    let lost = figures.peers.iter().filter(|peer| !peer.is_connected).count();
    (lost > 0).then(|| format!("{lost} of {all} peers not connected"))
}
