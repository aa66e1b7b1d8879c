//! The task of a worker: describes it, checks its health, describes it again after a recovery and
//! periodically. Reports results; decides nothing else.

use super::descriptions::describe::{check_health, is_asleep};
use super::descriptions::description::Description;
use super::descriptions::kv_source::{KvSource, Registration, Registry};
use super::descriptions::registry::Registrar;
use super::health_counts::{CheckFailure, HealthCounts};
use super::http::{AskError, WorkerClient, WorkerClients};
use super::last_description::{DESCRIPTION_AGE_MIN, LastDescription};
use super::model_text::{FoundText, ModelTexts};
use super::names::followed_name::FollowedName;
use super::names::lookup::Lookup;
use super::signs::SignsOfLife;
use super::trouble_help::{is_answer, trouble_help};
use super::worker_look::WorkerLook;
use forebay_base::WorkerIndex;
use forebay_config::{Config, EngineHost, EngineKind, HealthConfig, WorkerConfig, WorkerUrl};
use forebay_fleet::worker::{Dialect, WorkerState};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::join;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, info, warn};

/// Longest reason that the router keeps of a worker that is not up.
const TROUBLE_CHARS_MAX: usize = 512;
/// Pause after a failed description; grows by half up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Pause between queries to a registry that is not ready.
const REGISTRY_PAUSE: Duration = Duration::from_millis(250);
/// Shards and load reports give several signs per second.
const SIGN_AGE_MIN: Duration = Duration::from_secs(1);
/// A sleeping engine is idle and responds at once. A busy engine is awake, so the wait is short.
const SLEEP_ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// Descriptions need several queries, and a busy engine responds late.
const DISCOVERY_TIME_MIN: Duration = Duration::from_secs(5);

/// Report of a probe.
#[derive(Debug)]
pub enum ProbeNotice {
    /// The worker was described.
    Described {
        /// Index of the worker.
        worker: WorkerIndex,
        /// Address that the name resolved to.
        address: SocketAddr,
        description: Description,
        /// Tokenizers and templates, by model.
        texts: BTreeMap<Arc<str>, FoundText>,
    },
    /// Usable ranks of a prefill worker.
    Registered {
        /// Index of the worker.
        worker: WorkerIndex,
        /// Result of its registry.
        registration: Registration,
    },
    /// Why the worker is not up, or why its health checks fail while it is up.
    Trouble {
        /// Index of the worker.
        worker: WorkerIndex,
        /// Path and status or error of the last query; `None` once the worker has passed.
        error: Option<String>,
    },
    /// Another process answers at the address than before.
    Restarted {
        /// Index of the worker.
        worker: WorkerIndex,
    },
    /// Result of health checks.
    State {
        /// Index of the worker.
        worker: WorkerIndex,
        /// The state that it is in now.
        state: WorkerState,
    },
}

/// The task of a single worker.
#[derive(Debug)]
pub struct Probe {
    pub(super) subject: ProbedWorker,
    /// Resolver of the worker's name.
    pub(super) name: Lookup,
    pub(super) health: HealthConfig,
    pub(super) clients: WorkerClients,
    pub(super) texts: ModelTexts,
    notices: mpsc::Sender<ProbeNotice>,
    doubts: Rc<Notify>,
    signs: Rc<SignsOfLife>,
}

/// Configuration of a probed worker.
#[derive(Debug)]
pub(super) struct ProbedWorker {
    index: WorkerIndex,
    pub(super) config: WorkerConfig,
    pub(super) engine: EngineKind,
    pub(super) url: WorkerUrl,
    /// The URL contains an address, which no look-up changes.
    pub(super) is_address: bool,
    /// Ports of other configured workers on the same host.
    pub(super) taken_ports: Vec<u16>,
    /// Global setting for workers without their own.
    pub(super) model_dir: Option<PathBuf>,
    /// The previous probe has found the worker healthy.
    was_up: bool,
}

/// Facts of a description that its probe uses.
#[derive(Clone, Copy, Debug)]
struct DescriptionSummary {
    dialect: Dialect,
    lists_nothing: bool,
}

/// Shared parts of all probes.
#[derive(Debug)]
pub struct ProbeFactory {
    /// The configuration at start, with the health checks.
    pub config: Arc<Config>,
    /// HTTP clients of workers.
    pub clients: WorkerClients,
    /// Tokenizers and templates that were read.
    pub texts: ModelTexts,
    pub notices: mpsc::Sender<ProbeNotice>,
    /// Further signs that a worker is alive.
    pub signs: Rc<SignsOfLife>,
}

impl ProbeFactory {
    /// A probe of a worker; `None` if its URL is invalid.
    #[must_use]
    pub fn one(&self, index: WorkerIndex, worker: &WorkerConfig) -> Option<Probe> {
        let config = &self.config;
        // The fleet logs the fault of a key file.
        let worker = config.with_defaults(worker).config;
        let url = WorkerUrl::parse(&worker.url).ok()?;
        let configured =
            config.workers.iter().filter_map(|other| WorkerUrl::parse(&other.url).ok());
        let host = EngineHost::of(&url.host);
        let others = configured
            .filter(|other| host.is_same(&EngineHost::of(&other.host)) && other.port != url.port);
        Some(Probe {
            name: Lookup::new(&url.host, url.port),
            subject: ProbedWorker {
                index,
                engine: worker.engine.unwrap_or(config.engine),
                config: worker,
                taken_ports: others.map(|other| other.port).collect(),
                model_dir: config.model_dir.clone(),
                was_up: false,
                is_address: host.address().is_some(),
                url,
            },
            health: config.health,
            clients: self.clients.clone(),
            texts: self.texts.clone(),
            notices: self.notices.clone(),
            doubts: Rc::default(),
            signs: Rc::clone(&self.signs),
        })
    }
}

impl Probe {
    /// Notified at a sign that the worker has restarted.
    #[must_use]
    pub fn doubts(&self) -> Rc<Notify> {
        Rc::clone(&self.doubts)
    }

    /// Like [`ProbeFactory::one`], for a worker that another probe has found healthy.
    #[must_use]
    pub fn of_one_that_is_up(mut self) -> Self {
        self.subject.was_up = true;
        self
    }

    /// Runs until the control plane ends.
    pub async fn run(self) {
        let state = self.subject.was_up.then_some(true);
        let mut reached = HealthCounts::from(state);
        let mut registrar = None;
        loop {
            let described = self.describe_until_known(&mut reached, &mut registrar).await;
            if !self.health.enabled {
                self.signs.pass_always(self.subject.index);
                self.report_state(WorkerState::Up).await;
                return;
            }
            self.watch(described, &mut reached, &mut registrar).await;
        }
    }

    /// Retries until there is a description.
    async fn describe_until_known(
        &self,
        reached: &mut HealthCounts,
        registrar: &mut Option<Registrar>,
    ) -> DescriptionSummary {
        let mut pause = RETRY_MIN;
        loop {
            match self.describe(registrar, true).await {
                Ok(described) => return described,
                Err(error) if reached.is_up() => self.failed(reached, &error, false).await,
                Err(error) => self.unreachable(reached, &error).await,
            }
            sleep(pause).await;
            pause = (pause * 3 / 2).min(RETRY_MAX);
        }
    }

    /// Checks health until the worker turns out to run another engine.
    async fn watch(
        &self,
        described: DescriptionSummary,
        reached: &mut HealthCounts,
        registrar: &mut Option<Registrar>,
    ) {
        let asker = self.asker(self.health.timeout);
        let DescriptionSummary { dialect, lists_nothing } = described;
        let mut described = LastDescription { dialect, at: Instant::now(), doubted: lists_nothing };
        let mut name = FollowedName::looked_up_at(described.at, self.name.age_max);
        let mut has_lacked = false;
        let mut was_gone = false;
        let mut began_at = described.at;
        loop {
            let health = async {
                let check_at = self.signs.now();
                let health =
                    check_health(&asker, self.subject.config.health_path.as_deref(), dialect);
                let health = health.await;
                match &health {
                    Ok(()) => {
                        self.signs.pass(self.subject.index, check_at);
                        if std::mem::take(&mut has_lacked) {
                            info!(worker = self.worker(), "its health is known again");
                        }
                        if std::mem::take(&mut was_gone) {
                            self.report_restart().await;
                        }
                    }
                    // A local lack of sockets is no sign of the worker's health.
                    Err(error @ AskError::OutOfSockets { .. }) => {
                        if !std::mem::replace(&mut has_lacked, true) {
                            warn!(worker = self.worker(), %error, "its health is not known");
                        }
                    }
                    Err(error) => {
                        was_gone |= matches!(error, AskError::Refused { .. });
                        self.failed(reached, error, error.is_never_load()).await;
                    }
                }
                health.is_ok()
            };
            // A worker's registration is known before it is reported up. A report that it is down
            // does not wait.
            let was_well = !described.doubted;
            let (is_well, (), found) = join!(
                health,
                self.register(registrar),
                self.look_up(&mut name, began_at, was_well)
            );
            // The next response may come from another process.
            described.doubted |= !is_well | self.follow(&found, reached, is_well);
            if is_well && reached.good(&self.health) {
                self.up(reached, registrar).await;
            } else if is_well && reached.is_up() {
                self.report_trouble(reached, "").await;
            }
            if reached.take_calm() {
                info!(worker = self.worker(), "worker passes its health checks again");
            }
            let end = Instant::now() + self.health.interval;
            // The first sign may come before the new process listens: each sign ends the pause.
            while self.is_doubted_before(registrar, end).await {
                described.doubted = true;
                sleep_until(end.min(described.at + DESCRIPTION_AGE_MIN)).await;
                if self.renew(registrar, reached, &mut described).await {
                    return;
                }
            }
            if self.renew(registrar, reached, &mut described).await {
                return;
            }
            began_at = end;
        }
    }

    /// Describes the worker again if that is due; true if its engine has changed.
    async fn renew(
        &self,
        registrar: &mut Option<Registrar>,
        reached: &HealthCounts,
        described: &mut LastDescription,
    ) -> bool {
        if !reached.is_up() || !described.is_due() {
            return false;
        }
        described.at = Instant::now();
        match self.describe(registrar, false).await {
            // Without a list the response may come from any proxy in front of the engine.
            Ok(DescriptionSummary { lists_nothing: true, .. }) => {
                described.doubted = true;
                false
            }
            Ok(DescriptionSummary { dialect, .. }) => {
                described.doubted = false;
                dialect != described.dialect
            }
            Err(error) => {
                described.doubted = true;
                debug!(worker = self.worker(), error, "not described again");
                false
            }
        }
    }

    /// Waits for a sign of a restart, until the next check at most; true if there was a sign.
    async fn is_doubted_before(&self, registrar: &mut Option<Registrar>, end: Instant) -> bool {
        tokio::select! {
            () = self.pause(registrar, end) => false,
            () = self.doubts.notified() => true,
        }
    }

    /// Waits until the next check. A registry that is not ready is queried sooner, and never
    /// extends the pause.
    async fn pause(&self, registrar: &mut Option<Registrar>, end: Instant) {
        while let Some(registrar) = registrar.as_mut().filter(|registrar| registrar.waits())
            && Instant::now() + REGISTRY_PAUSE < end
        {
            sleep(REGISTRY_PAUSE).await;
            let Ok(answer) = timeout_at(end, registrar.ask()).await else { return };
            self.registered(answer).await;
        }
        sleep_until(end).await;
    }

    async fn register(&self, registrar: &mut Option<Registrar>) {
        let Some(registrar) = registrar else { return };
        let answer = registrar.ask().await;
        self.registered(answer).await;
    }

    async fn registered(&self, answer: Option<Registration>) {
        if let Some(registration) = answer {
            let notice = ProbeNotice::Registered { worker: self.subject.index, registration };
            let _ = self.notices.send(notice).await;
        }
    }

    async fn up(&self, reached: &mut HealthCounts, registrar: &mut Option<Registrar>) {
        // A restart may have changed the whole description.
        if reached.take_recovery()
            && let Err(error) = self.describe(registrar, false).await
        {
            debug!(worker = self.worker(), error, "back, but not described yet");
            reached.relapse();
            return;
        }
        info!(worker = self.worker(), "worker is up");
        // The state ends the reason.
        let _ = reached.take_trouble("");
        self.report_state(WorkerState::Up).await;
    }

    async fn failed(&self, reached: &mut HealthCounts, error: &dyn Display, is_never_load: bool) {
        self.signs.fail(self.subject.index);
        let checked = SIGN_AGE_MIN.max(self.health.interval + self.health.timeout);
        let lives = self.signs.were_within(checked, self.subject.index);
        let is_busy = lives && !is_never_load;
        match reached.bad(&self.health, is_busy) {
            CheckFailure::Counted if reached.is_up() => {
                let failing = reached.failing(&self.health, &error.to_string());
                self.report_trouble(reached, &failing).await;
            }
            CheckFailure::Counted => self.unreachable(reached, &error.to_string()).await,
            CheckFailure::Excused => {
                warn!(
                    worker = self.worker(),
                    %error,
                    "worker fails its health checks and answers requests: it is busy, and stays up"
                );
                let failing = reached.failing(&self.health, &error.to_string());
                self.report_trouble(reached, &failing).await;
            }
            CheckFailure::Down => {
                let error = error.to_string();
                let help = trouble_help(&error);
                warn!(worker = self.worker(), error, help, "worker is down: it takes no traffic");
                reached.complained = true;
                self.report_state(WorkerState::Down).await;
                self.report_trouble(reached, &error).await;
            }
        }
    }

    /// `is_new`: first description, so the engine may be asleep.
    async fn describe(
        &self,
        registrar: &mut Option<Registrar>,
        is_new: bool,
    ) -> Result<DescriptionSummary, String> {
        let WorkerLook { address, mut description, texts } = self.look().await?;
        let dialect = description.dialect;
        let lists_nothing = description.listing.is_nothing();
        if is_new && self.health.enabled && dialect == Dialect::Vllm {
            let patience = self.health.timeout.min(SLEEP_ANSWER_TIME_MAX);
            description.server.is_asleep = is_asleep(&self.asker(patience)).await;
        }
        let registry = match &description.source {
            Some(KvSource::Registry(registry)) => Some(registry.clone()),
            _ => None,
        };
        let worker = self.subject.index;
        let notice = ProbeNotice::Described { worker, address, description, texts };
        let _ = self.notices.send(notice).await;
        // A query in progress to the same registry continues; the fleet keeps its last result.
        let is_asked =
            registrar.as_ref().zip(registry.as_ref()).is_some_and(|(r, now)| r.is_for(now));
        if !is_asked {
            *registrar = registry.map(|registry| self.registrar(registry));
            self.register(registrar).await;
        }
        Ok(DescriptionSummary { dialect, lists_nothing })
    }

    pub(crate) fn registrar(&self, registry: Registry) -> Registrar {
        let base = registry.base.clone();
        let asker = WorkerClient::new(self.clients.plain.clone(), &base, None, self.health.timeout);
        let misses_max = self.health.unhealthy_after;
        Registrar::new(registry, asker, self.subject.config.url.clone(), misses_max)
    }

    /// Name of the worker in the log.
    pub(super) fn worker(&self) -> &str {
        self.subject.config.name.as_deref().unwrap_or(&self.subject.url.authority)
    }

    /// For queries that a busy engine answers late.
    pub(crate) fn patient(&self) -> WorkerClient {
        self.asker(self.health.timeout.max(DISCOVERY_TIME_MIN))
    }

    fn asker(&self, timeout: Duration) -> WorkerClient {
        let key = self.subject.config.api_key.clone();
        self.clients.asker(&self.subject.url.authority, key, timeout)
    }

    /// Logs why a worker cannot be described: once per outage, and again for another reason.
    async fn unreachable(&self, reached: &mut HealthCounts, error: &str) {
        let worker = self.worker();
        let is_first = !std::mem::replace(&mut reached.complained, true);
        if !is_first && !reached.may_log_again(error) {
            debug!(worker, error, "worker still not usable");
        } else {
            let help = trouble_help(error);
            let is_answer = is_answer(error);
            let what = if is_answer { "worker not usable" } else { "worker not reached" };
            warn!(worker, error, help, "{what}: it takes no traffic; trying on");
        }
        self.report_trouble(reached, error).await;
    }

    /// Reports why the worker is not up, or fails its checks, once for each reason; an empty reason
    /// ends the last reason.
    async fn report_trouble(&self, reached: &mut HealthCounts, error: &str) {
        if !reached.take_trouble(error) {
            return;
        }
        let error = (!error.is_empty()).then(|| error.chars().take(TROUBLE_CHARS_MAX).collect());
        let _ = self.notices.send(ProbeNotice::Trouble { worker: self.subject.index, error }).await;
    }

    /// A listener that was gone is of another process when it is back.
    async fn report_restart(&self) {
        let worker = self.subject.index;
        let _ = self.notices.send(ProbeNotice::Restarted { worker }).await;
    }

    async fn report_state(&self, state: WorkerState) {
        let _ = self.notices.send(ProbeNotice::State { worker: self.subject.index, state }).await;
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
