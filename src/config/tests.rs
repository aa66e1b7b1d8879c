//! The configuration as people meet it: files in, findings out.

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

#[test]
fn reports_everything_at_once_with_line_and_column() {
    let text = "lisen = \"127.0.0.1:1\"\npolicy = \"kvv\"\nhead_bytes_max = \"1KiB\"\n\
                nats = \"nats://x\"\n\n[timeouts]\nhead = 10\n  conect = \"1s\"\n\n\
                [[worker]]\nurl = \"ftp://a\"\nnmae = \"a\"\n";
    let policies = policies();
    let policy = format!(
        "forebay.toml:2:10: error: `policy`: \"kvv\" is not one of {policies}; did you mean kv?"
    );
    assert_eq!(
        findings(text),
        [
            "forebay.toml:1:1: error: unknown key `lisen`. help: did you mean `listen`?",
            &*policy,
            "forebay.toml:3:1: error: unknown key `head_bytes_max`. help: did you mean \
             `limits.head_bytes_max`?",
            "forebay.toml:7:8: error: `timeouts.head`: has type integer, should be a duration in quotes, for \
             example \"10s\"",
            "forebay.toml:8:3: error: unknown key `timeouts.conect`. help: did you mean `timeouts.connect`?",
            "forebay.toml:11:7: error: `url` \"ftp://a\": it does not start with http:// or https://. help: write it as http://host:port",
            "forebay.toml:12:1: error: unknown key `worker.nmae`. help: did you mean \
             `worker.name`?",
        ]
    );
}

#[test]
fn a_text_that_is_no_toml_is_one_finding() {
    let found = findings("listen = \"a\"\npolicy = = 3\n");
    assert!(found[0].starts_with("forebay.toml:2:"), "{found:?}");
}

#[test]
fn conflicts_and_ranges() {
    for (text, expected) in [
        (
            "listen = \"127.0.0.1:9090\"",
            "forebay.toml:1:10: error: `admin` 127.0.0.1:9090 collides",
        ),
        ("admin = \"0.0.0.0:9\"", "forebay.toml:1:9: warning: `admin` 0.0.0.0:9 can be reached"),
        ("cores = [1, 1]", "forebay.toml:1:9: error: `cores` lists core 1 twice"),
        (
            "[limits]\nhead_bytes_max = \"1B\"",
            "forebay.toml:2:18: error: `limits.head_bytes_max` is 1B, should be 1KiB to 1MiB",
        ),
        (
            "[limits]\nbuffered_bytes_max = \"1MiB\"",
            "forebay.toml:2:22: error: `limits.buffered_bytes_max`",
        ),
        (
            "[kv]\nhost_credit_percent = 101",
            "forebay.toml:2:23: error: `kv.host_credit_percent` is 101, should be 0 to 100",
        ),
        (
            "[kv]\nhost_credit_percent = 40\npool_credit_percent = 41",
            "forebay.toml:3:23: warning: `kv.pool_credit_percent` is more than",
        ),
        (
            "[kv]\nhost_credit_percent = 10\npool_credit_percent = 0\ndisk_credit_percent = 20",
            "forebay.toml:4:23: warning: `kv.disk_credit_percent` is more than",
        ),
        (
            "[timeouts]\nupstream_idle = \"5s\"",
            "forebay.toml:2:17: warning: `timeouts.upstream_idle`",
        ),
        (
            "[timeouts]\nconnect = \"0s\"",
            "forebay.toml:2:11: error: `timeouts.connect` is 0ms, should be at least 1ms",
        ),
        (
            "[approximate]\nrank_bytes_max = \"1KiB\"",
            "forebay.toml:2:18: error: `approximate.rank_bytes_max` is 1KiB, should be 4KiB to",
        ),
        ("[health]\nslow_factor = 1", "forebay.toml:2:15: error: `health.slow_factor` is 1"),
        (
            "[approximate]\nspeculative_ttl = \"2m\"",
            "forebay.toml:2:19: warning: `approximate.speculative_ttl`",
        ),
        (
            "[load]\ninterval = \"50ms\"",
            "forebay.toml:2:12: error: `load.interval` is 50ms, should be at least 100ms",
        ),
        ("[load]\nage_max = \"500ms\"", "forebay.toml:2:11: warning: `load.age_max` is less"),
        ("[load]\nsource = \"ask\"", "forebay.toml:2:10: error: `load.source`"),
        ("[retry]\nattempts_max = 0", "forebay.toml:2:16: error: `retry.attempts_max` is 0"),
        (
            "model_dir = \"/nonexistent\"",
            "forebay.toml:1:13: error: `model_dir` /nonexistent is not",
        ),
    ] {
        only_finding(text, expected);
    }
    let twice = findings(&format!("{WORKER}{WORKER}"));
    assert_eq!(twice.len(), 1);
    assert!(
        twice[0]
            .starts_with("forebay.toml:4:7: error: worker http://127.0.0.1:8000 is listed twice")
    );
}

fn only_finding(text: &str, expected: &str) {
    let found = findings(&format!("{text}\n{WORKER}"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(expected), "{found:?}\n{expected}");
}

#[test]
fn places_of_snapshots_are_checked() {
    for (text, expected) in [
        (
            "[index]\nsnapshot = \"/nonexistent/s\"",
            "forebay.toml:2:12: error: `index.snapshot` /nonexistent/s: /nonexistent is not a dir",
        ),
        (
            "[index]\nsnapshot = \"/tmp\"",
            "forebay.toml:2:12: error: `index.snapshot` /tmp is a dir",
        ),
        (
            "workers_state = \"/nonexistent/w\"",
            "forebay.toml:1:17: error: `workers_state` /nonexistent/w: /nonexistent is not a dir",
        ),
        (
            "[index]\nsnapshot_every = \"10ms\"",
            "forebay.toml:2:18: error: `index.snapshot_every` is less than a second",
        ),
    ] {
        only_finding(text, expected);
    }
}

#[test]
fn tenants_and_the_file_of_keys_are_checked() {
    for (text, expected) in [
        ("[[tenant]]\nweight = 2", "forebay.toml:1:1: error: a tenant has no `name`"),
        ("[[tenant]]\nname = \"*\"\nweight = 0", "forebay.toml:3:10: error: `tenant.weight` is 0"),
        ("[[tenant]]\nname = \"a b\"", "forebay.toml:2:8: error: `tenant.name` \"a b\" is no text"),
        (
            "[[tenant]]\nname = \"*\"\n[[tenant]]\nname = \"*\"",
            "forebay.toml:4:8: error: the tenant \"*\" has two tables",
        ),
        (
            "[[tenant]]\nname = \"*\"\nkey = \"sk-1\"",
            "forebay.toml:3:1: error: `tenant.key` has retired. help: put the client's key",
        ),
        (
            "[[tenant]]\nname = \"*\"\nclass_best = 2",
            "forebay.toml:3:1: error: `tenant.class_best` has retired. help: a key has it now",
        ),
        (
            "listen = \"0.0.0.0:80\"",
            "forebay.toml:1:10: warning: `listen` 0.0.0.0:80 can be reached from outside and asks \
             clients for no key",
        ),
        (
            "[[listener]]\naddress = \"0.0.0.0:80\"",
            "forebay.toml:2:11: warning: `listener` 0.0.0.0:80 can be reached from outside",
        ),
        (
            "listen = \"0.0.0.0:80\"\napi_keys = \"../../tests/data/api_keys/two.toml\"",
            "forebay.toml:1:10: warning: `listen` 0.0.0.0:80 takes keys of clients in clear text",
        ),
        (
            "[jwt]\nissuer = \"i\"",
            "forebay.toml:1:1: warning: `[jwt]` says nothing without `jwt.jwks`",
        ),
        (
            "[jwt]\nissuer = \"i\"\naudience = \"a\"\njwks = \"http://far.example/keys\"",
            "forebay.toml:4:8: error: `jwt.jwks` http://far.example/keys: http:// is only for this",
        ),
        (
            "[jwt]\naudience = \"a\"\njwks = \"https://far.example/keys\"",
            "forebay.toml:1:1: error: `jwt.jwks` needs `jwt.issuer`",
        ),
        (
            "[jwt]\nissuer = \"i\"\njwks = \"https://far.example/keys\"",
            "forebay.toml:1:1: error: `jwt.jwks` needs `jwt.audience`",
        ),
        (
            "[jwt]\nissuer = \"i\"\naudience = \"a\"\njwks = \"/nonexistent\"",
            "forebay.toml:4:8: error: `jwt.jwks`: /nonexistent: No such file",
        ),
        (
            "api_keys = \"/nonexistent\"",
            "forebay.toml:1:12: error: `api_keys`: cannot read /nonexistent",
        ),
        (
            "api_keys = \"../../tests/data/api_keys/faulty.toml\"",
            "../../tests/data/api_keys/faulty.toml:7:8: error: `hash` is no SHA-256",
        ),
        (
            "api_keys = \"../../tests/data/api_keys/empty.toml\"",
            "forebay.toml:1:12: warning: `api_keys` ../../tests/data/api_keys/empty.toml holds no",
        ),
        (
            "api_keys = \"../../tests/data/api_keys/two.toml\"\n[queue]\ntenant_header = \"x-a\"",
            "forebay.toml:3:17: warning: `queue.tenant_header` is not read while `api_keys` is set",
        ),
    ] {
        only_finding(text, expected);
    }
}

#[test]
fn what_leaves_a_door_open_is_a_warning() {
    for (text, expected) in [
        (
            "[client]\ntrusted = [\"10.0.0.0/8\", \"::/0\"]",
            "forebay.toml:2:11: warning: `client.trusted` holds every address",
        ),
        (
            "admin = \"0.0.0.0:9\"\nadmin_token_file = \"../../tests/data/tokens/long\"\n\
             admin_read_token_file = \"../../tests/data/tokens/other\"",
            "forebay.toml:1:9: warning: `admin` 0.0.0.0:9 takes tokens in clear text",
        ),
        (
            "admin = \"0.0.0.0:9\"\nadmin_token_file = \"../../tests/data/tokens/long\"\n\
             [admin_tls]\ncert = \"../../tests/data/tls/router.pem\"\n\
             key = \"../../tests/data/tls/router.key\"",
            "forebay.toml:1:9: warning: `admin` 0.0.0.0:9 shows metrics and workers to anybody",
        ),
        (
            "admin_token_file = \"../../tests/data/tokens/short\"",
            "forebay.toml:1:20: warning: `admin_token_file` holds a token of 6 characters",
        ),
        (
            "api_keys = \"../../tests/data/api_keys/two.toml\"\n[[tenant]]\nname = \"serach\"",
            "forebay.toml:3:8: warning: no key of `api_keys` is of the tenant `serach`",
        ),
    ] {
        only_finding(text, expected);
    }
}

#[test]
fn conflicts_and_ranges_of_back_pressure() {
    for (text, expected) in [
        ("queue = 3", "forebay.toml:1:9: error: `queue` has type integer, not a section"),
        (
            "[queue]\nmode = \"heap\"",
            "forebay.toml:2:8: error: `queue.mode`: \"heap\" is not one of",
        ),
        ("[queue]\nwait_max = \"0s\"", "forebay.toml:2:12: error: `queue.wait_max` is 0"),
        (
            "[queue]\nclass_default = 4",
            "forebay.toml:2:17: error: `queue.class_default` is 4, should be 0 to 3",
        ),
        (
            "[queue]\ntenant_header = \"x team\"",
            "forebay.toml:2:17: error: `queue.tenant_header` \"x team\" is no field name",
        ),
        (
            "[rejection]\nshare_percent = 0",
            "forebay.toml:2:17: error: `rejection.share_percent` is 0",
        ),
        ("rejection_window = \"5m\"", "forebay.toml:1:20: warning: `rejection_window` is longer"),
        (
            "rank_concurrency_max = -1",
            "forebay.toml:1:24: error: `rank_concurrency_max`: -1 is negative",
        ),
    ] {
        only_finding(text, expected);
    }
}

#[test]
fn kv_endpoints_are_checked() {
    for (endpoint, good) in [
        ("tcp://127.0.0.1:5557", true),
        ("tcp://*:5557", true),
        ("ipc:///tmp/kv", true),
        ("bind:tcp://*:5557", true),
        ("bind:5557", false),
        ("127.0.0.1:5557", false),
        ("tcp://:5557", false),
        ("tcp://a", false),
        ("ipc://", false),
    ] {
        let found = findings(&format!("{WORKER}kv_events = [\"{endpoint}\"]"));
        assert_eq!(found.is_empty(), good, "{endpoint}: {found:?}");
    }
}

fn keys(flags: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    flags.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

#[test]
fn flags_win_over_the_file() {
    let flags = Flags {
        keys: keys(&[
            ("listen", "127.0.0.1:1"),
            ("cores", "5"),
            ("policy", "random"),
            ("health", "off"),
            ("queue-mode", "off"),
            ("queue-depth-max", "3"),
            ("queue-wait-max", "4s"),
            ("rejection-window", "0s"),
            ("nats", "nats://b:4222"),
            ("rank-concurrency-max", "9"),
        ]),
        workers: vec!["http://127.0.0.1:8000".to_owned(), "http://b:2".to_owned()],
        kv_events: vec!["-".to_owned(), "tcp://b:5557".to_owned()],
        ..Flags::default()
    };
    let text = format!("listen = \"127.0.0.1:2\"\ncores = [1]\n{WORKER}name = \"first\"\n");
    let loaded = load(Some(ConfigText { name: "f", text: &text }), &flags);
    let unused = loaded.findings.iter().filter(|found| found.what.contains("is not used"));
    assert_eq!((unused.count(), loaded.findings.len()), (2, 2), "{:?}", loaded.findings);
    let config = loaded.config;
    assert_eq!(config.listen.port(), 1);
    assert_eq!(config.cores, [5]);
    assert_eq!(config.policy, Policy::Random);
    assert!(!config.health.enabled);
    assert_eq!(config.flow.rank_concurrency_max, Some(9));
    assert_eq!(config.flow.queue.mode, QueueMode::Off);
    assert_eq!(config.flow.queue.depth_max, 3);
    assert_eq!(config.flow.queue.wait_max, Duration::from_secs(4));
    assert_eq!(config.flow.rejection_window, Duration::ZERO);
    assert_eq!(config.nats.url.as_deref(), Some("nats://b:4222"));
    assert_eq!(config.workers[0].name.as_deref(), Some("first"));
    assert_eq!(config.workers[1].kv_events, ["tcp://b:5557"]);
}

#[test]
fn faults_of_flags_are_findings_too() {
    let flags = Flags {
        workers: vec!["a:1".to_owned()],
        kv_events: vec!["-".to_owned(), "tcp://b:1".to_owned()],
        keys: keys(&[
            ("policy", "sesame"),
            ("queue-mode", "heap"),
            ("nats", "b:4222"),
            ("queue-depth-max", "0"),
            ("rank-concurrency-max", "many"),
        ]),
        ..Flags::default()
    };
    let found: Vec<String> = load(None, &flags).findings.iter().map(ToString::to_string).collect();
    let policy = format!("--policy sesame: error: \"sesame\" is not one of {}", policies());
    assert_eq!(
        found,
        [
            &*policy,
            "--queue-mode heap: error: \"heap\" is not one of pool, endpoint, off",
            "--rank-concurrency-max many: error: \"many\" is not a whole number",
            "--kv-events tcp://b:1: error: --kv-events tcp://b:1 has no --worker to belong to. help: give \
             one --kv-events per --worker, in the same order",
            "--queue-depth-max 0: error: `queue.depth_max` is 0, should be 1 to 65536",
            "--worker a:1: error: `url` \"a:1\": it does not start with http:// or https://. \
             help: write it as http://host:port",
            "--nats b:4222: error: `nats.url` \"b:4222\" has no scheme. help: write it as nats://host:4222",
        ]
    );
}

#[test]
fn cores_leave_one_for_the_control_plane() {
    let cores = |available: &[usize]| {
        let mut config = Config::default();
        config.resolve_cores(available);
        config.cores
    };
    assert_eq!(cores(&[0]), [0]);
    assert_eq!(cores(&[0, 1]), [0]);
    assert_eq!(cores(&[0, 2, 4]), [0, 2]);
    let many: Vec<usize> = (0..500).collect();
    assert_eq!(cores(&many).len(), forebay_base::limits::SHARDS_MAX);
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
