//! The effective configuration as types. Every field is a key of the file under the same words; the defaults
//! here are the documented ones. Plain data: built by the loader, read by every plane.

use super::flow::{FlowConfig, NatsConfig};
use super::worker::WorkerConfig;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that one process runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `listen`: where clients connect. Every shard opens its own socket on it.
    pub listen: SocketAddr,
    /// `listen_shared`: another process of the same user may listen there too, and gets its share
    /// of the connections.
    pub listen_shared: bool,
    /// `admin`: health, metrics and worker listing. Loopback unless configured.
    pub admin: SocketAddr,
    /// `admin_hosts`: names by which the admin API is called, beside IP addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// `admin_token_file`: holds the token that calls to the admin API need which change something;
    /// absent: none is asked for.
    pub admin_token_file: Option<PathBuf>,
    /// `cores`: one shard each, pinned. Empty means not resolved yet, see [`Config::resolve_cores`].
    pub cores: Vec<usize>,
    /// `[[worker]]`: the fleet, in file order.
    pub workers: Vec<WorkerConfig>,
    /// `engine`: what the workers speak, unless a worker says otherwise.
    pub engine: EngineKind,
    /// `[health]`.
    pub health: HealthConfig,
    /// `model_dir`: tokenizer and chat template of all workers that name none themselves.
    pub model_dir: Option<PathBuf>,
    /// `policy`: how a rank is chosen.
    pub policy: Policy,
    /// Limits, queues, the rejection window: `rank_concurrency_max`, `rejection_window`, `[queue]`, `[rejection]`,
    /// `[[tenant]]`.
    pub flow: FlowConfig,
    /// `[nats]`.
    pub nats: NatsConfig,
    /// `[kv]`.
    pub kv: KvConfig,
    /// `[approximate]`.
    pub approximate: ApproximateConfig,
    /// `[index]`.
    pub index: IndexConfig,
    /// `[load]`.
    pub load: LoadConfig,
    /// `[limits]`.
    pub limits: LimitsConfig,
    /// `[timeouts]`.
    pub timeouts: TimeoutsConfig,
    /// `[retry]`.
    pub retry: RetryConfig,
    /// `[breaker]`.
    pub breaker: BreakerConfig,
    /// `[log]`.
    pub log: LogConfig,
}

/// Engine families, as written in the file and on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// `auto`: asked of each worker.
    #[default]
    Auto,
    /// `vllm`.
    Vllm,
    /// `sglang`.
    Sglang,
    /// `openai`: any other OpenAI-compatible server.
    Openai,
}

/// How a rank is chosen among those that may take the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// `kv`: least predicted work, counting the prefix that a rank already holds.
    #[default]
    Kv,
    /// `least_loaded`: least work in flight.
    LeastLoaded,
    /// `power_of_two`: the less loaded of two random ranks.
    PowerOfTwo,
    /// `round_robin`: in turn.
    RoundRobin,
    /// `random`: uniformly.
    Random,
}

/// Active health checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// `health.enabled`. When off nothing is asked of the workers: all take traffic at once, as configured.
    pub enabled: bool,
    /// `health.interval`: between two checks of one worker.
    pub interval: Duration,
    /// `health.timeout`: for one check.
    pub timeout: Duration,
    /// `health.unhealthy_after`: failed checks in a row that take a worker out.
    pub unhealthy_after: u32,
    /// `health.healthy_after`: good checks in a row that bring it back.
    pub healthy_after: u32,
}

/// What policy `kv` counts of what KV events tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// `kv.host_credit_percent`: what a block in a rank's host memory saves, of what one on its device does; 0 leaves that
    /// tier out.
    pub host_credit_percent: u32,
    /// `kv.disk_credit_percent`: the same for disks and stores of files or objects.
    pub disk_credit_percent: u32,
    /// `kv.tier_ttl`: how long after its last store a block counts in such a tier that has
    /// announced no removal; 0 means for ever.
    pub tier_ttl: Duration,
}

/// What policy `kv` believes of caches that no event has told of, from where earlier prompts went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApproximateConfig {
    /// `approximate.ttl`: how long a rank without KV events is believed to hold a prompt after its last use; 0 turns
    /// it off.
    pub ttl: Duration,
    /// `approximate.speculative_ttl`: how long a rank with KV events is believed to be about to store a prompt that
    /// was sent there; 0 turns it off.
    pub speculative_ttl: Duration,
    /// `approximate.rank_bytes_max`: prompt text that one rank is believed to hold at most, where the engine does not
    /// tell its capacity.
    pub rank_bytes_max: usize,
}

/// What is known of the fleet's caches, across restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// `index.snapshot`: file that keeps it; absent: a restarted router knows nothing. Holds a secret.
    pub snapshot: Option<PathBuf>,
    /// `index.snapshot_every`: time between two writes; 0 writes only at the end of a drain.
    pub snapshot_every: Duration,
}

/// What engines report of their load. It corrects the router's own count by what others have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// `load.source`: where the reports come from, unless a worker says otherwise.
    pub source: LoadSource,
    /// `load.interval`: between two questions to one worker. An answer may take `health.timeout`.
    pub interval: Duration,
    /// `load.back_off`: ask less often where answers cost the engine much time.
    pub back_off: bool,
    /// `load.age_max`: a report counts less with its age, and nothing from this age on.
    pub age_max: Duration,
}

/// Where load reports come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadSource {
    /// `auto`: `metrics` of vLLM; `push` of SGLang if it publishes, else `loads`; nothing of others, and nothing with
    /// health checks off.
    #[default]
    Auto,
    /// `metrics`: `GET /metrics`, under the names of vLLM or SGLang.
    Metrics,
    /// `loads`: SGLang's `GET /v1/loads`, or what its older versions have.
    Loads,
    /// `push`: SGLang's `LoadStat` messages, where it announces them; while they do not come, as `loads`.
    Push,
    /// `off`: no reports.
    Off,
}

/// Bounds on what clients and engines may make the router hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// `limits.head_bytes_max`: request or response head.
    pub head_bytes_max: usize,
    /// `limits.head_fields_max`: fields in a head.
    pub head_fields_max: usize,
    /// `limits.body_bytes_max`: request body.
    pub body_bytes_max: usize,
    /// `limits.in_flight_max`: requests in flight per shard.
    pub in_flight_max: usize,
    /// `limits.connections_max`: client connections per shard.
    pub connections_max: usize,
    /// `limits.buffered_bytes_max`: request bodies held per shard; three times each for models with prefill workers, as
    /// each leg has a copy.
    pub buffered_bytes_max: usize,
    /// `limits.index_bytes_max`: the whole radix index and, again, the feeds' own maps; what notes the times of guesses
    /// adds up to a sixth of it.
    pub index_bytes_max: usize,
}

/// Every wait has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeoutsConfig {
    /// `timeouts.head`: for a whole request head.
    pub head: Duration,
    /// `timeouts.body`: between two reads of a request body.
    pub body: Duration,
    /// `timeouts.idle`: a client connection between requests.
    pub idle: Duration,
    /// `timeouts.connect`: to a worker.
    pub connect: Duration,
    /// `timeouts.first_byte`: from the request sent to the first byte of the answer; of a pair's stream, to its first event with
    /// a part of the answer.
    pub first_byte: Duration,
    /// `timeouts.stream_idle`: between two reads of an answer.
    pub stream_idle: Duration,
    /// `timeouts.write`: a client that does not read.
    pub write: Duration,
    /// `timeouts.upstream_idle`: pooled connections; below the 5 s after which engines close theirs.
    pub upstream_idle: Duration,
    /// `timeouts.drain`: for what is in flight at shutdown.
    pub drain: Duration,
    /// `timeouts.stall_abort`: a shard that makes no progress for so long ends the process; 0:
    /// never.
    pub stall_abort: Duration,
}

/// Second tries of requests whose first byte has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// `retry.after_send`: send a request to another worker though the first may have read it.
    pub after_send: bool,
    /// `retry.attempts_max`: workers, or pairs of workers, that a request is sent to. Refused
    /// connections and an engine's 429, 503 or 529 do not count.
    pub attempts_max: u32,
    /// `retry.budget_percent`: such retries per hundred requests.
    pub budget_percent: u32,
}

/// The passive breaker of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// `breaker.failures`: failures in a row that open it.
    pub failures: u32,
    /// `breaker.open`: how long it stays open before one trial.
    pub open: Duration,
}

/// What is logged, to standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `log.json`: one JSON object per line.
    pub json: bool,
    /// `log.requests`: one record per request.
    pub requests: bool,
    /// `log.level`: `error`, `warn`, `info`, `debug`, `trace`, or a `tracing` filter.
    pub level: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            listen_shared: false,
            admin: SocketAddr::from(([127, 0, 0, 1], 9090)),
            admin_hosts: Vec::new(),
            admin_token_file: None,
            cores: Vec::new(),
            workers: Vec::new(),
            engine: EngineKind::Auto,
            health: HealthConfig::default(),
            model_dir: None,
            policy: Policy::Kv,
            flow: FlowConfig::default(),
            nats: NatsConfig::default(),
            kv: KvConfig::default(),
            approximate: ApproximateConfig::default(),
            index: IndexConfig::default(),
            load: LoadConfig::default(),
            limits: LimitsConfig::default(),
            timeouts: TimeoutsConfig::default(),
            retry: RetryConfig { after_send: false, attempts_max: 2, budget_percent: 20 },
            breaker: BreakerConfig { failures: 3, open: Duration::from_secs(2) },
            log: LogConfig::default(),
        }
    }
}

impl Config {
    /// Fills empty `cores` from the cores this process may run on: all but the last, which is left to the
    /// control plane, or the only one.
    pub fn resolve_cores(&mut self, available: &[usize]) {
        if self.cores.is_empty() {
            let kept = available.len().saturating_sub(1).max(1);
            let shards = crate::base::limits::SHARDS_MAX.min(kept);
            self.cores = available.iter().copied().take(shards).collect();
        }
    }
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            interval: Duration::from_secs(2),
            // A busy engine answers late: SGLang's event loop may stand still for seconds while it
            // compiles.
            timeout: Duration::from_secs(5),
            unhealthy_after: 3,
            healthy_after: 1,
        }
    }
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self { snapshot: None, snapshot_every: Duration::from_secs(300) }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        const KIB: usize = 1024;
        const MIB: usize = 1024 * KIB;
        Self {
            head_bytes_max: 64 * KIB,
            head_fields_max: 100,
            body_bytes_max: 32 * MIB,
            in_flight_max: 8_192,
            connections_max: 16_384,
            buffered_bytes_max: 512 * MIB,
            index_bytes_max: 512 * MIB,
        }
    }
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            // A token takes some 130 KB of KV (8 B parameters) to 330 KB (70 B): at 25 GB/s from the host it is back in a
            // seventh to a fifth of the time that its prefill takes.
            host_credit_percent: 80,
            // Local NVMe brings back some 5 GB/s, about as fast as the prefill; file and object stores vary more.
            disk_credit_percent: 30,
            // Most sessions that pause go on within it; under load a host's memory turns over
            // sooner.
            tier_ttl: Duration::from_mins(30),
        }
    }
}

impl Default for ApproximateConfig {
    fn default() -> Self {
        Self {
            // A busy rank computes 10,000 tokens a second and caches 0.4 to 2 million: it turns
            // over in 40 to 200 s.
            ttl: Duration::from_mins(2),
            // A prefill and the way of its event take well below this; the next sibling renews it.
            speculative_ttl: Duration::from_secs(2),
            // Two million tokens of text: the cache of one rank on several large GPUs. Believing too much costs a
            // miss, as not believing does.
            rank_bytes_max: 8 << 20,
        }
    }
}

impl Default for LoadConfig {
    fn default() -> Self {
        Self {
            source: LoadSource::Auto,
            interval: Duration::from_secs(1),
            back_off: true,
            // SGLang sends unchanged values every second and is wedged after three of silence; some scrapes may be late.
            age_max: Duration::from_secs(5),
        }
    }
}

impl Default for TimeoutsConfig {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            connect: Duration::from_secs(2),
            first_byte: Duration::from_secs(600),
            stream_idle: Duration::from_secs(300),
            write: Duration::from_secs(60),
            upstream_idle: Duration::from_secs(4),
            drain: Duration::from_secs(30),
            stall_abort: Duration::ZERO,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { json: false, requests: false, level: "info".to_owned() }
    }
}

/// Words of the file and the command line for each variant, in the order of their documentation.
pub trait Word: Copy + PartialEq + 'static {
    /// All variants with their word.
    const WORDS: &'static [(&'static str, Self)];

    /// The variant of that word.
    #[must_use]
    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(name, _)| *name == word).map(|(_, variant)| *variant)
    }

    /// The word of this variant.
    #[must_use]
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, variant)| *variant == self).map_or("", |(name, _)| name)
    }
}

impl Word for EngineKind {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("vllm", Self::Vllm),
        ("sglang", Self::Sglang),
        ("openai", Self::Openai),
    ];
}

impl Word for LoadSource {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("metrics", Self::Metrics),
        ("loads", Self::Loads),
        ("push", Self::Push),
        ("off", Self::Off),
    ];
}

impl Policy {
    /// Its word in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.word()
    }
}

impl Word for Policy {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("kv", Self::Kv),
        ("least_loaded", Self::LeastLoaded),
        ("power_of_two", Self::PowerOfTwo),
        ("round_robin", Self::RoundRobin),
        ("random", Self::Random),
    ];
}
