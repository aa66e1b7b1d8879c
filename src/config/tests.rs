//! The configuration as people meet it: files in, findings out.

#[path = "finding_tests.rs"]
mod finding_tests;
#[path = "flag_tests.rs"]
mod flag_tests;

use super::keys::setting::{Setting, Word};
use super::keys::table::KeyTable;
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

fn findings(text: &str) -> Vec<String> {
    let loaded = load(Some(ConfigText { name: "forebay.toml", text }), &Flags::default());
    loaded.findings.iter().map(ToString::to_string).collect()
}

fn only_finding(text: &str, expected: &str) {
    let found = findings(&format!("{text}\n{WORKER}"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(expected), "{found:?}\n{expected}");
}

/// Every policy, as messages list them.
fn policies() -> String {
    let words: Vec<&str> = Policy::WORDS.iter().map(|(word, ..)| *word).collect();
    words.join(", ")
}

const WORKER: &str = "[[worker]]\nurl = \"http://127.0.0.1:8000\"\n";

#[test]
fn an_empty_file_lacks_only_a_worker() {
    assert_eq!(
        findings(""),
        [
            "configuration: error: no worker is configured. help: give --worker http://host:port, or a \
          [[worker]] table with a url"
        ]
    );
}

/// Every key of the file, none at its default.
const EVERY_KEY: &str = r#"
listen = "0.0.0.0:80"
listen_shared = true
admin = "127.0.0.1:91"
admin_hosts = ["router-a.example"]
admin_on_client_port = true
api_keys = "../../tests/data/api_keys/two.toml"
workers_state = "/tmp/workers"
admin_read_token_file = "../../tests/data/admin_read_token"
admin_token_file = "../../tests/data/admin_token"
model_dir = "../../tests"
image_key_file = "../../tests/data/admin_token"
cores = [2, 3]
engine = "vllm"
policy = "power_of_two"
rank_concurrency_max = 64
rejection_window = "2s"
[queue]
mode = "endpoint"
depth_max = 7
bytes_max = "1MiB"
wait_max = "3s"
stale_after = "700ms"
hops_max = 5
promote_after = "4s"
overtaken_max = 4
class_default = 2
tenant_header = "x-team"
kv_use_percent = 90
prefill_tokens_max = 50000
engine_priority = true
sse_comments = "on"
[rejection]
share_percent = 40
low_water_percent = 20
[disaggregation]
fallback = "reject"
uncached_tokens_min = 128
prefill_timeout = "30s"
prefill_concurrency_max = 5
decode_concurrency_max = 6
prefill_tokens_max = 70000
prefill_kv_use_percent = 80
decode_kv_use_percent = 85
[nats]
url = "nats://127.0.0.1:4222"
prefix = "fleet.a"
[replicas]
token_file = "../../tests/data/admin_read_token"
ca = "../../tests/data/tls/router.pem"
cert = "../../tests/data/tls/router.pem"
key = "../../tests/data/tls/router.key"
name = "r1"
[client]
trusted = ["10.0.0.0/8", "::1"]
proxy_protocol = true
forwarded = "replace"
[cors]
origins = "https://a.example"
methods = ["POST"]
headers = "content-type"
max_age = "1h"
credentials = true
[jwt]
jwks = "../../tests/data/jwt/rsa.json"
issuer = "https://issuer.example"
audience = "forebay"
tenant_claim = "team"
models_claim = "models"
class_claim = "class"
leeway = "5s"
refresh = "30s"
[admin_tls]
cert = "../../tests/data/tls/router.pem"
key = "../../tests/data/tls/router.key"
client_ca = "../../tests/data/tls/router.pem"
[health]
enabled = "off"
interval = "250ms"
timeout = "1s"
unhealthy_after = 5
healthy_after = 2
slow_start = "20s"
stall_timeout = "90s"
slow_factor = 5
slow_after = "20s"
ejected_share_percent = 30
[discovery]
file = "/tmp/workers.toml"
dns = ["http://engines.internal:8000"]
name_server = "10.0.0.10:53"
interval = "3s"
[kv]
host_credit_percent = 70
disk_credit_percent = 20
pool_credit_percent = 25
tier_ttl = "90s"
[approximate]
ttl = "90s"
speculative_ttl = "500ms"
rank_bytes_max = "16MiB"
[index]
snapshot = "/tmp/index.snapshot"
snapshot_every = "90s"
[load]
source = "metrics"
interval = "500ms"
back_off = false
age_max = "9s"
[limits]
router_in_flight_max = 99
kv_demand_percent = 110
head_bytes_max = "32KiB"
head_fields_max = 64
body_bytes_max = "8MiB"
in_flight_max = 10
connections_max = 20
connections_per_address_max = 30
body_rate_min = "1KiB"
buffered_bytes_max = "64MiB"
index_bytes_max = "1GiB"
[tls]
cert = "../../tests/data/tls/router.pem"
key = "../../tests/data/tls/router.key"
client_ca = "../../tests/data/tls/router.pem"
client_auth = "required"
[upstream_tls]
ca = "../../tests/data/tls/router.pem"
cert = "../../tests/data/tls/router.pem"
key = "../../tests/data/tls/router.key"
[timeouts]
handshake = "8s"
head = "1s"
body = "2s"
idle = "3s"
connect = "4s"
first_byte = "5m"
stream_idle = "6s"
tunnel = "9s"
write = "7s"
upstream_idle = "3s"
drain = "0s"
drain_delay = "3s"
stall_abort = "10s"
[retry]
after_send = true
mid_stream = true
attempts_max = 3
budget_percent = 10
[breaker]
failures = 4
open = "5s"
[log]
json = true
requests = true
slow = "5s"
format = "{status} {path}"
level = "debug"
[traces]
ca = "../../tests/data/tls/router.pem"
headers_file = "../../tests/data/trace_fields"
endpoint = "http://127.0.0.1:4318"
sample_per_million = 7
asked_per_second_max = 8
timeout = "9s"
service = "router"
[[worker]]
url = "http://a:1"
name = "a"
model_dir = "../../tests"
health_path = "/h"
kv_events = "tcp://a:5557"
replay = ["tcp://a:5657"]
kv_topic = "kv"
engine = "sglang"
api_key = "secret"
concurrency_max = 7
ranks = 2
models = ["m", "n"]
block_size = 16
load_source = "push"
port_per_rank = true
role = "prefill"
kv_pool = "mooncake"
topology = "rack-1"
bootstrap_host = "10.0.0.1"
bootstrap_port = 8999
tls_ca = "../../tests/data/tls/router.pem"
tls_cert = "../../tests/data/tls/router.pem"
tls_key = "../../tests/data/tls/router.key"
tls_name = "a.example"
[[worker]]
url = "http://b:1"
[[worker]]
url = "http://c:1"
engine = "vllm"
role = "prefill"
kv_flow = "push"
kv_engine_id = "e"
kv_host = "10.0.0.3"
kv_port = 5601
kv_tp_size = 2
kv_pp_size = 3
[worker_defaults]
api_key_file = "../../tests/data/worker_key"
engine = "vllm"
model_dir = "../../tests"
concurrency_max = 8
health_path = "/h"
[session]
fields = ["x-user"]
members = ["user"]
[[tenant]]
name = "batch"
weight = 2
requests_per_minute = 60
tokens_per_minute = 100000
in_flight_max = 8
[[model]]
name = "chat"
to = "llama"
weight = 3
[[adapter]]
name = "sql"
path = "/adapters/sql"
of = "llama"
copies = 2
[[certificate]]
cert = "../../tests/data/tls/router.pem"
key = "../../tests/data/tls/router.key"
[[listener]]
address = "127.0.0.1:8081"
tls = false
"#;

/// The keys that exclude another key of the text.
fn with_the_rest(mut config: Config) -> Config {
    config.worker_defaults.api_key = Some("secret".to_owned());
    config.replicas.peers = vec!["http://10.0.0.3:9090".to_owned()];
    config
}

#[test]
fn every_key_is_read() {
    let config = Config::from_toml(EVERY_KEY).unwrap();
    assert_eq!(config.cores, [2, 3]);
    assert_eq!(config.policy, Policy::PowerOfTwo);
    assert!(!config.health.enabled);
    assert_eq!(config.timeouts.first_byte, Duration::from_secs(300));
    assert_eq!(config.limits.index_bytes_max, 1 << 30);
    assert_eq!(config.index.snapshot.as_deref(), Some(Path::new("/tmp/index.snapshot")));
    assert_eq!(config.index.snapshot_every, Duration::from_secs(90));
    assert_eq!(config.load.source, LoadSource::Metrics);
    assert!(!config.load.back_off);
    let split = &config.flow.disaggregation;
    assert_eq!((split.fallback, split.uncached_tokens_min), (Fallback::Reject, 128));
    assert_eq!(split.prefill_timeout, Some(Duration::from_secs(30)));
    assert_eq!(
        (config.workers[0].role, config.workers[1].role),
        (WorkerRole::Prefill, WorkerRole::Auto)
    );
    assert_eq!(config.workers[2].kv_transfer.kv_flow, Some(KvFlow::Push));
    let worker = &config.workers[0];
    assert_eq!(worker.load_source, Some(LoadSource::Push));
    assert_eq!(worker.kv_events, ["tcp://a:5557"]);
    assert_eq!(worker.engine, Some(EngineKind::Sglang));
    assert_eq!(worker.block_size_tokens, Some(16));
    assert_eq!(
        config.workers[1],
        WorkerConfig { url: "http://b:1".to_owned(), ..Default::default() }
    );

    // The text above leaves no key at its default.
    let mut usual = BTreeSet::new();
    let mut note = |defaults: bool, key: &'static Key, setting: &dyn Setting| {
        let value = format!("{} {:?}", key.path, setting.show(key));
        if defaults {
            usual.insert(value);
        } else {
            assert!(!usual.contains(&value), "at its default: {value}");
        }
    };
    Config::default().each(|key, setting| note(true, key, setting));
    with_the_rest(config.clone()).each(|key, setting| note(false, key, setting));

    // What is printed reads back to the same, but for the secret.
    let printed = to_toml(&config);
    assert!(!printed.contains("secret") && !to_json(&config).to_string().contains("secret"));
    let mut again = Config::from_toml(&printed).unwrap();
    again.workers[0].api_key = Some("secret".to_owned());
    assert_eq!(again, config);
}

#[test]
fn what_is_logged_at_start_has_no_defaults_but_the_policy() {
    let logged = |text: &str| changed_json(&Config::from_toml(text).unwrap()).to_string();
    assert_eq!(changed_json(&Config::default()).to_string(), r#"{"policy":"kv"}"#);
    assert_eq!(
        logged(&format!("cores = [1]\n[queue]\ndepth_max = 7\n{WORKER}")),
        concat!(
            r#"{"cores":[1],"policy":"kv","queue":{"depth_max":7},"#,
            r#""worker":[{"url":"http://127.0.0.1:8000","role":"auto"}]}"#
        )
    );
    assert!(!logged("[[worker]]\nurl = \"http://a\"\napi_key = \"secret\"\n").contains("secret"));
}

/// Everything but where the process listens, what it runs on, and what is built once.
#[test]
fn a_reload_applies_every_key_but_these() {
    const KEPT: [&str; 32] = [
        "admin",
        "admin_hosts",
        "admin_on_client_port",
        "admin_read_token_file",
        "admin_tls.cert",
        "admin_tls.client_ca",
        "admin_tls.key",
        "admin_token_file",
        "cores",
        "index.snapshot",
        "index.snapshot_every",
        "limits.connections_per_address_max",
        "limits.index_bytes_max",
        "listen",
        "listen_shared",
        "listener",
        "listener.address",
        "listener.tls",
        "log.json",
        "log.level",
        "nats.prefix",
        "nats.url",
        "queue.mode",
        "replicas.ca",
        "replicas.cert",
        "replicas.key",
        "replicas.name",
        "replicas.peers",
        "replicas.token_file",
        "worker.name",
        "worker.role",
        "workers_state",
    ];
    let kept = all_keys().into_iter().filter(|entry| !entry.key.reloadable);
    let mut kept: Vec<_> = kept.map(|entry| entry.key.path).chain(["listener"]).collect();
    kept.sort_unstable();
    assert_eq!(kept, KEPT);
    let wanted = with_the_rest(Config::from_toml(EVERY_KEY).unwrap());
    let mut running = Config { tls: wanted.tls.clone(), ..Config::default() };
    let changes = running.take_over(&wanted);
    let is_of_table = |path: &str| !path.starts_with("worker.") && !path.starts_with("listener.");
    let of_table: Vec<_> = KEPT.into_iter().filter(|path| is_of_table(path)).collect();
    assert_eq!(changes.restart, of_table);
    // Each of the others has come over.
    let mut missing = BTreeMap::new();
    wanted.each(|key, setting| {
        missing.insert(key.path, format!("{:?}", setting.show(key)));
    });
    running.each(|key, setting| {
        if missing.get(key.path) == Some(&format!("{:?}", setting.show(key))) {
            missing.remove(key.path);
        }
    });
    let missing: Vec<_> = missing.into_keys().collect();
    let of_sections: Vec<_> = of_table.into_iter().filter(|path| *path != "listener").collect();
    assert_eq!(missing, of_sections);
}

#[test]
fn the_table_of_keys_is_sound() {
    let all = all_keys();
    let paths: BTreeSet<_> = all.iter().map(|entry| entry.key.path).collect();
    assert_eq!(paths.len(), all.len(), "a path twice");
    for KeyEntry { key, .. } in &all {
        let words = key.doc.split_whitespace().count();
        assert!((1..=25).contains(&words) && key.doc.ends_with('.'), "{key:?}");
        if let Some(flag) = key.flag.filter(|flag| !["health", "nats"].contains(&flag.name)) {
            assert_eq!(flag.name, key.path.replace(['.', '_'], "-"), "the same words");
        }
    }
    assert_eq!(findings(WORKER), [""; 0], "each default is in its range");
}

/// A section's name alone means the key that the flag of that name sets.
#[test]
fn the_word_of_a_flag_alone_is_its_key() {
    let text = format!("nats = \"nats://a:1\"\nhealth = \"off\"\ncores = \"0-2\"\n{WORKER}");
    let config = Config::from_toml(&text).unwrap();
    assert_eq!(config.nats.url.as_deref(), Some("nats://a:1"));
    assert!(!config.health.enabled);
    assert_eq!(config.cores, [0, 1, 2]);
    only_finding(
        "health = \"of\"",
        "forebay.toml:1:10: error: `health.enabled`: \"of\" is not on or off; write true or false",
    );
    only_finding(
        "health = 1",
        "forebay.toml:1:10: error: `health` has type integer, not a section",
    );
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = findings(&text);
    }

    #[test]
    fn no_toml_of_odd_types_panics(key in "(worker|health|limits|listen|cores|log|queue)(\\.[a-z_]{1,9})?",
                                   value in "(1|-1|1\\.5|true|\"x\"|\\[\\]|\\[1\\]|\\[\"a\"\\]|\\{\\}|\\[\\{a=1\\}\\]|1979-05-27)") {
        let found = findings(&format!("{key} = {value}"));
        prop_assert!(!found.is_empty());
    }
}
