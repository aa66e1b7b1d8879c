//! The table of keys: everything but back pressure (`flow`) and workers (`worker`). Plain data:
//! built by the loader, read by every thread.

use super::client::{ClientConfig, CorsConfig, JwtConfig};
use super::discovery::DiscoveryConfig;
use super::flow::FlowConfig;
use super::replicas::{NatsConfig, ReplicasConfig};
use super::tls::{AdminTlsConfig, CertificateConfig, ListenerConfig, TlsConfig, UpstreamTlsConfig};
use super::traces::TracesConfig;
use super::worker::WorkerConfig;
use super::worker_defaults::WorkerDefaultsConfig;
use crate::keys::key::{Form, flag};
use crate::keys::setting::Word;
use crate::keys::table::{table, words};
use crate::values::admin_address::AdminAddress;
use crate::values::engine::{EngineKind, LoadSource};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

table! {
    /// Where the router listens, where it runs, and how it chooses.
    pub struct Config in "" {
        /// Where clients connect. Every shard opens its own socket on it.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8080)),
            { flag: flag("", "listen", "ADDR"), reloadable: false };
        /// Join a port where another router of the same user listens, and let others join. The
        /// kernel spreads connections over all.
        listen_shared: bool = false, { flag: flag("", "listen-shared", ""), reloadable: false };
        /// Where health, metrics and the admin API answer: an address, or a socket in the file
        /// system as `unix:/run/forebay/admin.sock`.
        admin: AdminAddress = AdminAddress::from(([127, 0, 0, 1], 9090)),
            { flag: flag("", "admin", "ADDR"), reloadable: false };
        /// Names by which the admin API may be called, beside IP addresses and `localhost`.
        admin_hosts: Vec<String> = Vec::new(), { reloadable: false };
        /// File with the token that admin calls need which change something.
        admin_token_file: Option<PathBuf> = None,
            { absent: "no token", flag: flag("", "admin-token-file", "FILE"), reloadable: false };
        /// File with the token that admin calls need which only read. `/healthz` and `/readyz`
        /// need none.
        admin_read_token_file: Option<PathBuf> = None, { absent: "no token", reloadable: false };
        /// Also take calls of the admin API for workers where clients connect: `/workers`, and
        /// those of vllm-router. Each needs the token of `admin_token_file`.
        admin_on_client_port: bool = false, { reloadable: false };
        /// File with the hashes of the keys that clients may use. `forebay key` writes it.
        api_keys: Option<PathBuf> = None,
            { absent: "no key is asked for", flag: flag("", "api-keys", "FILE") };
        /// Cores to run on, one shard each: `0-3,8`. The file also takes a list, `[0, 1]`.
        cores: Vec<usize> = Vec::new(),
            { absent: "all but the last", flag: flag("", "cores", "LIST"), reloadable: false };
        /// What the workers speak, unless a worker says otherwise.
        engine: EngineKind = EngineKind::Auto, { flag: flag("Workers", "engine", "KIND") };
        /// Folder with `tokenizer.json`, `tokenizer_config.json`, `config.json` and
        /// `chat_template.jinja`. Used for workers whose engine names no folder that exists here.
        model_dir: Option<PathBuf> = None,
            { absent: "the Hugging Face cache", flag: flag("Workers", "model-dir", "DIR") };
        /// File with the secret by which images in chats get names (`uuid`), so that vLLM's prompts
        /// match behind images too. Replicas need the same.
        image_key_file: Option<PathBuf> = None,
            { absent: "a match ends at the first image" };
        /// File with what the admin API changed of the workers: added, drained and removed ones
        /// stay so after a restart.
        workers_state: Option<PathBuf> = None,
            { absent: "a restart forgets the changes", reloadable: false };
        /// How a rank is chosen among those with room.
        policy: Policy = Policy::Kv, { flag: flag("Routing", "policy", "POLICY") };
    }
    sections {
        /// `[client]`.
        client: ClientConfig,
        /// Tokens of clients: `[jwt]`.
        jwt: JwtConfig,
        /// `[cors]`.
        cors: CorsConfig,
        /// `[tls]`.
        tls: TlsConfig,
        /// `[admin_tls]`.
        admin_tls: AdminTlsConfig,
        /// `[upstream_tls]`.
        upstream_tls: UpstreamTlsConfig,
        /// `[worker_defaults]`.
        worker_defaults: WorkerDefaultsConfig,
        /// `[discovery]`.
        discovery: DiscoveryConfig,
        /// `[health]`.
        health: HealthConfig,
        /// `[breaker]`.
        breaker: BreakerConfig,
        /// `[kv]`.
        kv: KvConfig,
        /// `[approximate]`.
        approximate: ApproximateConfig,
        /// `[index]`.
        index: IndexConfig,
        /// `[session]`.
        session: SessionConfig,
        /// `[load]`.
        load: LoadConfig,
        /// `[limits]`, without the keys in [`FlowConfig`].
        limits: LimitsConfig,
        /// Limits, queues, the rejection window and tenants.
        flow: FlowConfig,
        /// `[timeouts]`.
        timeouts: TimeoutsConfig,
        /// `[retry]`.
        retry: RetryConfig,
        /// `[replicas]`.
        replicas: ReplicasConfig,
        /// `[nats]`.
        nats: NatsConfig,
        /// `[log]`.
        log: LogConfig,
        /// `[traces]`.
        traces: TracesConfig,
    }
    lists {
        /// `[[worker]]`: the fleet, in file order.
        workers: WorkerConfig,
        /// `[[certificate]]`: further certificates.
        certificates: CertificateConfig,
        /// `[[listener]]`: further addresses.
        listeners: ListenerConfig,
        /// `[[model]]`: mapping of model names that clients send.
        models: ModelConfig,
        /// `[[adapter]]`: LoRA adapters that are loaded when clients ask for them.
        adapters: AdapterConfig,
    }
}

words! {
    /// How a rank is chosen among those that may take the request.
    pub enum Policy {
        /// Least predicted work, counting the prefix that a rank already holds.
        Kv = "kv",
        /// Least work in flight.
        LeastLoaded = "least_loaded",
        /// The less loaded of two random ranks.
        PowerOfTwo = "power_of_two",
        /// In turn.
        RoundRobin = "round_robin",
        /// Uniformly at random.
        Random = "random",
        /// One rank for each session, until the wait there is too long. A request without a session
        /// goes where least work is in flight.
        Session = "session",
    }
}

table! {
    /// What names a session. Policy `session` keeps it on one rank, policy `kv` breaks ties by it.
    pub struct SessionConfig in "session." {
        /// Header fields that name a session. The first in this list that a request has counts.
        fields: Vec<String> = [
            "x-session-id",
            "x-smg-routing-key",
            "x-dynamo-session-id",
            "x-claude-code-session-id",
        ].map(str::to_owned).to_vec();
        /// Members of the body that name a session, where no field does. The first in this list
        /// that a body has as text counts.
        members: Vec<String> = ["prompt_cache_key", "session_id"].map(str::to_owned).to_vec();
    }
}

table! {
    /// What a name of clients stands for. Tables of one `name` share its requests by weight.
    pub struct ModelConfig in "model." {
        /// The model that clients ask for.
        name: String = String::new(), { absent: "required" };
        /// The model that workers serve. The request names it instead.
        to: String = String::new(), { absent: "required" };
        /// Share of the requests beside tables of the same name. 0 takes requests only while no
        /// other table of the name has a worker.
        weight: u32 = 1, { range: 0..=1_000_000 };
    }
}

table! {
    /// A LoRA adapter that the router loads when a client asks for it.
    pub struct AdapterConfig in "adapter." {
        /// The model that clients ask for.
        name: String = String::new(), { absent: "required" };
        /// Folder or repository of the adapter, as engines find it.
        path: String = String::new(), { absent: "required" };
        /// The model that the adapter is for, as workers serve it.
        of: String = String::new(), { absent: "required" };
        /// Workers that get it.
        copies: u32 = 1, { range: 1..=1_024 };
    }
}

table! {
    /// Active health checks and discovery.
    #[derive(Copy)]
    pub struct HealthConfig in "health." {
        /// Ask workers for their health, models and ranks.
        /// Off: all workers take traffic at once, as configured.
        enabled: bool = true, { flag: flag("Workers", "health", "on|off") };
        /// Time between two checks of a worker.
        interval: Duration = Duration::from_secs(2), { range: 1..=u64::MAX };
        // A busy engine responds late: SGLang's event loop may block for seconds while it compiles.
        /// Longest wait for a check's answer. Also ends requests of an unhealthy worker that
        /// sends nothing.
        timeout: Duration = Duration::from_secs(5), { range: 1..=u64::MAX };
        /// Failed checks in a row after which a worker gets no requests.
        unhealthy_after: u32 = 3, { range: 1..=1_000 };
        /// Passed checks in a row after which it gets requests again.
        healthy_after: u32 = 1, { range: 1..=1_000 };
        /// Time in which a worker that has come back gets a growing share of requests.
        /// 0 gives it its share at once.
        slow_start: Duration = Duration::ZERO;
        // A prompt of 100,000 tokens takes a minute on a full rank, while the rank's other streams
        // continue. A single prompt of a million tokens may take longer.
        /// Ejects a rank on which streams have waited this long for their first byte while nothing
        /// moves there. 0 turns this off.
        stall_timeout: Duration = Duration::from_mins(2);
        // Off by default: a pool may have slow ranks on purpose, of older GPUs.
        /// Ejects a rank whose first bytes take this many times as long as in its pool, for the
        /// same work. 0 turns this off.
        slow_factor: u32 = 0, { range: 0..=1_000 };
        /// Time that a rank is so slow before it is ejected. The first pause is three times as
        /// long.
        slow_after: Duration = Duration::from_secs(10), { range: 100..=u64::MAX };
        /// Most ranks of a model that may be ejected at a time. The last one never is.
        ejected_share_percent: u32 = 50, { range: 0..=100 };
    }
}

table! {
    /// The passive breaker of each rank: it opens when the rank fails more than its siblings.
    #[derive(Copy)]
    pub struct BreakerConfig in "breaker." {
        /// Failures after which single requests try a rank that does worse than its siblings.
        failures: u32 = 3, { range: 1..=1_000 };
        /// First pause after a failed trial. Each further one is four times as long, up to 4 s.
        open: Duration = Duration::from_millis(50), { range: 1..=u64::MAX };
    }
}

table! {
    /// What policy `kv` makes of blocks outside of the device.
    #[derive(Copy)]
    pub struct KvConfig in "kv." {
        // A token takes some 130 KB of KV (8 B parameters) to 330 KB (70 B): at 25 GB/s, loading it
        // from the host takes a seventh to a fifth of its prefill time.
        /// What a block in host memory saves, in percent of a block on the device.
        /// 0 leaves host memory out.
        host_credit_percent: u32 = 80, { range: 0..=100 };
        // Local NVMe loads some 5 GB/s, about as fast as the prefill; file and object stores vary
        // more.
        /// The same for disks and for stores of files or objects.
        disk_credit_percent: u32 = 30, { range: 0..=100 };
        // Over 100 to 200 Gbit/s a token loads in a third to a tenth of its prefill time. The ranks
        // of a pool share the network, and the pool's contents are an upper bound.
        /// The same for pools (`kv_pool`).
        pool_credit_percent: u32 = 50, { range: 0..=100 };
        // Most paused sessions resume within it; under load a host's memory turns over sooner.
        /// Time after its last store that a block counts, in tiers that announce no removals
        /// (LMCache) and in all pools. 0 means for ever.
        tier_ttl: Duration = Duration::from_mins(30);
    }
}

table! {
    /// What policy `kv` believes of caches where no event has told, from where earlier prompts
    /// went.
    #[derive(Copy)]
    pub struct ApproximateConfig in "approximate." {
        // A busy rank computes 10,000 tokens a second and caches 0.4 to 2 million: it turns over in
        // 40 to 200 s.
        /// Ranks without KV events: time after its last use that a prompt counts as cached.
        /// 0 turns the guess off.
        ttl: Duration = Duration::from_mins(2);
        // A prefill and the delivery of its event take well below this; the next sibling renews it.
        /// Ranks with KV events: time that a prompt counts as cached before its event comes.
        /// 0 turns the guess off.
        speculative_ttl: Duration = Duration::from_secs(2);
        // Two million tokens of text: the cache of a rank on several large GPUs. An estimate that
        // is too high costs a miss, as does an estimate that is too low.
        /// Prompt text that a rank's cache is believed to hold, where the engine does not tell
        /// its capacity.
        rank_bytes_max: usize = 8 * MIB, { form: Form::Size, range: 1 << 12..=1 << 40 };
    }
}

table! {
    /// What is known of the fleet's caches, kept across restarts.
    pub struct IndexConfig in "index." {
        /// File that keeps the index. It holds a secret, so only its owner may read it.
        snapshot: Option<PathBuf> = None, { absent: "not kept", reloadable: false };
        /// Time between two writes. 0 writes only when the router ends.
        snapshot_every: Duration = Duration::from_mins(5), { reloadable: false };
    }
}

table! {
    /// What engines report of their load. It corrects the router's own count by what others send.
    #[derive(Copy)]
    pub struct LoadConfig in "load." {
        /// Where load reports come from, unless a worker says otherwise.
        source: LoadSource = LoadSource::Auto;
        /// Time between two questions to a worker. Each costs the engine some milliseconds.
        interval: Duration = Duration::from_secs(1), { range: 100..=u64::MAX };
        /// Ask less often where answers cost the engine more than 5 ms of a second.
        back_off: bool = true;
        // SGLang sends unchanged values every second and hangs if silent for 3 s; a few scrapes may
        // be late.
        /// Age at which a report stops counting. Its weight falls with its age until then.
        age_max: Duration = Duration::from_secs(5), { range: 1..=u64::MAX };
    }
}

table! {
    /// Bounds on what clients and engines may make the router hold.
    #[derive(Copy)]
    pub struct LimitsConfig in "limits." {
        /// Longest head of a request or an answer.
        head_bytes_max: usize = 64 * KIB, { form: Form::Size, range: 1 << 10..=1 << 20 };
        /// Most fields in a head.
        head_fields_max: usize = 100, { range: 8..=1_000 };
        /// Longest request body.
        body_bytes_max: usize = 32 * MIB, { form: Form::Size, range: 1 << 10..=1 << 30 };
        /// Requests in flight per shard.
        in_flight_max: usize = 8_192, { range: 1..=1 << 20 };
        /// Client connections per shard.
        connections_max: usize = 16_384, { range: 1..=1 << 20 };
        /// Client connections of one address in all shards of this process. An IPv6 address counts
        /// with its /64. 0 means no limit.
        connections_per_address_max: u32 = 0, { reloadable: false };
        // Apache has the same minimum rate; nginx and HAProxy only check for silence.
        /// Bytes in a second that a request body has to come in with, on average from
        /// `timeouts.body` on. 0 means no least rate.
        body_rate_min: usize = 500, { form: Form::Size, range: 0..=1 << 30 };
        /// Request bodies held per shard. Models with prefill workers hold each body three times.
        /// Answers have bounds of their own.
        buffered_bytes_max: usize = 512 * MIB, { form: Form::Size, range: 1 << 16..=1 << 40 };
        /// Memory of the whole radix index and, once more, of the feeds' own maps.
        /// Times of guesses add up to a sixth.
        index_bytes_max: usize = 512 * MIB,
            { form: Form::Size, range: 1 << 20..=1 << 40, reloadable: false };
    }
}

table! {
    /// Every wait has an end.
    #[derive(Copy)]
    pub struct TimeoutsConfig in "timeouts." {
        /// Longest time for the TLS handshake of a client.
        handshake: Duration = Duration::from_secs(10), { range: 1..=u64::MAX };
        /// Longest time for a whole request head.
        head: Duration = Duration::from_secs(10), { range: 1..=u64::MAX };
        /// Longest silence between two reads of a request body.
        body: Duration = Duration::from_secs(30), { range: 1..=u64::MAX };
        /// Longest idle time of a client connection between requests.
        idle: Duration = Duration::from_secs(75), { range: 1..=u64::MAX };
        /// Longest time to connect to a worker.
        connect: Duration = Duration::from_secs(2), { range: 1..=u64::MAX };
        /// Longest time from the request sent to the first byte of the answer.
        /// For a pair's stream: to the first event with content.
        first_byte: Duration = Duration::from_mins(10), { range: 1..=u64::MAX };
        /// Longest silence between two reads of an answer.
        stream_idle: Duration = Duration::from_mins(5), { range: 1..=u64::MAX };
        /// Longest silence of a WebSocket, of both sides together. Once one side has closed,
        /// `timeouts.write` counts.
        tunnel: Duration = Duration::from_hours(1), { range: 1..=u64::MAX };
        /// Longest time for a client that does not read its answer.
        write: Duration = Duration::from_secs(60), { range: 1..=u64::MAX };
        /// Longest idle time of a worker's connection. Stay below the engines' keep-alive time
        /// of 5 s.
        upstream_idle: Duration = Duration::from_secs(4);
        /// Longest time for requests in flight when the router stops.
        drain: Duration = Duration::from_secs(30);
        /// Time in which a router that is told to stop is unready and still accepts connections.
        drain_delay: Duration = Duration::ZERO;
        /// The process aborts when a shard makes no progress for this time. 0 means never.
        stall_abort: Duration = Duration::ZERO;
    }
}

table! {
    /// Further attempts of requests, before the first byte of their answer and in its middle.
    #[derive(Copy)]
    pub struct RetryConfig in "retry." {
        /// Send a request to another worker though the first may have read it. The head of a stream
        /// then waits for the first event.
        after_send: bool = false;
        /// Another worker goes on where a worker fails in the middle of a stream: chat completions
        /// and completions of vLLM, completions of SGLang.
        mid_stream: bool = false;
        /// Workers, or pairs of workers, that a request is sent to. Refused connections and
        /// refusals for lack of room do not count.
        attempts_max: u32 = 2, { range: 1..=10 };
        /// Retries per hundred requests of a caller.
        budget_percent: u32 = 20, { range: 0..=100 };
    }
}

table! {
    /// What is logged, to standard error.
    pub struct LogConfig in "log." {
        /// Write logs as JSON, one object per line.
        json: bool = false, { flag: flag("Logging", "log-json", ""), reloadable: false };
        /// Write one record per request.
        requests: bool = false, { flag: flag("Logging", "log-requests", "") };
        /// Text of a record, with fields in braces: `"{client} {method} {path} {status}"`. JSON
        /// stays as it is.
        format: Option<String> = None, { absent: "a fixed record" };
        /// Write a record of level `warn` for each request without an answer's head after this
        /// time, `requests` or not. 0 means none.
        slow: Duration = Duration::ZERO;
        /// `error`, `warn`, `info`, `debug`, `trace`, or a `tracing` filter.
        level: String = "info".to_owned(),
            { flag: flag("Logging", "log-level", "LEVEL"), reloadable: false };
    }
}

impl Config {
    /// Has a table `[[model]]` or `[[adapter]]` the name?
    #[must_use]
    pub fn has_table_of(&self, name: &str) -> bool {
        self.models.iter().any(|table| table.name == name)
            || self.adapters.iter().any(|table| table.name == name)
    }

    /// Cores of `cores` that are not `available` to a process.
    pub fn missing_cores(&self, available: &[usize]) -> Vec<usize> {
        self.cores.iter().copied().filter(|core| !available.contains(core)).collect()
    }

    /// Fills empty `cores` from the cores that this process may use: all but the last, which is
    /// left to the control plane, or the only core.
    pub fn resolve_cores(&mut self, available: &[usize]) {
        if self.cores.is_empty() {
            let kept = available.len().saturating_sub(1).max(1);
            let shards = forebay_base::limits::SHARDS_MAX.min(kept);
            self.cores = available.iter().copied().take(shards).collect();
        }
    }
}

impl Policy {
    /// The policy's word in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.word()
    }

    /// Does the policy use the overlap of a prompt with each rank? Without, no prompt is rendered
    /// and matched, and no vocabulary, KV pool or image key is used. Exhaustive, as the methods
    /// below: a new policy has to answer.
    #[must_use]
    pub const fn uses_overlap(self) -> bool {
        match self {
            Self::Kv => true,
            Self::LeastLoaded | Self::PowerOfTwo | Self::RoundRobin | Self::Random => false,
            Self::Session => false,
        }
    }

    /// Does a request wait for a target rank, which a policy chooses by its cache?
    #[must_use]
    pub const fn has_target(self) -> bool {
        match self {
            Self::Kv | Self::Session => true,
            Self::LeastLoaded | Self::PowerOfTwo | Self::RoundRobin | Self::Random => false,
        }
    }

    /// Does the choice compare the cost of all ranks? Other policies choose blindly, from samples,
    /// or by a session.
    #[must_use]
    pub const fn compares_all(self) -> bool {
        match self {
            Self::Kv | Self::LeastLoaded => true,
            Self::PowerOfTwo | Self::RoundRobin | Self::Random | Self::Session => false,
        }
    }
}
