//! Owner of the life of the process: start and takeover, reload, drain, handover to the next
//! process, watchdog over the shards, systemd. Runs on the control plane's thread; the loop calls
//! [`Lifecycle::tick`] ten times a second. Sends drain commands to the shards, and changes neither
//! fleet nor feeds.

mod admin_rules;
mod drain;
mod client_access;
mod handover;
mod reload;
mod stop;
mod systemd;
mod token_keys;
mod shard_threads;
mod watchdog;

pub(super) use admin_rules::AdminRules;
pub use admin_rules::admin_tokens;
pub(super) use client_access::ClientAccess;
pub(super) use handover::Handover;
pub use handover::{HandoverOffer, HandoverSetup};
pub(super) use stop::{StopOrder, StopSignal};

use self::drain::Drain;
use self::reload::ReloadSource;
use self::shard_threads::ShardThreads;
use self::systemd::Systemd;
use self::watchdog::{LostShard, Watchdog};
use super::environment::{ChangedKeys, Environment};
use super::error::ControlError;
use super::ports::Ports;
use forebay_admin::{ReloadFigures, ReloadRefusal, ReloadReport};
use forebay_base::NanosSinceStart;
use forebay_board::account::{Count, ShardPhase};
use forebay_config::{Config, Reloader};
use forebay_tls::Acceptor;
use std::fs::File;
use std::sync::Arc;
use tracing::{error, info, warn};

/// Life of the process, from the takeover to the end of its shards.
pub(super) struct Lifecycle {
    drain: Option<Drain>,
    handover: Handover,
    watchdog: Watchdog,
    systemd: Systemd,
    reload: ReloadSource,
    client_access: ClientAccess,
    /// Reason for an end with an error.
    fault: Option<ControlError>,
}

/// Work for other owners after a tick of the lifecycle.
#[must_use]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LifecycleStep {
    /// The shards need the fleet again.
    pub(super) publishes: bool,
    /// A drain has begun.
    pub(super) drains: bool,
    /// The loop ends: all shards have ended, or are given up.
    pub(super) ends: bool,
}

impl Lifecycle {
    pub(super) fn new(
        handover: Handover,
        reloader: Option<Reloader>,
        admin_rules: AdminRules,
        client_access: ClientAccess,
    ) -> Self {
        Self {
            drain: None,
            handover,
            watchdog: Watchdog::default(),
            systemd: Systemd::of_environment(),
            reload: ReloadSource::new(reloader, admin_rules),
            client_access,
            fault: None,
        }
    }

    /// `is_restoring`: ranks still wait for their blocks of the snapshot.
    pub(super) fn tick(
        &mut self,
        env: &Environment,
        is_restoring: bool,
        now: NanosSinceStart,
    ) -> LifecycleStep {
        let publishes = self.client_access.renew_token_keys(now >= env.first_fleet_at);
        self.take_over(&env.ports, is_restoring);
        self.handover.wait_for_next();
        self.handover.reopen();
        self.systemd.tick(now);
        self.watchdog.observe(now, &env.ports.beats(), ShardThreads::read);
        let patience = env.config.timeouts.stall_abort;
        if let Some(LostShard { shard, cause }) = self.watchdog.lost(patience) {
            self.fault = Some(ControlError::ShardStalled { shard, patience, cause });
            return LifecycleStep { publishes, drains: false, ends: true };
        }
        let drains = self.drain_after_fault(env);
        LifecycleStep { publishes, drains, ends: self.command_drain(env) }
    }

    /// Reports to systemd that the router is ready, once this process answers the admin API.
    pub(super) fn report_ready(&self) {
        if self.handover.is_open() {
            self.systemd.send_ready();
        }
    }

    pub(super) const fn client_access(&self) -> &ClientAccess {
        &self.client_access
    }

    /// File of model names from the process before, if that process handed the file over.
    pub(super) fn take_models(&mut self) -> Option<File> {
        self.handover.take_models()
    }

    /// Another process serves by now.
    pub(super) fn is_handed_over(&self) -> bool {
        self.drain.is_some_and(|drain| drain.is_handed_over())
    }

    /// Reasons why this process cannot serve: drain, phases and silence of its shards.
    pub(super) fn reasons(&self, ports: &Ports) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.drain.is_some() {
            reasons.push("draining".to_owned());
        }
        let phases = ports.phases();
        let listening = phases.iter().filter(|phase| **phase == ShardPhase::Listening).count();
        if listening < phases.len() {
            reasons.push(format!("shards that listen: {listening} of {}", phases.len()));
        }
        let ended = ended_count(&phases);
        if ended > 0 && self.fault.is_some() {
            reasons.push(format!("{ended} ended by a fault: the process ends after the drain"));
        }
        reasons.extend(self.watchdog.reasons());
        reasons
    }

    /// Certificates of the admin API, if it has any.
    pub(super) fn admin_acceptor(&self) -> Option<Acceptor> {
        self.reload.admin_acceptor()
    }

    /// The concern after a refused reload.
    pub(super) fn refused_reload(&self) -> Option<String> {
        self.reload.concern()
    }

    pub(super) const fn reload_figures(&self) -> ReloadFigures {
        self.reload.figures()
    }

    /// Shards without progress, in shard order.
    pub(super) fn stalled_shards(&self) -> Vec<bool> {
        self.watchdog.are_stalled().collect()
    }

    /// Reads the configuration again, into `config` and the access of clients.
    pub(super) fn read_config(
        &mut self,
        config: &mut Arc<Config>,
    ) -> Result<ReloadReport, ReloadRefusal> {
        self.reload.read(config, &mut self.client_access)
    }

    /// Restarts the source of token keys, if the reload has changed the source.
    pub(super) fn follow_token_keys(&mut self, config: &Config, changed: &ChangedKeys<'_>) {
        self.client_access.follow_token_keys(config, changed);
    }

    /// The workers of these URLs have found no place: the next reload adds them again.
    pub(super) fn mark_not_joined(&mut self, urls: &[String]) {
        self.reload.mark_not_joined(urls);
    }

    /// True if a new process gets the sockets. A process that drains keeps its sockets.
    pub(super) fn give_sockets(&mut self) -> bool {
        let gives = self.drain.is_none();
        if gives {
            self.handover.gives();
        }
        gives
    }

    /// A process that got the sockets is gone.
    pub(super) fn take_sockets_back(&mut self) {
        self.handover.takes_back();
    }

    /// The process of that id serves: this process drains. False if this process drained before.
    pub(super) fn hand_over(&mut self, env: &Environment, process: i32) -> bool {
        if self.drain.is_some() {
            return false;
        }
        info!(process, "handed over: this process serves the clients that it has");
        self.handover.close();
        self.systemd.send_main_process(process);
        self.drain_by(env, Drain::handed_over(env.clock.now(), &env.config.timeouts));
        true
    }

    /// The first call drains, the second cuts.
    pub(super) fn start_drain(&mut self, env: &Environment) {
        let now = env.clock.now();
        let drain = if let Some(drain) = self.drain {
            info!("cutting what is left");
            drain.cut(now)
        } else {
            let timeouts = &env.config.timeouts;
            let delay = timeouts.drain_delay;
            let patience = timeouts.drain;
            info!(?delay, ?patience, "draining: no new connections; again to cut");
            Drain::new(now, timeouts, self.handover.has_heir())
        };
        self.handover.ends();
        self.systemd.send_stopping();
        self.drain_by(env, drain);
    }

    /// # Errors
    /// The reason for an end with an error.
    pub(super) fn result(self) -> Result<(), ControlError> {
        self.fault.map_or(Ok(()), Err)
    }

    /// Takes over from the process before, once the shards accept and the restored ranks have their
    /// blocks.
    fn take_over(&mut self, ports: &Ports, is_restoring: bool) {
        let listens = |phase: &ShardPhase| *phase == ShardPhase::Listening;
        let serves = ports.phases().iter().all(listens);
        if !self.handover.is_open() && serves && !is_restoring {
            self.handover.serves();
            self.report_ready();
        }
    }

    /// A shard that ends without a drain has a fault, and requests in its queues wait in vain: the
    /// other shards drain.
    fn drain_after_fault(&mut self, env: &Environment) -> bool {
        let phases = env.ports.phases();
        let ended = ended_count(&phases);
        if ended == 0 || self.drain.is_some() {
            return false;
        }
        let fault = ControlError::ShardEnded { ended, shards: phases.len() };
        error!(error = %fault, "draining the others; then the process ends with an error");
        self.fault = Some(fault);
        self.start_drain(env);
        true
    }

    /// True when all shards have ended or are late. Repeats the drain command for shards with full
    /// rings.
    fn command_drain(&mut self, env: &Environment) -> bool {
        let phases = env.ports.phases();
        let all_ended = ended_count(&phases) == phases.len();
        let Some(drain) = &self.drain else { return all_ended };
        let now = env.clock.now();
        env.ports.command(drain.command(now));
        let late = drain.is_given_up(now);
        if late && !all_ended {
            self.fault.get_or_insert(ControlError::ShardsLate);
        }
        let ends = all_ended || late;
        if ends {
            // A shard that is late has counted none of its requests.
            let uncounted = if all_ended { 0 } else { u64::from(env.board.in_flight().get()) };
            warn_of_cut(env.ports.count(Count::CutByDrain) + uncounted);
        }
        ends
    }

    fn drain_by(&mut self, env: &Environment, drain: Drain) {
        env.ports.command(drain.command(env.clock.now()));
        self.drain = Some(drain);
    }
}

fn warn_of_cut(requests: u64) {
    if requests > 0 {
        let help = "raise `timeouts.drain` above the longest answer";
        warn!(requests, help, "requests were cut: they lasted longer than the drain");
    }
}

fn ended_count(phases: &[ShardPhase]) -> usize {
    phases.iter().filter(|phase| **phase == ShardPhase::Ended).count()
}
