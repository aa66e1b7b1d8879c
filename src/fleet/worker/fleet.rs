//! What the control plane knows of the fleet, as one immutable snapshot per change.

use super::model::{ANY_MODEL, Model};
use super::{KvTransfer, Leg, LimitSource, LoadBoard, NoteSink, Role, RoomLimits, SessionSeat};
use crate::tenant::Tenants;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{DpRank, ModelIndex, PoolIndex, QueueIndex, RankIndex, WorkerIndex};
use forebay_config::{Config, Fallback, KvFlow, QueueMode};
use forebay_index::{WINDOWS_MAX, Window, WindowedRank};
use forebay_text::ImageKey;
use forebay_tls::{Acceptor, Connector};
use std::net::SocketAddr;
use std::sync::Arc;

/// The fleet at one moment. Indices are stable: a rank keeps its [`RankIndex`] for the life of the
/// process, also while its worker is down.
#[derive(Debug, Default)]
pub struct FleetSnapshot {
    /// Counts up with every snapshot.
    pub generation: u64,
    /// Indexed by [`WorkerIndex`].
    pub workers: Vec<Worker>,
    /// Indexed by [`RankIndex`].
    pub ranks: Vec<Rank>,
    /// Indexed by [`ModelIndex`].
    pub models: Vec<Model>,
    /// Indexed by [`PoolIndex`]; numbers that no pool has stand for empty ones.
    pub pools: Vec<Pool>,
    /// What is configured at this moment.
    pub config: Arc<Config>,
    /// Who may call, and what callers may have.
    pub tenants: Arc<Tenants>,
    /// How requests are taken and noted from now on.
    pub serving: Serving,
}

/// What shards do beside choosing a rank.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// How sessions with clients begin; `None` without TLS.
    pub acceptor: Option<Acceptor>,
    /// Where notes of requests go; `None` while nobody records.
    pub notes: Option<NoteSink>,
    /// Names images in chats; `None` without `image_key_file`.
    pub image_key: Option<ImageKey>,
    /// A configured worker has not listed its models yet: an unlisted name may be one of them.
    pub awaits_models: bool,
}

/// Ranks that share models, directly or through others: what they refuse they refuse together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// In index order, whatever their state.
    pub ranks: Vec<RankIndex>,
    /// Tokens that the KV caches of its usable ranks hold together; 0 while one of them is unknown.
    pub kv_tokens: u64,
}

/// One engine process group, reached under one URL.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Shown to people: header `x-forebay-worker`, metrics, logs. `host:port` unless configured.
    pub name: Arc<str>,
    /// Value of the `Host` field sent to it.
    pub authority: Arc<str>,
    /// Where it listens (resolved by the control plane).
    pub address: SocketAddr,
    /// What it speaks beside OpenAI's API.
    pub dialect: Dialect,
    /// Health as last checked, and the operator's word.
    pub state: WorkerState,
    /// Sent as `Authorization: Bearer …` instead of the client's own, when configured.
    pub api_key: Option<Arc<str>>,
    /// Counts up when its caches may have been lost: it went down, or describes itself differently.
    pub cache_generation: u32,
    /// How sessions with it begin; `None` in plain text.
    pub connector: Option<Connector>,
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

/// What active health checks say of a worker, unless its operator has taken it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// Never answered yet; takes no traffic.
    Unknown,
    /// Answers; takes traffic.
    Up,
    /// Failed its checks; takes no traffic.
    Down,
    /// Gets nothing new by the operator's word, and finishes what it has.
    Draining {
        /// What the checks say meanwhile.
        answers: bool,
        /// Its streams go on at other workers, those that can.
        moves: bool,
    },
    /// Its operator has removed it. Only its place is left, and requests that were late.
    Gone,
}

impl WorkerState {
    /// The same for a worker that its operator has taken out.
    #[must_use]
    pub const fn draining(self, moves: bool) -> Self {
        match self {
            Self::Gone => self,
            Self::Draining { answers, .. } => Self::Draining { answers, moves },
            Self::Up => Self::Draining { answers: true, moves },
            Self::Unknown | Self::Down => Self::Draining { answers: false, moves },
        }
    }

    /// Are its streams to go on at other workers, those that can?
    #[must_use]
    pub const fn moves_streams(self) -> bool {
        matches!(self, Self::Gone | Self::Draining { moves: true, .. })
    }

    /// Has its operator taken it out?
    #[must_use]
    pub const fn is_draining(self) -> bool {
        matches!(self, Self::Draining { .. })
    }

    /// Does it pass its checks?
    #[must_use]
    pub const fn answers(self) -> bool {
        matches!(self, Self::Up | Self::Draining { answers: true, .. })
    }

    /// Did it fail its checks, or go?
    #[must_use]
    pub const fn is_down(self) -> bool {
        matches!(self, Self::Down | Self::Gone | Self::Draining { answers: false, .. })
    }
}

/// The unit of index, load and selection: one `(worker, dp_rank)` with its own KV cache.
#[derive(Clone, Debug)]
pub struct Rank {
    /// The worker it belongs to.
    pub worker: WorkerIndex,
    /// Its number inside the worker.
    pub dp_rank: DpRank,
    /// Ranks of that worker; 1 means that no pin is sent.
    pub dp_size: u32,
    /// Where it is reached: the worker's address, or its own port.
    pub address: SocketAddr,
    /// Tokens per KV block; 0 while unknown.
    pub block_size_tokens: u32,
    /// KV blocks it can hold; 0 while unknown.
    pub kv_block_count: u32,
    /// Requests that it runs at once, as its engine tells; 0 while unknown.
    pub running_max: u32,
    /// Where the limit of its requests comes from.
    pub limit_source: LimitSource,
    /// True while its KV events are followed; without them its overlap is unknown.
    pub kv_feed_live: bool,
    /// Which legs it serves.
    pub role: Role,
    /// How its KV is transferred, when it prefills for others; `None` while that is not known, and
    /// then it gets no legs.
    pub kv_transfer: Option<KvTransfer>,
    /// By which connector its KV moves, where that is known: ranks with different ones are no pair.
    pub kv_flow: Option<KvFlow>,
    /// Label of the part of the network it is in: ranks with different labels are no pair.
    pub topology: Option<Arc<str>>,
    /// How much it may be given.
    pub room: RoomLimits,
    /// The pool it belongs to.
    pub pool: PoolIndex,
    /// Where the index has what its lower tiers hold.
    pub tiers: TierRanks,
    /// What sessions see of it.
    pub seat: SessionSeat,
}

impl Rank {
    /// KV tokens that the rank can hold; 0: not known.
    #[must_use]
    #[inline]
    pub const fn kv_capacity_tokens(&self) -> u64 {
        self.kv_block_count as u64 * self.block_size_tokens as u64
    }
}

/// Numbers under which the index knows what a rank could bring back from its lower tiers, and what
/// its windows hold: like ranks of their own, but counted from
/// [`RANKS_MAX`](forebay_base::limits::RANKS_MAX) down, so that none is ever a rank. `None` while
/// the rank was never seen to use that tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierRanks {
    /// What the device or the host holds.
    pub host: Option<RankIndex>,
    /// What the device, the host or a disk holds.
    pub disk: Option<RankIndex>,
    /// What the KV pool holds that the rank shares with others: all of them have its number.
    pub kv_pool: Option<RankIndex>,
    /// Where a rank of a hybrid model can resume; the first places have them. None where the rank
    /// can resume anywhere, or its events do not tell where.
    pub windows: [Option<Window>; WINDOWS_MAX],
    /// The rank can resume only behind some of its blocks, and its events do not tell which: what
    /// the index has is the most that it could.
    pub is_bound: bool,
}

impl TierRanks {
    /// The number of how far the rank can resume, when it cannot do so everywhere.
    #[must_use]
    pub fn point(&self) -> Option<RankIndex> {
        Some(self.windows.first()?.as_ref()?.number)
    }

    /// Is what the index tells of the rank the most that it could find? Pools tell no better.
    #[must_use]
    pub const fn is_upper_bound(&self) -> bool {
        self.is_bound || self.kv_pool.is_some()
    }

    /// What the index tells of the rank, in a word for pages.
    #[must_use]
    pub const fn overlap_kind(&self) -> &'static str {
        if self.is_upper_bound() { "upper_bound" } else { "exact" }
    }

    /// The rank as walks know it, when it cannot resume everywhere.
    #[must_use]
    pub fn windowed(&self, rank: RankIndex) -> Option<WindowedRank> {
        self.point().map(|_| WindowedRank { rank, windows: self.windows })
    }
}

impl FleetSnapshot {
    /// Before it is published: each rank tells of room where this fleet waits for the rank.
    pub fn set_queues(&self, board: &LoadBoard) {
        for rank in (0..self.ranks.len()).filter_map(RankIndex::try_from_index) {
            if let Some(load) = board.rank(rank) {
                load.set_queue(self.queue_of(rank));
            }
        }
    }

    /// What its maker owes to all who read it: indices lead somewhere, and lists that are searched
    /// by halves are in order. Debug builds check it once for each snapshot.
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
            let tiers = tiers.into_iter().flatten().chain(windows);
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

    /// The model whose ranks serve the name: the listed one, otherwise [`ANY_MODEL`]. `None` for an
    /// expected name without a rank: other workers must not get its requests.
    #[must_use]
    pub fn model_for(&self, name: &str) -> Option<(ModelIndex, &Model)> {
        let known = self.model(name).filter(|(_, model)| model.is_known());
        known.or_else(|| self.model(ANY_MODEL)).filter(|(_, model)| !model.ranks.is_empty())
    }

    /// Does a present worker list a name, or did it?
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.models.iter().any(|model| model.is_known() && !model.is_any())
    }

    /// What names the images in chats of a model; `None` where nothing behind an image is matched.
    #[must_use]
    pub fn image_key_of(&self, model: &Model) -> Option<&ImageKey> {
        let follows = model.text.as_ref().is_some_and(|text| text.vocabulary.follows_images());
        self.serving.image_key.as_ref().filter(|_| follows)
    }

    /// Could any request be served now? A prefill worker is nothing without one that decodes.
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

    /// Does its worker still have the rank? One that it has no more serves no model, and so belongs
    /// to no pool.
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

    /// Do streams of the worker go on at other workers, those that can? Only as long as
    /// `retry.mid_stream` is on: a reload may turn the key off after the order.
    #[must_use]
    pub fn moves_streams(&self, worker: WorkerIndex) -> bool {
        let worker = self.workers.get(worker.index());
        self.config.retry.mid_stream && worker.is_some_and(|worker| worker.state.moves_streams())
    }

    /// Can the rank take such a leg, whatever its state?
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

    /// Does the rank serve whole requests and nothing else, whatever its state?
    #[must_use]
    pub fn is_whole_only(&self, index: RankIndex) -> bool {
        self.ranks.get(index.index()).is_some_and(|rank| rank.role == Role::Both)
    }

    /// How much a rank may be given.
    #[must_use]
    pub fn room(&self, index: RankIndex) -> RoomLimits {
        self.ranks.get(index.index()).map(|rank| rank.room).unwrap_or_default()
    }

    /// KV tokens that a rank can hold; 0: not known.
    #[must_use]
    pub fn kv_capacity_tokens(&self, index: RankIndex) -> u64 {
        self.ranks.get(index.index()).map_or(0, Rank::kv_capacity_tokens)
    }

    /// The queue that requests for a rank wait in.
    #[must_use]
    pub fn queue_of(&self, index: RankIndex) -> Option<QueueIndex> {
        let rank = self.ranks.get(index.index())?;
        // By the number of the pool or of the rank: shards agree on it without a table.
        match self.config.flow.queue.mode {
            QueueMode::Pool => Some(QueueIndex(rank.pool.0)),
            QueueMode::Endpoint => Some(QueueIndex(index.0)),
            QueueMode::Off => None,
        }
    }

    /// The pool whose requests wait in a queue.
    #[must_use]
    pub fn pool_of(&self, queue: QueueIndex) -> Option<PoolIndex> {
        match self.config.flow.queue.mode {
            QueueMode::Pool => Some(PoolIndex(queue.0)),
            QueueMode::Endpoint => self.ranks.get(queue.index()).map(|rank| rank.pool),
            QueueMode::Off => None,
        }
    }

    /// A pool; an empty one for a number that none has.
    #[must_use]
    pub fn pool(&self, index: PoolIndex) -> Option<&Pool> {
        self.pools.get(index.index())
    }

    /// Pools that have ranks.
    pub fn used_pools(&self) -> impl Iterator<Item = (PoolIndex, &Pool)> {
        let used = |(index, pool)| Some((PoolIndex::try_from_index(index)?, pool));
        self.pools.iter().enumerate().filter_map(used).filter(|(_, pool)| !pool.ranks.is_empty())
    }

    /// Those whose ranks answer clients: all but the pools of prefill ranks.
    pub fn answering_pools(&self) -> impl Iterator<Item = (PoolIndex, &Pool)> {
        self.used_pools().filter(|(index, _)| index.index() < RANKS_MAX)
    }

    /// The rank and all others behind its address.
    pub fn ranks_beside(&self, index: RankIndex) -> impl Iterator<Item = RankIndex> {
        let address = self.ranks.get(index.index()).map(|rank| rank.address);
        let beside = move |rank: &Rank| Some(rank.address) == address;
        let ranks = self.ranks.iter().enumerate().filter(move |(_, rank)| beside(rank));
        ranks.filter_map(|(index, _)| RankIndex::try_from_index(index))
    }

    /// Ranks that have no room when this one refuses a request: vLLM counts waiting requests for
    /// all ranks of a server (`--max-num-queued-reqs`), SGLang for each rank.
    pub fn ranks_full_with(&self, index: RankIndex) -> impl Iterator<Item = RankIndex> {
        let dialect = self.rank(index).map(|(_, worker)| worker.dialect);
        let is_alone = dialect == Some(Dialect::Sglang);
        self.ranks_beside(index).filter(move |&rank| rank == index || !is_alone)
    }

    /// The rank and its worker.
    #[must_use]
    pub fn rank(&self, index: RankIndex) -> Option<(&Rank, &Worker)> {
        let rank = self.ranks.get(index.index())?;
        Some((rank, self.workers.get(rank.worker.index())?))
    }
}
