//! The control plane's loop: waits for events, and gives each event to its owner. Five owners hold
//! the state. An owner returns the work that it has for other owners, and the loop passes the work
//! on. Runs on its own thread, on a `tokio` runtime of that thread alone.

mod answers;

use super::environment::{ChangedKeys, Environment, TICK, UPSTREAM_TLS};
use super::error::ControlError;
use super::feeds::{Feeds, FeedsSetup};
use super::lifecycle::{AdminRules, ClientAccess, Handover, Lifecycle, StopOrder, StopSignal};
use super::membership::{FleetChange, Membership, SourceReading};
use super::ports::Ports;
use super::publication::{Owners, Publication};
use super::reports::{ReportSources, Reports};
use super::setup::ControlSetup;
use forebay_admin::{Question, ReloadRefusal, ReloadReport};
use forebay_base::NanosSinceStart;
use forebay_discovery::{ProbeNotice, WorkerClients};
use forebay_handover::HostCall;
use forebay_kv_events::FeedNotice;
use std::rc::Rc;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::MissedTickBehavior;

/// Most notices under way from probes and feeds; with a full channel they wait.
const NOTICES_MAX: usize = 256;
/// Calls of processes that take over.
const HOST_CALLS_MAX: usize = 4;

/// Runs the control plane; returns after the drain that `stopped` or a signal begins.
///
/// # Errors
/// [`ControlError`] when the runtime, a signal or the admin socket cannot be set up.
pub fn run(setup: ControlSetup) -> Result<(), ControlError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let ran = LocalSet::new().block_on(&runtime, Control::start_and_run(setup));
    // A resolver that does not answer must not hold up the end of the process.
    runtime.shutdown_background();
    ran
}

/// Events of the loop beside signals and time.
struct Inboxes {
    probes: mpsc::Receiver<ProbeNotice>,
    feeds: mpsc::Receiver<FeedNotice>,
    questions: mpsc::Receiver<Question>,
    host_calls: mpsc::Receiver<HostCall>,
    sources: mpsc::Receiver<SourceReading>,
}

struct Control {
    env: Environment,
    membership: Membership,
    feeds: Feeds,
    reports: Reports,
    lifecycle: Lifecycle,
    publication: Publication,
}

impl Control {
    async fn start_and_run(setup: ControlSetup) -> Result<(), ControlError> {
        let ControlSetup { config, clock, seed, snapshot, end, feed_timers, tls, .. } = setup;
        let ControlSetup { board, index, admin, access, stopped, signals, reloader, .. } = setup;
        let stop = StopSignal::listen(stopped, signals)?;
        let (to_questions, questions) = mpsc::channel(NOTICES_MAX);
        let admin_rules = AdminRules::new(setup.admin_tls, access);
        let (to_host_calls, host_calls) = mpsc::channel(HOST_CALLS_MAX);
        let admin_setup = admin_rules.admin_setup(admin, setup.callers, to_questions)?;
        let handover = Handover::start(setup.handover, clock, to_host_calls, admin_setup);
        let clients = WorkerClients::new(&config, &tls.connectors).map_err(ControlError::Client)?;
        let clients = clients.of_router(setup.router_id);
        let client_access = ClientAccess::open(&config, setup.api_keys, tls.server)?;
        let env = Environment {
            first_fleet_at: clock.now().plus(config.health.timeout),
            config,
            clock,
            router_id: setup.router_id,
            board,
            index,
            ports: Rc::new(Ports::new(end)),
        };
        let (to_probes, probes) = mpsc::channel(NOTICES_MAX);
        let (mut membership, sources) =
            Membership::start(&env, seed, tls.connectors, &clients, to_probes);
        if !handover.is_open() {
            membership.wait_for_slow();
        }
        let (to_feeds, feeds) = mpsc::channel(NOTICES_MAX);
        let feeds_setup = FeedsSetup {
            seed,
            numbers: membership.fleet().tier_numbers(),
            timers: feed_timers,
            notices: to_feeds,
            snapshot,
            can_hand_over: handover.can_hand_over(),
            clients,
        };
        let mut control = Self {
            membership,
            feeds: Feeds::start(&env, feeds_setup),
            reports: Reports::default(),
            lifecycle: Lifecycle::new(handover, reloader, admin_rules, client_access),
            publication: Publication::start(&env, setup.log_dropped)?,
            env,
        };
        let models = control.lifecycle.take_models();
        let change = control.membership.restore(&control.env, models);
        control.apply(change);
        control.turn(Inboxes { probes, feeds, questions, host_calls, sources }, stop).await;
        control.finish().await
    }

    /// Runs the loop until the shards have drained.
    async fn turn(&mut self, mut inboxes: Inboxes, mut stop: StopSignal) {
        self.lifecycle.report_ready();
        let mut tick = tokio::time::interval(TICK);
        let orders_written = self.membership.orders_written();
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(notice) = inboxes.probes.recv() => {
                    let change = self.membership.take_probe_notice(&self.env, notice);
                    self.apply(change);
                }
                Some(notice) = inboxes.feeds.recv() => {
                    let change = self.membership.take_feed_notice(notice, self.publication.fleet());
                    self.apply(change);
                }
                Some(reading) = inboxes.sources.recv() => {
                    let change = self.membership.take_reading(&self.env, reading);
                    self.apply(change);
                }
                Some(question) = inboxes.questions.recv() => self.answer(question),
                Some(call) = inboxes.host_calls.recv() => self.take_host_call(call),
                () = orders_written.notified() => self.write_orders(),
                order = stop.next_order() => match order {
                    StopOrder::Stop => {
                        self.publication.drain_replicas();
                        self.lifecycle.start_drain(&self.env);
                    }
                    // The log has the result.
                    StopOrder::Reload => drop(self.reload()),
                },
                _ = tick.tick() => if self.tick() {
                    return;
                },
            }
        }
    }

    /// True when the loop ends.
    fn tick(&mut self) -> bool {
        let now = self.env.clock.now();
        self.tick_feeds(now);
        let published = self.publication.fleet();
        let change = self.membership.tick(&self.env, published, self.feeds.reporter(), now);
        self.apply(change);
        let generation = self.publication.fleet().generation;
        let is_handed_over = self.lifecycle.is_handed_over();
        self.membership.write_files(&self.env, generation, is_handed_over);
        self.tick_reports(now);
        let (publication, owners) = self.split();
        if publication.tick(&owners, now) {
            self.publish();
        }
        forebay_heap::give_back();
        self.tick_lifecycle(now)
    }

    fn tick_feeds(&mut self, now: NanosSinceStart) {
        let fleet = self.membership.fleet();
        let outcome = self.feeds.tick(&self.env, fleet, self.publication.fleet(), now);
        self.membership.take_restarted(&self.env, &outcome.restarted, now);
        let published = self.publication.fleet();
        let membership = &self.membership;
        self.feeds.weigh_faults(now, |rank| membership.last_checks(published.rank(rank)?.0.worker));
        outcome.doubted.into_iter().for_each(|worker| self.membership.doubt(worker));
        let silent = self.feeds.silent(&self.env);
        let change = self.membership.take_silent(&silent);
        self.apply(change);
        let change = self.membership.take_order_results(outcome.order_results);
        self.apply(change);
        let change = self.membership.take_emptied(outcome.emptied);
        self.apply(change);
    }

    fn tick_reports(&mut self, now: NanosSinceStart) {
        let sources = ReportSources {
            fleet: self.membership.fleet(),
            published: self.publication.fleet(),
            reporter: self.feeds.reporter(),
            is_starting: self.membership.is_starting(),
        };
        let outcome = self.reports.tick(&self.env, &sources, now);
        outcome
            .rank_events
            .into_iter()
            .for_each(|event| self.publication.take_rank_event(event, now));
        if outcome.publishes {
            self.publish();
        }
    }

    /// True when the loop ends.
    fn tick_lifecycle(&mut self, now: NanosSinceStart) -> bool {
        let is_restoring = self.feeds.restoring().is_some();
        let step = self.lifecycle.tick(&self.env, is_restoring, now);
        if step.publishes {
            self.publish();
        }
        if step.drains {
            self.publication.drain_replicas();
        }
        step.ends
    }

    /// Passes the work of a change on to the other owners.
    fn apply(&mut self, change: FleetChange) {
        let FleetChange { publishes, replans, slow_start, sleep_orders, not_joined, gone, .. } =
            change;
        for worker in change.emptied {
            let name = self.membership.fleet().name(worker).unwrap_or_default();
            self.feeds.empty(&name);
        }
        for worker in gone {
            self.reports.forget(worker);
            self.feeds.forget(worker, self.publication.fleet());
        }
        self.lifecycle.mark_not_joined(&not_joined);
        if let Some(change) = slow_start {
            self.publication.set_slow_start(change, self.env.clock.now());
        }
        if replans {
            self.feeds.adjust(self.membership.fleet());
        }
        sleep_orders.into_iter().for_each(|order| self.feeds.send_order(order));
        if publishes {
            self.publish();
        }
    }

    /// Publishes a new generation of the fleet.
    fn publish(&mut self) {
        let mut fleet = self.membership.snapshot();
        self.membership.count_left_requests(&self.env.board);
        self.lifecycle.client_access().equip(&mut fleet);
        self.reports.equip(&mut fleet);
        self.publication.renew(&self.env, fleet);
        self.feeds.learn_limits(self.publication.fleet());
        let may_publish =
            self.membership.may_publish() && !self.lifecycle.client_access().is_waiting();
        self.publication.publish(&self.env.ports, may_publish);
    }

    fn reload(&mut self) -> Result<ReloadReport, ReloadRefusal> {
        let done = self.read_config();
        self.publication.show_reload(&done, self.env.clock.now());
        done
    }

    fn read_config(&mut self) -> Result<ReloadReport, ReloadRefusal> {
        let mut done = self.lifecycle.read_config(&mut self.env.config)?;
        for key in self.membership.take_config(&self.env) {
            let is_named = |applied: &String| match key {
                UPSTREAM_TLS => applied.contains("tls"),
                _ => applied.starts_with("worker") && applied.contains("api_key"),
            };
            // A changed key of the configuration is more exact.
            if !done.changes.applied.iter().any(is_named) {
                done.changes.also_applied(key);
            }
        }
        let changed = ChangedKeys(&done.changes.applied);
        let change = self.membership.reconfigure(&self.env, &changed, &done.changes.workers);
        self.feeds.reconfigure(&self.env.config, &changed, self.membership.fleet());
        self.lifecycle.follow_token_keys(&self.env.config, &changed);
        self.apply(FleetChange { publishes: true, ..change });
        Ok(done)
    }

    fn take_host_call(&mut self, call: HostCall) {
        match call {
            HostCall::Models(answer) => self.membership.hand_over_models(answer),
            HostCall::Index(answer) => self.feeds.hand_over_index(answer),
            HostCall::Sockets(answer) => {
                let _ = answer.send(self.lifecycle.give_sockets());
            }
            HostCall::Returned => self.lifecycle.take_sockets_back(),
            HostCall::Serves(process, answer) => {
                let process = process.as_raw_nonzero().get();
                let is_first = self.lifecycle.hand_over(&self.env, process);
                if is_first {
                    self.publication.hand_over();
                    self.reports.end_notes();
                    self.publication.drain_replicas();
                }
                let _ = answer.send(is_first);
            }
        }
    }

    fn write_orders(&mut self) {
        let generation = self.publication.fleet().generation;
        let is_handed_over = self.lifecycle.is_handed_over();
        self.membership.write_orders(&self.env, generation, is_handed_over);
    }

    /// Ends the owners. A process that has handed over writes no last snapshot.
    async fn finish(mut self) -> Result<(), ControlError> {
        let generation = self.publication.fleet().generation;
        let is_handed_over = self.lifecycle.is_handed_over();
        self.publication.leave().await;
        self.membership.finish(&self.env, generation, is_handed_over).await;
        self.reports.finish(&self.env, self.publication.fleet()).await;
        if !is_handed_over {
            self.feeds.finish().await;
        }
        self.lifecycle.result()
    }

    fn owners(&self) -> Owners<'_> {
        let Self { env, membership, feeds, reports, lifecycle, .. } = self;
        Owners { env, membership, feeds, reports, lifecycle }
    }

    fn split(&mut self) -> (&mut Publication, Owners<'_>) {
        let Self { env, membership, feeds, reports, lifecycle, publication } = self;
        (publication, Owners { env, membership, feeds, reports, lifecycle })
    }
}
