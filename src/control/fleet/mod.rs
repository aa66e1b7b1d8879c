//! The fleet of the control plane, and the snapshots that shards see. Sans-IO: descriptions and
//! health in, snapshots ([`snapshot`]) and plans of feeds and questions ([`plans`]) out. Worker,
//! rank and model indices never change their meaning: ranks that a worker no longer has keep their
//! index, and serve nothing. A removed worker keeps its place for its address.

mod cards;
mod engine_seat;
mod feed_findings;
mod known_models;
mod model_state;
#[cfg(test)]
mod model_tests;
mod places;
mod plans;
mod remembered_worker;
mod same_engine;
mod serving_models;
mod sharing;
mod snapshot;
mod sleep;
mod suspicions;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod text_tests;
mod tier_numbers;
mod worker_settings;

pub(super) use cards::{ModelLength, UnequalLengths};
pub(super) use known_models::ListNews;
pub(super) use plans::FeedPlan;
pub(super) use remembered_worker::RememberedWorker;
pub(super) use same_engine::SharedEngine;
pub(super) use sleep::EngineAccess;
pub(super) use snapshot::FoundWorker;
pub(super) use tier_numbers::GivenNumbers;

use engine_seat::EngineSeat;
use feed_findings::{FeedFindings, FeedJudgement};
use forebay_admin::WorkerTrouble;
use forebay_base::limits::WORKERS_MAX;
use forebay_base::{FileFault, NanosSinceStart, RankIndex, WorkerIndex};
use forebay_config::{Config, Connectors, EngineKind, KvFlow, WorkerConfig, WorkerUrl};
use forebay_discovery::{
    DescribedRank, Description, FoundText, KvSource, Registration, is_answer, trouble_help,
};
use forebay_fleet::worker::{Dialect, Role, TierRanks, Worker, WorkerGeneration, WorkerState};
use forebay_index::KeySeed;
use forebay_tls::ConnectFault;
use known_models::{FleetModels, KnownModels};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tracing::error;
use worker_settings::WorkerSettings;

/// All workers, ranks and models, with the indices that they keep.
#[derive(Debug)]
pub(super) struct Fleet {
    seed: KeySeed,
    config: Arc<Config>,
    generation: u64,
    workers: Vec<KnownWorker>,
    ranks: Vec<KnownRank>,
    models: FleetModels,
    tier_numbers: Rc<GivenNumbers>,
    judgement: FeedJudgement,
}

#[derive(Debug)]
struct KnownWorker {
    /// The worker as shards see it, without the operator's order.
    shown: Worker,
    order: OperatorOrder,
    configured: WorkerSettings,
    description: Option<Description>,
    models: KnownModels,
    /// Texts by model name; adapters use the text of their base model.
    texts: BTreeMap<Arc<str>, FoundText>,
    registration: Registration,
    engine: EngineSeat,
}

/// The operator's order on a worker. The order holds in every state of health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperatorOrder {
    /// The worker takes requests if its health allows.
    Serve,
    /// The worker gets no new requests. True: its streams move to other workers, where a stream
    /// can.
    Drain(bool),
    /// The engine sleeps, or is about to: requests wait for it.
    Sleep(SleepPhase),
    /// As `Drain`, until the worker is idle or this time is reached; then it is gone.
    Leave(NanosSinceStart, bool),
    /// The worker is gone. Its place stays for a worker of the same address.
    Gone,
}

/// Phase of a worker's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SleepPhase {
    /// The worker finishes its requests, until `by` at most. Until `settled`, a shard may send
    /// more.
    Drains { settled: NanosSinceStart, by: NanosSinceStart },
    /// The engine has the order to sleep, and has not answered.
    FallsAsleep,
    /// The engine has confirmed the sleep.
    Asleep,
    /// The engine has the order to wake up, and has not answered.
    WakesUp,
}

impl SleepPhase {
    /// Word of the admin API.
    const fn word(self) -> &'static str {
        match self {
            Self::Drains { .. } => "drains",
            Self::FallsAsleep => "falls_asleep",
            Self::Asleep => "asleep",
            Self::WakesUp => "wakes_up",
        }
    }
}

/// Reason why a worker was not added.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum PlaceError {
    /// A worker of that address is present, or was present over TLS.
    #[error(
        "a worker of that address is there: remove that one. After https://, only a restart brings \
         http:// back"
    )]
    Url,
    /// Another worker is the same engine by another spelling.
    #[error("the worker {0} is that engine already: remove that one")]
    Engine(Arc<str>),
    /// TLS to the worker cannot begin.
    #[error("TLS: {0}. Mend `upstream_tls`, or its own files")]
    Tls(ConnectFault),
    /// A worker of that name is present.
    #[error("a worker of that name is there: give it another `name`")]
    Name,
    /// All places were given.
    #[error("the router has had {WORKERS_MAX} workers, its most: restart it, or split the fleet")]
    Full,
}

#[derive(Debug)]
struct KnownRank {
    worker: WorkerIndex,
    /// Rank number within the deployment.
    number: u32,
    /// Block size in KV events; 0 before the first event.
    block_size_seen: u32,
    feed_live: bool,
    /// Endpoint of KV events in the last description with events, if the engine announced it.
    announced: Option<Arc<str>>,
    findings: FeedFindings,
    tiers: TierRanks,
}

/// Engine family by the configuration alone.
const fn dialect_of(engine: EngineKind) -> Dialect {
    match engine {
        EngineKind::Vllm => Dialect::Vllm,
        EngineKind::Sglang => Dialect::Sglang,
        EngineKind::Auto | EngineKind::Openai => Dialect::Openai,
    }
}

impl KnownWorker {
    /// The worker as shards see it.
    fn shown(&self) -> Worker {
        let mut shown = self.shown.clone();
        let is_surplus = self.engine.used_by.is_some() && shown.state == WorkerState::Up;
        shown.state = match self.order {
            OperatorOrder::Serve | OperatorOrder::Sleep(_) if is_surplus => WorkerState::Unused,
            OperatorOrder::Serve | OperatorOrder::Sleep(_) => shown.state,
            OperatorOrder::Drain(moves) | OperatorOrder::Leave(_, moves) => {
                shown.state.draining(moves)
            }
            OperatorOrder::Gone => WorkerState::Gone,
        };
        shown
    }

    /// A worker that has not answered yet; `None` for an invalid URL.
    fn new(config: &Config, worker: &WorkerConfig) -> Option<Self> {
        let url = WorkerUrl::parse(&worker.url).ok()?;
        let name = worker.name.clone().unwrap_or_else(|| url.authority.clone());
        let shown = Worker {
            name: name.into(),
            authority: url.authority.as_str().into(),
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            dialect: dialect_of(worker.engine.unwrap_or(config.engine)),
            state: WorkerState::Unknown,
            api_key: None,
            generation: WorkerGeneration::default(),
            connector: None,
        };
        let mut known = Self {
            shown,
            order: OperatorOrder::Serve,
            configured: WorkerSettings::of(config, worker),
            description: None,
            models: KnownModels::default(),
            texts: BTreeMap::new(),
            registration: Registration::default(),
            engine: EngineSeat::of(&url, worker),
        };
        known.configure(config, worker);
        Some(known)
    }

    /// Takes the worker's settings of the configuration, except the probe's settings.
    fn configure(&mut self, config: &Config, worker: &WorkerConfig) {
        let equipped = config.with_defaults(worker);
        if let Some(fault) = equipped.key_fault {
            let FileFault { what: fault, help } = fault;
            let worker = &*self.shown.name;
            error!(worker, fault, help, "no key for the worker: mend it and reload");
        }
        let worker = &equipped.config;
        self.shown.api_key = worker.api_key.as_deref().map(Into::into);
        self.configured = WorkerSettings::of(config, worker);
        self.models.is_in_file = config.workers.iter().any(|one| one.url == worker.url);
        self.models.configure(config, worker, self.description.is_some());
    }

    /// Connector that moves the KV of the worker's pairs, where the connector is known. vLLM's
    /// prefill worker has the default unless the configuration names another.
    fn kv_flow(&self, role: Role) -> Option<KvFlow> {
        match (self.shown.dialect, role) {
            (Dialect::Sglang, _) | (_, Role::Both) => None,
            (_, Role::Prefill) => Some(self.configured.kv_flow.unwrap_or_default()),
            (_, Role::Decode) => self.configured.kv_flow,
        }
    }

    /// SGLang's events do not show where a model with layers that forget can resume.
    fn has_bound_overlap(&self) -> bool {
        let model = self.description.as_ref().map(Description::root_model);
        let text = model.and_then(|model| self.texts.get(&model));
        self.shown.dialect == Dialect::Sglang && text.is_some_and(|text| text.layers_forget)
    }

    /// The engine has emptied its caches.
    fn lose_caches(&mut self) {
        self.shown.generation = self.shown.generation.with_empty_caches();
    }

    /// Another engine may run there now.
    fn lose_engine(&mut self) {
        self.shown.generation = self.shown.generation.with_other_engine();
    }
}

/// Parts of a description without a place, for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OmittedParts {
    /// Ranks that found no room.
    pub(super) ranks: usize,
    /// Model names that found no room.
    pub(super) models: usize,
}

impl Fleet {
    /// The configured workers, before their first answers.
    pub(super) fn new(config: &Arc<Config>, seed: KeySeed) -> Self {
        let known = |worker| KnownWorker::new(config, worker);
        let workers: Vec<KnownWorker> = config.workers.iter().filter_map(known).collect();
        let mut fleet = Self {
            seed,
            config: Arc::clone(config),
            generation: 0,
            workers,
            ranks: Vec::new(),
            models: FleetModels::default(),
            tier_numbers: Rc::default(),
            judgement: FeedJudgement::default(),
        };
        fleet.place_expected();
        fleet
    }

    /// Sets the connectors of workers. Workers without an entry keep their connectors.
    pub(super) fn set_connectors(&mut self, connectors: &Connectors) {
        for known in &mut self.workers {
            if let Some(connector) = connectors.get(&*known.shown.authority) {
                known.shown.connector = Some(connector.clone());
            }
        }
    }

    /// Is a worker with this `host:port` present, or about to leave?
    pub(super) fn knows(&self, authority: &str) -> bool {
        let mut present = self.workers.iter().filter(|known| known.order != OperatorOrder::Gone);
        present.any(|known| *known.shown.authority == *authority)
    }

    /// Takes a worker's description.
    pub(super) fn describe(
        &mut self,
        worker: WorkerIndex,
        address: SocketAddr,
        mut description: Description,
        texts: BTreeMap<Arc<str>, FoundText>,
    ) -> OmittedParts {
        let mut left = OmittedParts::default();
        if self.name(worker).is_none() || !self.take_list(worker, address, &mut description) {
            return left;
        }
        for number in description.ranks.iter().map(|rank| rank.number) {
            if self.rank_index(worker, number).is_some() {
                continue;
            }
            if self.ranks.len() >= self.tier_numbers.ranks_max() {
                left.ranks += 1;
                continue;
            }
            self.ranks.push(KnownRank::new(worker, number));
            self.tier_numbers.set_rank_count(self.ranks.len());
        }
        self.take_events(worker, &description);
        if let Some(known) = self.workers.get_mut(worker.index()) {
            let names = description.model_names();
            left.models = self.models.place(&names, &mut known.models.brought);
        }
        self.take_dropped(worker, &description);
        if let Some(known) = self.workers.get_mut(worker.index()) {
            let before = known.description.take();
            if before.is_none() {
                known.find_asleep(description.server.is_asleep);
            }
            let is_same_source = before.as_ref().is_some_and(|b| b.source == description.source);
            if !is_same_source {
                let at_start = description.source.as_ref().map(KvSource::at_start);
                known.registration = at_start.unwrap_or_default();
            }
            let root = description.root_model();
            let has_other_root = before.as_ref().is_some_and(|b| b.root_model() != root);
            let before = before.map(|before| before.ranks);
            let is_other = has_other_root
                || known.shown.address != address
                || !before.as_ref().is_some_and(|before| same_caches(before, &description.ranks));
            if before.is_some() && is_other {
                known.lose_engine();
            } else if let Some(before) = before {
                keep_capacity(&before, &mut description.ranks);
            }
            known.engine.is_used &= known.shown.address == address;
            known.shown.address = address;
            known.shown.dialect = description.dialect;
            known.description = Some(description);
            known.texts = texts;
        }
        left
    }

    /// Models that a worker is known to serve.
    pub(super) fn model_names(&self, worker: WorkerIndex) -> Vec<Arc<str>> {
        self.workers.get(worker.index()).map_or_else(Vec::new, KnownWorker::model_names)
    }

    /// True if a worker's text of that model has this note: then the log has it.
    pub(super) fn has_note(&self, model: &str, note: &str) -> bool {
        let mut found = self.workers.iter().filter_map(|worker| worker.texts.get(model));
        found.any(|found| found.note == note)
    }

    /// Takes a worker's health; true if it changed.
    pub(super) fn set_state(&mut self, worker: WorkerIndex, state: WorkerState) -> bool {
        let Some(known) = self.workers.get_mut(worker.index()) else { return false };
        let before = std::mem::replace(&mut known.shown.state, state);
        known.models.take_health(state);
        if before == WorkerState::Up && state != WorkerState::Up {
            known.lose_engine();
        }
        before != state
    }

    /// State of a worker by its health checks.
    pub(super) fn checked_state(&self, worker: WorkerIndex) -> Option<WorkerState> {
        self.workers.get(worker.index()).map(|known| known.shown.state)
    }

    /// The worker of that name.
    pub(super) fn worker_named(&self, name: &str) -> Option<WorkerIndex> {
        let named =
            |known: &KnownWorker| known.order != OperatorOrder::Gone && &*known.shown.name == name;
        WorkerIndex::try_from_index(self.workers.iter().position(named)?)
    }

    /// The name of a worker that is not gone.
    pub(super) fn name(&self, worker: WorkerIndex) -> Option<Arc<str>> {
        let known = self.workers.get(worker.index())?;
        (known.order != OperatorOrder::Gone).then(|| Arc::clone(&known.shown.name))
    }

    /// Takes the reason why a worker is not up, or fails its checks; true if the advice changes.
    pub(super) fn set_error(&mut self, worker: WorkerIndex, error: Option<String>) -> bool {
        let Some(known) = self.workers.get_mut(worker.index()) else { return false };
        let last = std::mem::replace(&mut known.models.trouble, error);
        let help = |reason: &Option<String>| reason.as_deref().map(trouble_help);
        help(&last) != help(&known.models.trouble)
    }

    /// Why the worker is not up, or fails its checks.
    pub(super) fn trouble(&self, worker: WorkerIndex) -> Option<WorkerTrouble<'_>> {
        let reason = self.workers.get(worker.index())?.models.trouble.as_deref()?;
        let help = trouble_help(reason);
        Some(WorkerTrouble { reason, help, is_answer: is_answer(reason) })
    }

    /// Takes the registration of a worker; true if it changed.
    pub(super) fn set_registration(&mut self, worker: WorkerIndex, now: &Registration) -> bool {
        let Some(known) = self.workers.get_mut(worker.index()) else { return false };
        let is_asked = known
            .description
            .as_ref()
            .is_some_and(|description| matches!(description.source, Some(KvSource::Registry(_))));
        is_asked && std::mem::replace(&mut known.registration, now.clone()) != *now
    }

    /// The registration that a prefill worker waits for before it takes traffic, or the list of
    /// models that a worker lacks. `None` for a worker that lacks nothing.
    pub(super) fn lacks(&self, worker: WorkerIndex) -> Option<&str> {
        let known = self.workers.get(worker.index())?;
        known.registration.lacks.as_deref().or_else(|| known.models.lacks())
    }

    /// Where feeds get numbers for their ranks' lower tiers.
    pub(super) fn tier_numbers(&self) -> Rc<GivenNumbers> {
        Rc::clone(&self.tier_numbers)
    }

    /// Configuration of the next snapshots.
    pub(super) fn set_config(&mut self, config: Arc<Config>) {
        self.workers.iter_mut().for_each(|known| known.models.is_in_file = false);
        for worker in &config.workers {
            self.configure(&config, worker);
        }
        self.config = config;
        self.place_expected();
    }

    /// Takes the settings of a worker that the configuration does not list.
    pub(super) fn configure(&mut self, config: &Config, worker: &WorkerConfig) {
        let place = self.worker_at(&worker.url).map(WorkerIndex::index);
        if let Some(known) = place.and_then(|place| self.workers.get_mut(place)) {
            known.configure(config, worker);
        }
    }

    /// Keys that the workers are sent, in the order of the workers.
    pub(super) fn keys(&self) -> Vec<Option<Arc<str>>> {
        self.workers.iter().map(|known| known.shown.api_key.clone()).collect()
    }

    /// The worker of a URL, if the worker is present and uses TLS as the URL does.
    pub(super) fn worker_at(&self, url: &str) -> Option<WorkerIndex> {
        let url = WorkerUrl::parse(url).ok()?;
        let is_it = |known: &KnownWorker| {
            known.order != OperatorOrder::Gone
                && *known.shown.authority == *url.authority
                && known.shown.connector.is_some() == url.is_tls
        };
        WorkerIndex::try_from_index(self.workers.iter().position(is_it)?)
    }

    /// Count of all ranks so far, including ranks that are gone.
    pub(super) fn rank_count(&self) -> usize {
        self.ranks.len()
    }

    fn rank_index(&self, worker: WorkerIndex, number: u32) -> Option<RankIndex> {
        let same = |rank: &KnownRank| rank.worker == worker && rank.number == number;
        RankIndex::try_from_index(self.ranks.iter().position(same)?)
    }
}

/// Compares only facts that a restart alone may change. Model cards contain the time of the
/// request, and an engine sometimes omits the request limit of a rank.
fn same_caches(before: &[DescribedRank], now: &[DescribedRank]) -> bool {
    let core = |rank: &DescribedRank| DescribedRank { running_max: None, ..rank.clone() };
    before.iter().map(core).eq(now.iter().map(core))
}

/// A worker that omits its request limit keeps its earlier limit.
fn keep_capacity(before: &[DescribedRank], now: &mut [DescribedRank]) {
    for (rank, before) in now.iter_mut().zip(before) {
        rank.running_max = rank.running_max.or(before.running_max);
    }
}
