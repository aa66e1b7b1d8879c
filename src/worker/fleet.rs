//! What the control plane knows of the fleet, as one immutable snapshot per change.

use crate::base::{DpRank, ModelIndex, RankIndex, WorkerIndex};
use crate::block::{BlockKey, KeySeed, RootName, Vocabulary};
use crate::chat::{ChatTemplate, EngineRules};
use std::net::SocketAddr;
use std::sync::Arc;

/// The fleet at one moment. Indices are stable: a rank keeps its [`RankIndex`] for the life of the process,
/// also while its worker is down.
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
    /// Health as last checked.
    pub state: WorkerState,
    /// Sent as `Authorization: Bearer …` instead of the client's own, when configured.
    pub api_key: Option<Arc<str>>,
    /// Counts up when its caches may have been lost: it went down, or describes itself differently.
    pub cache_generation: u32,
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

/// What active health checks say of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// Never answered yet; takes no traffic.
    Unknown,
    /// Answers; takes traffic.
    Up,
    /// Failed its checks; takes no traffic.
    Down,
}

/// Which legs of a disaggregated request a rank serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Whole requests.
    Both,
    /// Prefill legs only.
    Prefill,
    /// Decode legs only.
    Decode,
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
    /// True while its KV events are followed; without them its overlap is unknown.
    pub kv_feed_live: bool,
    /// Which legs it serves.
    pub role: Role,
    /// Most requests in flight on it; 0 means no limit.
    pub concurrency_max: u32,
    /// Where the index has what its lower tiers hold.
    pub tiers: TierRanks,
}

/// Numbers under which the index knows what a rank could bring back from its lower tiers: like ranks of their own, but
/// counted from [`RANKS_MAX`](crate::base::limits::RANKS_MAX) down, so that none is ever a rank. `None` while the rank was
/// never seen to use that tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierRanks {
    /// What the device or the host holds.
    pub host: Option<RankIndex>,
    /// What the device, the host or a disk holds.
    pub disk: Option<RankIndex>,
}

/// One model name and who serves it.
#[derive(Clone, Debug)]
pub struct Model {
    /// As clients write it.
    pub name: Arc<str>,
    /// Its object in the answer of `GET /v1/models`, as JSON text from the first worker that serves it.
    pub card_json: Arc<str>,
    /// Ranks that serve it, in index order, whatever their state.
    pub ranks: Vec<RankIndex>,
    /// One root per distinct block size among its ranks.
    pub roots: Vec<BlockRoot>,
    /// Roots of what is only believed to be held.
    pub guess_roots: GuessRoots,
    /// How its prompts become bytes; `None` when no tokenizer was found (then they are matched by guesses only). Of the
    /// first configured worker that has one, also where workers of different engines serve the model.
    pub text: Option<Arc<ModelText>>,
    /// A LoRA adapter of another model, with blocks of its own.
    pub is_adapter: bool,
}

/// Start of the chain of block keys for one model and one block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRoot {
    /// Tokens per block under this root.
    pub block_size_tokens: u32,
    /// Key that first blocks are chained to.
    pub key: BlockKey,
}

/// Starts of the two trees that the router's own decisions fill, see `mailbox::GuessKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuessRoots {
    /// For ranks without live KV events.
    pub approximate: BlockKey,
    /// For ranks with live KV events.
    pub speculative: BlockKey,
}

impl GuessRoots {
    /// No engine has blocks of so many tokens, so these roots are no engine's.
    const APPROXIMATE_MARK: u32 = 0;
    const SPECULATIVE_MARK: u32 = u32::MAX;

    /// The roots of a model name. Adapters and other names of one model have trees of their own.
    #[must_use]
    pub fn new(seed: KeySeed, model: &str) -> Self {
        let root = |block_size_tokens| {
            BlockKey::root(seed, &RootName { model, block_size_tokens, ..RootName::default() })
        };
        Self {
            approximate: root(Self::APPROXIMATE_MARK),
            speculative: root(Self::SPECULATIVE_MARK),
        }
    }
}

/// How the prompts of a model become the bytes that its engine sees.
#[derive(Debug)]
pub struct ModelText {
    /// Token id to bytes.
    pub vocabulary: Arc<Vocabulary>,
    /// The chat template; `None` for models without one.
    pub chat_template: Option<ChatTemplate>,
    /// The engine whose way of reading requests is followed.
    pub rules: EngineRules,
}

impl FleetSnapshot {
    /// The model of that name. With few models a linear search beats a map.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<(ModelIndex, &Model)> {
        let index = self.models.iter().position(|model| &*model.name == name)?;
        Some((ModelIndex::try_from_index(index)?, self.models.get(index)?))
    }

    /// Most requests in flight on a rank: its own limit, else the one for all; 0 means none.
    #[must_use]
    pub fn concurrency_max(&self, index: RankIndex, for_all: u32) -> u32 {
        let own = self.ranks.get(index.index()).map_or(0, |rank| rank.concurrency_max);
        if own > 0 { own } else { for_all }
    }

    /// The rank and its worker.
    #[must_use]
    pub fn rank(&self, index: RankIndex) -> Option<(&Rank, &Worker)> {
        let rank = self.ranks.get(index.index())?;
        Some((rank, self.workers.get(rank.worker.index())?))
    }
}
