//! Keys that nothing reads while another key has a certain value. [`unused_keys`] lists these with
//! the condition; such a key of the file or of a flag is then a warning. A key that is off, 0 or
//! empty asks for nothing, and has no warning.
//!
//! A new key stands in this table, or in the list of keys that always count; the test compares both
//! with the tables of keys.

use super::cut_short_times::CUT_SHORT;
use super::reached_first::REACHED_FIRST;
use super::unused_key::UnusedKeys;
use crate::keys::setting::Word;
use crate::sections::flow::QueueMode;
use crate::sections::schema::{Config, Policy};
use crate::sections::tls::ClientAuth;
use crate::sections::worker::{KvFlow, WorkerConfig, WorkerRole};
use crate::values::admin_address::AdminAddress;
use crate::values::engine::{EngineKind, LoadSource};
use crate::values::url::{JwksUrl, WorkerUrl};
use std::collections::BTreeMap;

/// The reason, if it holds.
fn if_so(holds: bool, why: &str) -> Option<String> {
    holds.then(|| why.to_owned())
}

/// Every key that may be unused.
pub(crate) fn unused_keys() -> impl Iterator<Item = &'static UnusedKeys> {
    UNUSED.iter().chain(CUT_SHORT).chain(REACHED_FIRST)
}

const UNUSED: &[UnusedKeys] = &[
    // Requests.
    UnusedKeys {
        keys: &["retry.after_send", "retry.budget_percent"],
        why: |config, _| if_so(config.retry.attempts_max == 1, "`retry.attempts_max` is 1"),
        help: "raise `retry.attempts_max`, or remove the key",
    },
    UnusedKeys {
        keys: &["retry.after_send", "retry.attempts_max"],
        why: |Config { retry, .. }, _| {
            let has_none = retry.budget_percent == 0 && retry.attempts_max > 1;
            if_so(has_none, "`retry.budget_percent` is 0")
        },
        help: "raise `retry.budget_percent`, or remove the key",
    },
    UnusedKeys {
        keys: &["retry.attempts_max"],
        why: |config, _| {
            let retry = &config.retry;
            // 1 asks for no further attempt, and there is none.
            let is_in_use = retry.attempts_max == 1 || retry.after_send || retry.mid_stream;
            let may_split = config.workers.iter().any(|worker| may_be_of_pair(config, worker));
            let why = "`retry.after_send` and `retry.mid_stream` are off, and there are no pairs";
            if_so(!is_in_use && is_whole(config) && !may_split, why)
        },
        help: "set retry.after_send = true for further attempts, or remove the key",
    },
    UnusedKeys {
        keys: &["timeouts.handshake"],
        why: |config, _| {
            let mut further = config.listeners.iter();
            let is_tls = config.speaks_tls() || further.any(|one| config.listener_speaks_tls(one));
            if_so(!is_tls, "no address for clients speaks TLS")
        },
        help: "set `tls.cert` and `tls.key`, or remove the key",
    },
    UnusedKeys {
        keys: &["tls.client_ca"],
        why: |config, _| {
            if_so(config.tls.client_auth == ClientAuth::Off, "`tls.client_auth` is off")
        },
        help: "set tls.client_auth = \"required\"",
    },
    UnusedKeys {
        keys: &["admin_hosts"],
        why: |config, _| {
            let is_socket = matches!(config.admin, AdminAddress::Unix(_));
            let why = "`admin` is a socket in the file system, which browsers cannot reach";
            if_so(is_socket && !config.admin_on_client_port, why)
        },
        help: "remove the key, or write an address in `admin`",
    },
    UnusedKeys {
        keys: &["cors.methods", "cors.headers", "cors.max_age", "cors.credentials"],
        why: |config, _| if_so(config.cors.origins.is_empty(), "there is no `cors.origins`"),
        help: "list the sites in `cors.origins`, or remove the key",
    },
    UnusedKeys {
        keys: &[
            "jwt.issuer",
            "jwt.audience",
            "jwt.tenant_claim",
            "jwt.models_claim",
            "jwt.class_claim",
            "jwt.leeway",
            "jwt.refresh",
        ],
        why: |config, _| if_so(config.jwt.jwks.is_none(), "there is no `jwt.jwks`"),
        help: "name in `jwt.jwks` a file or an https:// URL, or remove the key",
    },
    UnusedKeys {
        keys: &["jwt.refresh"],
        why: |config, _| {
            let jwks = config.jwt.jwks.as_deref();
            let is_file = jwks.is_some_and(|place| JwksUrl::parse(place).is_none());
            if_so(is_file, "`jwt.jwks` is a file, which a reload reads again")
        },
        help: "remove the key",
    },
    // Choice of a rank.
    UnusedKeys {
        keys: &["session.fields", "session.members"],
        why: |config, _| unless_policy(config, &[Policy::Kv, Policy::Session]),
        help: "policies \"session\" and \"kv\" read sessions",
    },
    UnusedKeys {
        keys: &["image_key_file"],
        why: |config, _| unless_policy(config, &[Policy::Kv]),
        help: "policy \"kv\" gives images their names",
    },
    UnusedKeys {
        keys: &[
            "kv.host_credit_percent",
            "kv.disk_credit_percent",
            "kv.pool_credit_percent",
            "approximate.ttl",
            "approximate.speculative_ttl",
            "approximate.rank_bytes_max",
            "worker.kv_pool",
        ],
        why: |config, _| unless_policy(config, &[Policy::Kv]),
        help: "policy \"kv\" matches prompts",
    },
    UnusedKeys {
        keys: &["kv.pool_credit_percent"],
        why: |config, _| {
            let has_pool = config.workers.iter().any(|worker| worker.kv_pool.is_some());
            let is_kv = config.policy.uses_overlap();
            if_so(is_kv && !has_pool && is_whole(config), "no worker has a `kv_pool`")
        },
        help: "name in `kv_pool` of the workers what they share, or remove the key",
    },
    UnusedKeys {
        keys: &["worker.kv_pool"],
        why: |config, worker| {
            let is_openai = config.engine_of(worker) == EngineKind::Openai;
            match config.kv.pool_credit_percent {
                _ if !config.policy.uses_overlap() => None,
                0 => Some("`kv.pool_credit_percent` is 0".to_owned()),
                _ => {
                    let has_none = is_openai && worker.kv_events.is_empty();
                    if_so(has_none, "an `openai` worker without `kv_events` has no KV events")
                }
            }
        },
        help: "set `kv.pool_credit_percent` above 0 and `kv_events`, or remove the key",
    },
    UnusedKeys {
        keys: &["approximate.rank_bytes_max"],
        why: |config, _| {
            let guess = &config.approximate;
            let guesses = !guess.ttl.is_zero() || !guess.speculative_ttl.is_zero();
            let is_kv = config.policy.uses_overlap();
            if_so(is_kv && !guesses, "`approximate.ttl` and `approximate.speculative_ttl` are 0")
        },
        help: "remove the key",
    },
    UnusedKeys {
        keys: &["index.snapshot_every"],
        why: |config, _| if_so(config.index.snapshot.is_none(), "there is no `index.snapshot`"),
        help: "name the file in `index.snapshot`, or remove the key",
    },
    // Back pressure.
    UnusedKeys {
        keys: &[
            "queue.depth_max",
            "queue.bytes_max",
            "queue.wait_max",
            "queue.promote_after",
            "queue.sse_comments",
            "rejection.low_water_percent",
            "limits.kv_demand_percent",
            "tenant.weight",
        ],
        why: |config, _| if_so(config.flow.queue.mode == QueueMode::Off, MODE_OFF),
        help: "remove the key, or set queue.mode = \"pool\"",
    },
    UnusedKeys {
        keys: &["queue.tenant_header"],
        why: |config, _| match (&config.api_keys, &config.jwt.jwks) {
            (Some(_), _) => {
                Some("`api_keys` is set, and a client's key names its tenant".to_owned())
            }
            (None, jwks) => {
                if_so(jwks.is_some(), "`jwt.jwks` is set, and a token names its tenant")
            }
        },
        help: "remove either of them",
    },
    UnusedKeys {
        // Engines may order what waits in them by the class.
        keys: &["queue.overtaken_max", "queue.class_default"],
        why: |config, _| {
            let queue = &config.flow.queue;
            if_so(queue.mode == QueueMode::Off && !queue.engine_priority, MODE_OFF)
        },
        help: "remove the key, or set queue.mode = \"pool\"",
    },
    UnusedKeys {
        keys: &["queue.stale_after", "queue.hops_max"],
        why: |config, _| {
            let mode = config.flow.queue.mode;
            let why = || format!("`queue.mode` is {:?}", mode.word());
            (mode != QueueMode::Endpoint).then(why)
        },
        help: "remove the key, or set queue.mode = \"endpoint\"",
    },
    UnusedKeys {
        // No engine reports whether it has priority scheduling.
        keys: &["queue.engine_priority"],
        why: |config, _| {
            let takes = |engine| matches!(engine, EngineKind::Auto | EngineKind::Vllm);
            let mut engines = config.workers.iter().map(|worker| config.engine_of(worker));
            if_so(is_whole(config) && !engines.any(takes), "no worker is vLLM")
        },
        help: "remove the key",
    },
    UnusedKeys {
        keys: &[
            "disaggregation.fallback",
            "disaggregation.uncached_tokens_min",
            "disaggregation.prefill_timeout",
            "disaggregation.prefill_concurrency_max",
            "disaggregation.decode_concurrency_max",
            "disaggregation.prefill_tokens_max",
            "disaggregation.prefill_kv_use_percent",
            "disaggregation.decode_kv_use_percent",
        ],
        why: |config, _| {
            let may_split = config.workers.iter().any(|worker| may_be_of_pair(config, worker));
            if_so(is_whole(config) && !may_split, "each worker serves whole requests")
        },
        help: "give workers role = \"prefill\" and role = \"decode\", or remove the key",
    },
    // What is known of workers.
    UnusedKeys {
        keys: &["discovery.interval"],
        why: |config, _| {
            let has_none = !config.discovery.is_on();
            if_so(has_none, "there is neither `discovery.file` nor `discovery.dns`")
        },
        help: "name a source of workers, or remove the key",
    },
    UnusedKeys {
        keys: &["discovery.name_server"],
        why: |config, _| {
            let asks =
                |url: &String| WorkerUrl::parse(url).is_ok_and(|url| url.host.starts_with('_'));
            let asks_any = config.discovery.dns.iter().any(asks);
            if_so(!asks_any, "no name of `discovery.dns` is of SRV records")
        },
        help: "write http://_SERVICE._tcp.NAME in `discovery.dns`, or remove the key",
    },
    UnusedKeys {
        keys: &[
            "health.interval",
            "health.healthy_after",
            "health.stall_timeout",
            "health.slow_factor",
            "health.slow_after",
            "health.ejected_share_percent",
        ],
        why: |config, _| if_so(!config.health.enabled, "`health.enabled` is off"),
        help: "remove the key, or set health.enabled = true",
    },
    UnusedKeys {
        keys: &["health.slow_after"],
        why: |Config { health, .. }, _| {
            if_so(health.enabled && health.slow_factor == 0, "`health.slow_factor` is 0")
        },
        help: "set `health.slow_factor`, for example to 3, or remove the key",
    },
    UnusedKeys {
        keys: &["health.ejected_share_percent"],
        why: |Config { health, .. }, _| {
            let ejects = health.slow_factor > 0 || !health.stall_timeout.is_zero();
            let why = "`health.stall_timeout` and `health.slow_factor` are 0";
            if_so(health.enabled && !ejects, why)
        },
        help: "set either of them, or remove the key",
    },
    UnusedKeys {
        keys: &["health.slow_factor", "health.slow_after", "health.stall_timeout"],
        why: |Config { health, .. }, _| {
            let has_none = health.enabled && health.ejected_share_percent == 0;
            if_so(has_none, "`health.ejected_share_percent` is 0, and no rank is ever ejected")
        },
        help: "raise `health.ejected_share_percent`, or write 0 to eject no rank",
    },
    UnusedKeys {
        keys: &["load.interval", "load.back_off", "load.age_max"],
        why: |config, _| {
            let mut sources = config.workers.iter().map(|worker| config.load_source(worker));
            let asks = sources.any(|source| source != LoadSource::Off);
            let of_further = config.load_source(&WorkerConfig::default());
            let is_off = !asks && of_further == LoadSource::Off && is_whole(config);
            let why = match config.load.source {
                LoadSource::Off => "`load.source` is \"off\"",
                _ => "`health.enabled` is off, and `load.source` is \"auto\"",
            };
            if_so(is_off, why)
        },
        help: "remove the key, or set `load.source`",
    },
    UnusedKeys {
        keys: &["engine"],
        why: |config, _| {
            let has_other = config.worker_defaults.engine.is_some();
            if_so(has_other, "`worker_defaults.engine` stands before it")
        },
        help: "remove either of them",
    },
    // TLS to workers.
    UnusedKeys {
        keys: &["upstream_tls.ca"],
        why: |config, _| {
            let jwks = config.jwt.jwks.as_deref().unwrap_or_default();
            if_so(!may_use_tls(config) && !jwks.starts_with("https://"), NO_HTTPS)
        },
        help: "write https:// in `url` of the workers; for workers of the admin API alone, keep it",
    },
    UnusedKeys {
        keys: &["upstream_tls.cert", "upstream_tls.key"],
        why: |config, _| if_so(!may_use_tls(config), NO_HTTPS),
        help: "write https:// in `url` of the workers; for workers of the admin API alone, keep it",
    },
    // Keys of a single worker.
    UnusedKeys {
        keys: &["worker.kv_topic"],
        why: |_, worker| if_so(worker.kv_events.is_empty(), "there is no `kv_events` beside it"),
        help: "give `kv_events` too: an endpoint that the engine announces has the engine's topic",
    },
    UnusedKeys {
        keys: &["worker.port_per_rank"],
        why: |_, worker| if_so(worker.ranks == Some(1), "`ranks` is 1"),
        help: "remove the key, or write how many ranks the worker has",
    },
    UnusedKeys {
        keys: &["worker.topology"],
        why: |config, worker| {
            if_so(!may_be_of_pair(config, worker), "this worker serves whole requests")
        },
        help: "give the worker role = \"prefill\" or role = \"decode\", or remove the key",
    },
    UnusedKeys {
        keys: &["worker.bootstrap_host", "worker.bootstrap_port"],
        why: |config, worker| {
            let has_registry = match config.engine_of(worker) {
                EngineKind::Auto | EngineKind::Sglang => true,
                EngineKind::Vllm => worker.kv_transfer.kv_flow == Some(KvFlow::Mooncake),
                EngineKind::Openai => false,
            };
            let is_used = worker.role.may_prefill() && has_registry;
            if_so(!is_used, "this worker has no registry of prefill ranks")
        },
        help: "it belongs to prefill workers of SGLang, or of vLLM with kv_flow = \"mooncake\"",
    },
    UnusedKeys {
        keys: &["worker.kv_flow"],
        why: |config, worker| {
            let is_vllm = matches!(config.engine_of(worker), EngineKind::Auto | EngineKind::Vllm);
            if_so(is_vllm && worker.role == WorkerRole::Both, "the role is \"both\"")
        },
        help: "prefill and decode workers have it",
    },
    UnusedKeys {
        keys: &["worker.kv_host", "worker.kv_port", "worker.kv_tp_size", "worker.kv_pp_size"],
        why: |_, worker| {
            let is_push = worker.kv_transfer.kv_flow == Some(KvFlow::Push);
            if_so(!is_push, "`kv_flow` is not \"push\"")
        },
        help: "remove the key, or set kv_flow = \"push\"",
    },
    UnusedKeys {
        keys: &["worker.tls_ca", "worker.tls_cert", "worker.tls_key", "worker.tls_name"],
        why: |_, worker| {
            let is_plain = WorkerUrl::parse(&worker.url).is_ok_and(|url| !url.is_tls);
            if_so(is_plain, "`url` begins with http://")
        },
        help: "write `url` as https://host:port, or remove the key",
    },
    // Other routers.
    UnusedKeys {
        keys: &["nats.prefix"],
        why: |config, _| if_so(config.nats.url.is_none(), "there is no `nats.url`"),
        help: "set `nats.url`, or remove the key",
    },
    UnusedKeys {
        keys: &["replicas.name"],
        why: |config, _| {
            let is_alone = config.replicas.peers.is_empty() && config.nats.url.is_none();
            if_so(is_alone, "there is neither `replicas.peers` nor `nats.url`")
        },
        help: "list the routers in `replicas.peers`, or remove the key",
    },
    UnusedKeys {
        keys: &["replicas.token_file", "replicas.ca", "replicas.cert", "replicas.key"],
        why: |config, _| if_so(config.replicas.peers.is_empty(), "there is no `replicas.peers`"),
        help: "list the routers in `replicas.peers`, or remove the key",
    },
    UnusedKeys {
        keys: &["replicas.ca", "replicas.cert", "replicas.key"],
        why: |config, _| {
            let peers = &config.replicas.peers;
            let is_plain = !peers.is_empty() && peers.iter().all(|url| url.starts_with("http://"));
            if_so(is_plain, "each URL of `replicas.peers` begins with http://")
        },
        help: "write https:// in `replicas.peers`, or remove the key",
    },
    // Log and traces.
    UnusedKeys {
        keys: &["log.format"],
        why: |Config { log, .. }, _| match (log.json, log.requests) {
            (true, _) => Some("`log.json` is on".to_owned()),
            (false, is_on) => if_so(!is_on, "`log.requests` is off"),
        },
        help: "it is the text of records: set log.requests = true and log.json = false",
    },
    UnusedKeys {
        keys: &[
            "traces.ca",
            "traces.headers_file",
            "traces.sample_per_million",
            "traces.asked_per_second_max",
            "traces.service",
            "traces.timeout",
        ],
        why: |config, _| if_so(config.traces.endpoint.is_none(), "there is no `traces.endpoint`"),
        help: "name the collector in `traces.endpoint`, or remove the key",
    },
    UnusedKeys {
        keys: &["traces.ca"],
        why: |config, _| {
            let endpoint = config.traces.endpoint.as_deref();
            let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
            if_so(is_plain, "`traces.endpoint` begins with http://")
        },
        help: "write https:// in `traces.endpoint`, or remove the key",
    },
];

const MODE_OFF: &str = "`queue.mode` is \"off\"";
const NO_HTTPS: &str = "no worker has a URL that begins with https://";

/// True if the workers of the configuration are all that there may be.
pub(crate) fn is_whole(config: &Config) -> bool {
    !config.discovery.is_on() && config.workers_state.is_none() && !config.workers.is_empty()
}

fn unless_policy(config: &Config, readers: &[Policy]) -> Option<String> {
    let policy = config.policy;
    let why = || format!("the policy is {:?}", policy.word());
    (!readers.contains(&policy)).then(why)
}

/// May requests be split over this worker and another worker?
fn may_be_of_pair(config: &Config, worker: &WorkerConfig) -> bool {
    match worker.role {
        WorkerRole::Prefill | WorkerRole::Decode => true,
        WorkerRole::Both => false,
        WorkerRole::Auto => {
            matches!(config.engine_of(worker), EngineKind::Auto | EngineKind::Sglang)
        }
    }
}

/// May any worker be reached by TLS? A file or a state of workers may have such URLs at any time.
fn may_use_tls(config: &Config) -> bool {
    let urls = config.workers.iter().map(|worker| &worker.url).chain(&config.discovery.dns);
    let is_open = config.discovery.file.is_some() || config.workers_state.is_some();
    is_open || urls.into_iter().any(|url| url.starts_with("https://"))
}

/// Keys that nothing reads in this configuration, written or not, with the reason.
pub(crate) fn unused_reasons(config: &Config) -> BTreeMap<&'static str, String> {
    let any = WorkerConfig::default();
    let unused =
        unused_keys().filter_map(|unused| Some((unused.keys, (unused.why)(config, &any)?)));
    unused.flat_map(|(keys, why)| keys.iter().map(move |key| (*key, why.clone()))).collect()
}
