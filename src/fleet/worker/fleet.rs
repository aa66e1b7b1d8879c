//! The fleet as an immutable snapshot: workers, ranks, models and pools. The control plane
//! publishes a snapshot per change.

use super::model::{ANY_MODEL, Model};
use super::{Leg, NoteSink, Rank, Role, RoomLimits, WorkerGeneration};
use crate::tenant::Tenants;
use crate::trust::ModelTrusts;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{ModelIndex, PoolIndex, QueueIndex, RankIndex, WorkerIndex};
use forebay_config::{Config, Fallback, QueueMode};
use forebay_text::ImageKey;
use forebay_tls::{Acceptor, Connector};
use std::net::SocketAddr;
use std::sync::Arc;

/// The fleet at a moment. Indices are stable: a rank keeps its [`RankIndex`] for the life of the
/// process, also while its worker is down.
#[derive(Debug, Default)]
pub struct FleetSnapshot {
    /// Increases with every snapshot.
    pub generation: u64,
    /// All workers, indexed by [`WorkerIndex`].
    pub workers: Vec<Worker>,
    /// All ranks, indexed by [`RankIndex`].
    pub ranks: Vec<Rank>,
    /// All models, indexed by [`ModelIndex`].
    pub models: Vec<Model>,
    /// Indexed by [`PoolIndex`]; unused numbers have empty pools.
    pub pools: Vec<Pool>,
    pub config: Arc<Config>,
    /// Permitted callers, their keys and limits.
    pub tenants: Arc<Tenants>,
    /// Settings for new connections and requests.
    pub serving: Serving,
}

/// Settings of shards beside the ranks: doors, records, names and verdicts.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// Accepts TLS connections of clients; `None` without TLS.
    pub acceptor: Option<Acceptor>,
    /// Receives notes of requests; `None` while no recorder is attached.
    pub notes: Option<NoteSink>,
    /// Names images in chats; `None` without `image_key_file`.
    pub image_key: Option<ImageKey>,
    /// A configured worker has not listed its models yet: an unlisted name may be a model of that
    /// worker.
    pub awaits_models: bool,
    /// A present worker of any origin is not described yet, or a source of workers is unread or has
    /// a fault: the model behind a name of `[[model]]` may be a model of that worker or source.
    pub is_incomplete: bool,
    /// Verdicts about predicted cache hits, where predictions do not hold.
    pub trusts: ModelTrusts,
}

/// Ranks that share models, directly or through other ranks: they have a common queue and rejection
/// window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// In index order, whatever their state.
    pub ranks: Vec<RankIndex>,
    /// Sum of the KV capacities of its usable ranks, in tokens; 0 if any capacity is unknown.
    pub kv_tokens: u64,
}

/// An engine process group, reached under a URL.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Name for people: header `x-forebay-worker`, metrics, logs. `host:port` unless configured.
    pub name: Arc<str>,
    /// Value of the `Host` field sent to it.
    pub authority: Arc<str>,
    /// Address of the worker, as resolved by the control plane.
    pub address: SocketAddr,
    /// Engine family; decides which API the worker speaks beside OpenAI's.
    pub dialect: Dialect,
    /// Health by the last check, and the operator's order.
    pub state: WorkerState,
    /// Sent as `Authorization: Bearer …` instead of the client's own, when configured.
    pub api_key: Option<Arc<str>>,
    /// Counts of lost caches and of possible restarts.
    pub generation: WorkerGeneration,
    /// Opens TLS sessions with the worker; `None` in plain text.
    pub connector: Option<Connector>,
}

impl Worker {
    /// Name of the engine; `unknown` until the worker was reached, unless configured.
    #[must_use]
    pub const fn engine_name(&self) -> &'static str {
        match self.dialect {
            Dialect::Vllm => "vllm",
            Dialect::Sglang => "sglang",
            // Before its first answer a worker has no address.
            Dialect::Openai if self.address.port() == 0 => "unknown",
            Dialect::Openai => "openai",
        }
    }
}

/// Engine families that differ in health path, load report, rank pinning and abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM, Python or Rust frontend.
    Vllm,
    /// SGLang, Python or Rust server.
    Sglang,
    /// Any other OpenAI-compatible server.
    Openai,
}

/// Health of a worker by active checks, unless its operator drains or removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// Never answered yet; takes no traffic.
    Unknown,
    /// Passed its last check; takes traffic.
    Up,
    /// Failed its checks; takes no traffic.
    Down,
    /// Drained by the operator: gets no new requests, and finishes requests in flight.
    Draining {
        /// Result of the health checks meanwhile.
        answers: bool,
        /// Other workers continue its streams, as far as streams can move.
        moves: bool,
    },
    /// Answers, and is the engine of another worker: requests use that worker.
    Unused,
    /// Removed by the operator. Only its index is left, and late requests.
    Gone,
}

impl WorkerState {
    /// The state after the operator drains the worker.
    #[must_use]
    pub const fn draining(self, moves: bool) -> Self {
        match self {
            Self::Gone => self,
            Self::Draining { answers, .. } => Self::Draining { answers, moves },
            Self::Up | Self::Unused => Self::Draining { answers: true, moves },
            Self::Unknown | Self::Down => Self::Draining { answers: false, moves },
        }
    }

    /// Do other workers continue its streams, as far as streams can move?
    #[must_use]
    pub const fn moves_streams(self) -> bool {
        matches!(self, Self::Gone | Self::Draining { moves: true, .. })
    }

    /// Has the operator drained the worker?
    #[must_use]
    pub const fn is_draining(self) -> bool {
        matches!(self, Self::Draining { .. })
    }

    #[must_use]
    pub const fn answers(self) -> bool {
        matches!(self, Self::Up | Self::Unused | Self::Draining { answers: true, .. })
    }

    /// Did the worker fail its checks, or was it removed?
    #[must_use]
    pub const fn is_down(self) -> bool {
        matches!(self, Self::Down | Self::Gone | Self::Draining { answers: false, .. })
    }
}

impl FleetSnapshot {
    /// Debug builds check each snapshot once: indices are valid, and searched lists are sorted.
    pub fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert!(self.ranks.len() <= RANKS_MAX, "more ranks than the board has cells");
        let is_rank = |rank: &RankIndex| rank.index() < self.ranks.len();
        for (position, rank) in self.ranks.iter().enumerate() {
            debug_assert!(rank.worker.index() < self.workers.len(), "a rank without a worker");
            let windows = rank.tiers.windows.into_iter().flatten().map(|window| window.number);
            let tiers = [rank.tiers.host, rank.tiers.disk, rank.tiers.kv_pool];
            let odd = rank.tiers.odd.map(|odd| odd.number);
            let tiers = tiers.into_iter().flatten().chain(windows).chain(odd);
            debug_assert!(
                tiers.clone().all(|tier| !is_rank(&tier)),
                "a tier of rank {position} is a rank"
            );
        }
        for pool in &self.pools {
            debug_assert!(pool.ranks.is_sorted_by(|a, b| a < b), "`has` searches by halves");
            debug_assert!(pool.ranks.iter().all(is_rank), "a pool of no ranks");
        }
        for model in &self.models {
            debug_assert!(model.ranks.iter().all(is_rank), "a model of no ranks");
            debug_assert!(model.pool.index() < self.pools.len(), "a model without its pool");
            let apart = model.prefill_pool.is_none_or(|prefill| prefill != model.pool);
            debug_assert!(apart, "prefill and decode wait in one queue");
        }
    }

    /// The model of that name. With few models a linear search beats a map.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<(ModelIndex, &Model)> {
        let index = self.models.iter().position(|model| &*model.name == name)?;
        Some((ModelIndex::try_from_index(index)?, self.models.get(index)?))
    }

    /// The model that serves the name: the listed model, otherwise [`ANY_MODEL`]. `None` for an
    /// expected name without a rank: other workers must not get its requests.
    #[must_use]
    pub fn model_for(&self, name: &str) -> Option<(ModelIndex, &Model)> {
        let known = self.model(name).filter(|(_, model)| model.is_known());
        known.or_else(|| self.model(ANY_MODEL)).filter(|(_, model)| !model.ranks.is_empty())
    }

    /// The model that each request is for, if the fleet serves a single model by its name.
    #[must_use]
    pub fn only_model(&self) -> Option<ModelIndex> {
        let mut models = self.models.iter().enumerate().filter(|(_, model)| model.is_known());
        let (index, model) = models.next()?;
        let is_only = models.next().is_none() && !model.is_any();
        is_only.then(|| ModelIndex::try_from_index(index)).flatten()
    }

    /// Has any present worker ever listed a model?
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.models.iter().any(|model| model.is_known() && !model.is_any())
    }

    /// Key that names images in chats of a model; `None` if nothing behind an image is matched.
    #[must_use]
    pub fn image_key_of(&self, model: &Model) -> Option<&ImageKey> {
        let follows = model.text.as_ref().is_some_and(|text| text.vocabulary.follows_images());
        self.serving.image_key.as_ref().filter(|_| follows)
    }

    /// Can any request be served now? A prefill worker needs a decode worker.
    #[must_use]
    pub fn can_serve(&self) -> bool {
        self.models.iter().any(|model| {
            let usable = |leg| {
                let is_up = move |rank: &&RankIndex| {
                    let worker = self.rank(**rank).map(|(_, worker)| worker.state);
                    worker == Some(WorkerState::Up) && self.serves(**rank, leg)
                };
                model.ranks.iter().filter(is_up)
            };
            let goes_whole = |rank: &RankIndex| {
                let is_both = self.rank(*rank).is_some_and(|(rank, _)| rank.role == Role::Both);
                is_both || self.config.flow.disaggregation.fallback != Fallback::Reject
            };
            let is_pair = |decode: &RankIndex| {
                usable(Leg::Prefill).any(|prefill| self.are_near(*prefill, *decode))
            };
            usable(Leg::Whole).any(goes_whole) || usable(Leg::Decode).any(is_pair)
        })
    }

    /// Does its worker still have the rank? A removed rank serves no model, and so belongs to no
    /// pool.
    #[must_use]
    pub fn has(&self, index: RankIndex) -> bool {
        let rank = self.ranks.get(index.index());
        let pool = rank.and_then(|rank| self.pool(rank.pool));
        pool.is_some_and(|pool| pool.ranks.binary_search(&index).is_ok())
    }

    /// All workers that are not gone.
    pub fn present_workers(&self) -> impl Iterator<Item = (WorkerIndex, &Worker)> {
        let all = self.workers.iter().enumerate();
        let present = all.filter(|(_, worker)| worker.state != WorkerState::Gone);
        present.filter_map(|(index, worker)| Some((WorkerIndex::try_from_index(index)?, worker)))
    }

    /// All ranks that their workers still have, in index order.
    pub fn present(&self) -> impl Iterator<Item = (RankIndex, &Rank, &Worker)> {
        let indices = (0..self.ranks.len()).filter_map(RankIndex::try_from_index);
        let present = indices.filter(|index| self.has(*index));
        present.filter_map(|index| self.rank(index).map(|(rank, worker)| (index, rank, worker)))
    }

    /// Do other workers continue streams of the worker, as far as streams can move? Only while
    /// `retry.mid_stream` is on: a reload may turn the key off after the drain order.
    #[must_use]
    pub fn moves_streams(&self, worker: WorkerIndex) -> bool {
        let worker = self.workers.get(worker.index());
        self.config.retry.mid_stream && worker.is_some_and(|worker| worker.state.moves_streams())
    }

    /// Can the rank serve the leg, whatever its state?
    #[must_use]
    pub fn serves(&self, index: RankIndex, leg: Leg) -> bool {
        let Some((rank, worker)) = self.rank(index) else { return false };
        match (leg, rank.role) {
            (Leg::Whole, Role::Both) | (Leg::Decode, Role::Decode) => true,
            // SGLang refuses a request without a room there.
            (Leg::Whole, Role::Decode) => worker.dialect != Dialect::Sglang,
            (Leg::Prefill, Role::Prefill) => rank.kv_transfer.is_some(),
            _ => false,
        }
    }

    /// Does the rank serve only whole requests, whatever its state?
    #[must_use]
    pub fn is_whole_only(&self, index: RankIndex) -> bool {
        self.ranks.get(index.index()).is_some_and(|rank| rank.role == Role::Both)
    }

    /// Limits of requests and tokens on a rank.
    #[must_use]
    pub fn room(&self, index: RankIndex) -> RoomLimits {
        self.ranks.get(index.index()).map(|rank| rank.room).unwrap_or_default()
    }

    /// Capacity of a rank in KV tokens; 0: unknown.
    #[must_use]
    pub fn kv_capacity_tokens(&self, index: RankIndex) -> u64 {
        self.ranks.get(index.index()).map_or(0, Rank::kv_capacity_tokens)
    }

    #[must_use]
    pub fn queue_of(&self, index: RankIndex) -> Option<QueueIndex> {
        let rank = self.ranks.get(index.index())?;
        // The number of the pool or of the rank: shards agree on it without a table.
        match self.config.flow.queue.mode {
            QueueMode::Pool => Some(QueueIndex(rank.pool.0)),
            QueueMode::Endpoint => Some(QueueIndex(index.0)),
            QueueMode::Off => None,
        }
    }

    /// The pool that a queue serves.
    #[must_use]
    pub fn pool_of(&self, queue: QueueIndex) -> Option<PoolIndex> {
        match self.config.flow.queue.mode {
            QueueMode::Pool => Some(PoolIndex(queue.0)),
            QueueMode::Endpoint => self.ranks.get(queue.index()).map(|rank| rank.pool),
            QueueMode::Off => None,
        }
    }

    /// A pool; empty for an unused number.
    #[must_use]
    pub fn pool(&self, index: PoolIndex) -> Option<&Pool> {
        self.pools.get(index.index())
    }

    /// Pools that have ranks.
    pub fn used_pools(&self) -> impl Iterator<Item = (PoolIndex, &Pool)> {
        let used = |(index, pool)| Some((PoolIndex::try_from_index(index)?, pool));
        self.pools.iter().enumerate().filter_map(used).filter(|(_, pool)| !pool.ranks.is_empty())
    }

    /// Pools with ranks that answer clients: all pools except prefill pools.
    pub fn answering_pools(&self) -> impl Iterator<Item = (PoolIndex, &Pool)> {
        self.used_pools().filter(|(index, _)| index.index() < RANKS_MAX)
    }

    /// The rank and all other ranks at its address.
    pub fn ranks_beside(&self, index: RankIndex) -> impl Iterator<Item = RankIndex> {
        let address = self.ranks.get(index.index()).map(|rank| rank.address);
        let beside = move |rank: &Rank| Some(rank.address) == address;
        let ranks = self.ranks.iter().enumerate().filter(move |(_, rank)| beside(rank));
        ranks.filter_map(|(index, _)| RankIndex::try_from_index(index))
    }

    /// Ranks that are full when this rank refuses a request: vLLM counts waiting requests for all
    /// ranks of a server (`--max-num-queued-reqs`), SGLang for each rank.
    pub fn ranks_full_with(&self, index: RankIndex) -> impl Iterator<Item = RankIndex> {
        let dialect = self.rank(index).map(|(_, worker)| worker.dialect);
        let is_alone = dialect == Some(Dialect::Sglang);
        self.ranks_beside(index).filter(move |&rank| rank == index || !is_alone)
    }

    #[must_use]
    pub fn rank(&self, index: RankIndex) -> Option<(&Rank, &Worker)> {
        let rank = self.ranks.get(index.index())?;
        Some((rank, self.workers.get(rank.worker.index())?))
    }
}
