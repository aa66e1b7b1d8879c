//! Keys without effect: each is of the table or always used, and each is named with its line.

use super::checks::test_findings::findings;
use super::checks::unused::unused_keys::{unused_keys, unused_reasons};
use crate::{Config, Kind, WorkerConfig, all_keys, to_toml};
use std::collections::BTreeSet;

/// Keys that something reads in every configuration, or that are an error without an effect.
const ALWAYS_USED: &str = "
    listen listen_shared retry.mid_stream admin admin_token_file admin_read_token_file
    admin_on_client_port api_keys cores model_dir workers_state policy rank_concurrency_max
    rejection_window
    client.trusted client.proxy_protocol client.forwarded cors.origins jwt.jwks
    tls.cert tls.key tls.client_auth admin_tls.cert admin_tls.key admin_tls.client_ca
    worker_defaults.api_key worker_defaults.api_key_file worker_defaults.engine
    worker_defaults.model_dir worker_defaults.concurrency_max worker_defaults.health_path
    discovery.file discovery.dns health.enabled health.timeout health.unhealthy_after
    health.slow_start breaker.failures breaker.open kv.tier_ttl index.snapshot load.source
    limits.head_bytes_max limits.head_fields_max limits.body_bytes_max limits.connections_max
    limits.body_rate_min limits.buffered_bytes_max limits.index_bytes_max
    queue.mode queue.kv_use_percent queue.prefill_tokens_max rejection.share_percent
    timeouts.head timeouts.body timeouts.idle timeouts.connect timeouts.first_byte
    timeouts.stream_idle timeouts.tunnel timeouts.write timeouts.upstream_idle timeouts.drain
    timeouts.drain_delay timeouts.stall_abort
    replicas.peers nats.url log.json log.requests log.slow log.level traces.endpoint
    worker.url worker.name worker.model_dir worker.kv_events worker.replay worker.engine
    worker.api_key worker.api_key_file worker.concurrency_max worker.ranks worker.models
    worker.block_size worker.health_path worker.load_source worker.role worker.kv_engine_id
    tenant.name tenant.requests_per_minute tenant.tokens_per_minute tenant.in_flight_max
    certificate.cert certificate.key listener.address listener.tls
    model.name model.to model.weight adapter.name adapter.path adapter.of adapter.copies
";

#[test]
fn each_key_is_of_the_table_or_always_used() {
    let may_be: BTreeSet<&str> = unused_keys().flat_map(|unused| unused.keys).copied().collect();
    let always: BTreeSet<&str> = ALWAYS_USED.split_whitespace().collect();
    let all: BTreeSet<&str> = all_keys().iter().map(|entry| entry.key.path).collect();
    let both: Vec<_> = may_be.intersection(&always).collect();
    assert!(both.is_empty(), "{both:?}");
    let listed: BTreeSet<&str> = may_be.union(&always).copied().collect();
    let differ: Vec<_> = all.symmetric_difference(&listed).collect();
    assert!(differ.is_empty(), "a key of neither list, or no key: {differ:?}");
}

/// Lines with which keys are unused, and lines with which they are used. A line of a worker
/// begins with `+`.
const CASES: &[(&str, &str, &str)] = &[
    ("retry.after_send retry.budget_percent", "retry.attempts_max = 1", "retry.attempts_max = 2"),
    ("retry.after_send", "retry.budget_percent = 0", ""),
    ("retry.attempts_max", "retry.budget_percent = 0", ""),
    ("retry.attempts_max", "engine = \"vllm\"", "engine = \"vllm\"\nretry.after_send = true"),
    ("retry.attempts_max", "+role = \"both\"", "engine = \"sglang\""),
    ("retry.attempts_max", "+role = \"both\"", "+role = \"both\"\nretry.mid_stream = true"),
    ("timeouts.handshake", "", "listener = [{ address = \"127.0.0.1:1\", tls = true }]"),
    ("admin_hosts", "admin = \"unix:/tmp/f.sock\"", ""),
    (
        "admin_hosts",
        "admin = \"unix:/tmp/f.sock\"",
        "admin = \"unix:/tmp/f.sock\"\nadmin_on_client_port = true",
    ),
    ("tls.client_ca", "", "tls.client_auth = \"required\""),
    (
        "cors.methods cors.headers cors.max_age cors.credentials",
        "",
        "cors.origins = \"https://a.example\"",
    ),
    (
        "jwt.issuer jwt.audience jwt.tenant_claim jwt.models_claim jwt.class_claim jwt.leeway \
         jwt.refresh",
        "",
        "jwt.jwks = \"https://a.example/keys\"",
    ),
    ("jwt.refresh", "jwt.jwks = \"/keys\"", "jwt.jwks = \"https://a.example/keys\""),
    ("session.fields session.members", "policy = \"random\"", "policy = \"session\""),
    ("image_key_file", "policy = \"session\"", ""),
    (
        "kv.host_credit_percent kv.disk_credit_percent approximate.ttl \
         approximate.speculative_ttl approximate.rank_bytes_max worker.kv_pool",
        "policy = \"least_loaded\"",
        "",
    ),
    ("kv.pool_credit_percent", "policy = \"random\"", "+kv_pool = \"p\""),
    ("kv.pool_credit_percent", "", "discovery.file = \"w.toml\""),
    ("worker.kv_pool", "kv.pool_credit_percent = 0", ""),
    ("worker.kv_pool", "+engine = \"openai\"", "+engine = \"vllm\""),
    (
        "approximate.rank_bytes_max",
        "approximate.ttl = \"0s\"\napproximate.speculative_ttl = \"0s\"",
        "approximate.ttl = \"0s\"",
    ),
    ("index.snapshot_every", "", "index.snapshot = \"/tmp/s\""),
    (
        "queue.depth_max queue.bytes_max queue.wait_max queue.promote_after \
         queue.sse_comments rejection.low_water_percent limits.kv_demand_percent \
         queue.overtaken_max queue.class_default tenant.weight",
        "queue.mode = \"off\"",
        "queue.mode = \"endpoint\"",
    ),
    (
        "queue.tenant_header",
        "api_keys = \"../../tests/data/api_keys/two.toml\"",
        "queue.mode = \"endpoint\"",
    ),
    ("queue.tenant_header", "jwt.jwks = \"/keys\"", ""),
    (
        "queue.overtaken_max queue.class_default",
        "queue.mode = \"off\"",
        "queue.mode = \"off\"\nqueue.engine_priority = true",
    ),
    ("queue.stale_after queue.hops_max", "", "queue.mode = \"endpoint\""),
    ("queue.stale_after queue.hops_max", "queue.mode = \"off\"", "queue.mode = \"endpoint\""),
    // Issue 39: no warning where each request had been refused before the time had come.
    ("queue.promote_after", "queue.wait_max = \"1s\"", "queue.wait_max = \"5s\""),
    (
        "queue.stale_after",
        "queue.mode = \"endpoint\"\nqueue.wait_max = \"1s\"",
        "queue.mode = \"endpoint\"",
    ),
    ("queue.engine_priority", "engine = \"sglang\"", "engine = \"vllm\""),
    ("queue.engine_priority", "+engine = \"openai\"", "engine = \"sglang\"\n+engine = \"vllm\""),
    ("queue.engine_priority", "worker_defaults.engine = \"sglang\"", ""),
    ("queue.engine_priority", "engine = \"sglang\"", "engine = \"sglang\"\nworkers_state = \"w\""),
    (
        "disaggregation.fallback disaggregation.uncached_tokens_min \
         disaggregation.prefill_timeout disaggregation.prefill_concurrency_max \
         disaggregation.decode_concurrency_max disaggregation.prefill_tokens_max \
         disaggregation.prefill_kv_use_percent disaggregation.decode_kv_use_percent",
        "engine = \"vllm\"",
        "engine = \"vllm\"\n+role = \"decode\"",
    ),
    ("disaggregation.fallback", "+role = \"both\"", "engine = \"sglang\""),
    ("discovery.interval", "", "discovery.file = \"w.toml\""),
    (
        "discovery.name_server",
        "discovery.dns = [\"http://a:1\"]",
        "discovery.dns = [\"http://_http._tcp.a\"]",
    ),
    (
        "health.interval health.healthy_after health.stall_timeout health.slow_factor \
         health.slow_after health.ejected_share_percent",
        "health.enabled = false",
        "health.slow_factor = 3",
    ),
    ("health.slow_after", "", "health.slow_factor = 3"),
    ("health.ejected_share_percent", "health.stall_timeout = \"0s\"", ""),
    // Issue 39: no rank was ever ejected, and no check named the share.
    ("health.slow_factor health.stall_timeout", "health.ejected_share_percent = 0", ""),
    (
        "health.slow_after",
        "health.slow_factor = 3\nhealth.ejected_share_percent = 0",
        "health.slow_factor = 3",
    ),
    // Issue 39: limits that a lower limit reaches first.
    ("limits.in_flight_max", "limits.connections_max = 1", "limits.connections_max = 2"),
    (
        "limits.router_in_flight_max",
        "cores = [0]\nlimits.in_flight_max = 1",
        "cores = [0, 1]\nlimits.in_flight_max = 1",
    ),
    (
        "limits.router_in_flight_max",
        "cores = [0]\nlimits.connections_max = 1",
        "limits.connections_max = 1",
    ),
    (
        "limits.router_in_flight_max",
        "cores = [0]\nlimits.connections_max = 1\nqueue.tenant_header = \"x-t\"",
        "cores = [0]\nlimits.in_flight_max = 1\nqueue.tenant_header = \"x-t\"",
    ),
    (
        "limits.connections_per_address_max",
        "cores = [0]\nlimits.connections_max = 1",
        "limits.connections_max = 1",
    ),
    (
        "queue.depth_max",
        "limits.router_in_flight_max = 1",
        "limits.router_in_flight_max = 1\nqueue.tenant_header = \"x-t\"",
    ),
    ("load.interval load.age_max", "load.source = \"off\"", "+load_source = \"metrics\""),
    ("load.back_off", "load.source = \"off\"", "load.source = \"off\"\ndiscovery.file = \"w\""),
    ("load.interval", "health.enabled = false", "load.source = \"metrics\""),
    ("engine", "worker_defaults.engine = \"vllm\"", ""),
    ("upstream_tls.ca", "", "discovery.dns = [\"https://a:1\"]"),
    // A certificate without its key is an error of its own.
    (
        "upstream_tls.cert",
        "upstream_tls.key = \"../../tests/data/tls/router.key\"",
        "discovery.dns = [\"https://a:1\"]",
    ),
    (
        "upstream_tls.key",
        "upstream_tls.cert = \"../../tests/data/tls/router.pem\"",
        "discovery.dns = [\"https://a:1\"]",
    ),
    ("upstream_tls.ca", "", "jwt.jwks = \"https://a.example/keys\""),
    ("upstream_tls.ca", "", "workers_state = \"w\""),
    ("worker.kv_topic", "", "+kv_events = \"tcp://a:1\""),
    ("worker.port_per_rank", "+ranks = 1", "+ranks = 2"),
    ("worker.topology", "+role = \"both\"", "+role = \"prefill\""),
    ("worker.topology", "worker_defaults.engine = \"vllm\"", ""),
    (
        "worker.bootstrap_host worker.bootstrap_port",
        "+engine = \"vllm\"",
        "+engine = \"vllm\"\n+kv_flow = \"mooncake\"",
    ),
    ("worker.kv_flow", "+role = \"both\"", "+role = \"decode\""),
    (
        "worker.kv_host worker.kv_port worker.kv_tp_size worker.kv_pp_size",
        "",
        "+kv_flow = \"push\"",
    ),
    ("worker.tls_ca worker.tls_cert worker.tls_key worker.tls_name", "", "https"),
    ("nats.prefix", "", "nats.url = \"nats://a:1\""),
    ("replicas.name", "", "nats.url = \"nats://a:1\""),
    (
        "replicas.token_file replicas.ca",
        "nats.url = \"nats://a:1\"",
        "replicas.peers = \"https://10.0.0.3:1\"",
    ),
    (
        "replicas.ca",
        "replicas.peers = \"http://10.0.0.3:1\"",
        "replicas.peers = \"https://10.0.0.3:1\"",
    ),
    (
        "replicas.cert",
        "replicas.key = \"../../tests/data/tls/router.key\"",
        "replicas.peers = \"https://10.0.0.3:1\"",
    ),
    (
        "replicas.key",
        "replicas.cert = \"../../tests/data/tls/router.pem\"",
        "replicas.peers = \"https://10.0.0.3:1\"",
    ),
    (
        "replicas.key",
        "replicas.cert = \"../../tests/data/tls/router.pem\"\n\
         replicas.peers = \"http://10.0.0.3:1\"",
        "replicas.peers = \"https://10.0.0.3:1\"",
    ),
    ("log.format", "", "log.requests = true"),
    ("log.format", "log.requests = true\nlog.json = true", "log.requests = true"),
    (
        "traces.ca traces.headers_file traces.sample_per_million traces.asked_per_second_max \
         traces.service traces.timeout",
        "",
        "traces.endpoint = \"https://c:4318\"",
    ),
    ("traces.ca", "traces.endpoint = \"http://c:4318\"", "traces.endpoint = \"https://c\""),
];

/// A value of the key's type that asks for something.
fn value_of(path: &str) -> String {
    let kind = all_keys().into_iter().find(|entry| entry.key.path == path).unwrap().kind;
    match kind {
        Kind::Switch => "true".to_owned(),
        Kind::Count if path.ends_with("percent") => "80".to_owned(),
        Kind::Count => "2".to_owned(),
        Kind::Size => "\"1MiB\"".to_owned(),
        Kind::Duration => "\"3s\"".to_owned(),
        Kind::Texts => "[\"A\"]".to_owned(),
        Kind::Words(words) => format!("{:?}", words.last().unwrap().0),
        Kind::Address | Kind::Text => format!("\"{}\"", text_value(path)),
        Kind::Cores => "\"0\"".to_owned(),
    }
}

/// A file without a fault, where the key names a file: a further finding stands in its place.
fn text_value(path: &str) -> &'static str {
    let name = path.rsplit(['.', '_']).next().unwrap_or(path);
    match (path, name) {
        ("discovery.name_server", _) => "10.0.0.10:53",
        ("traces.headers_file", _) => "../../tests/data/trace_fields",
        ("log.format", _) => "{status}",
        (_, "file") => "../../tests/data/tokens/long",
        ("worker.tls_key" | "upstream_tls.key" | "replicas.key", _) => {
            "../../tests/data/tls/router.key"
        }
        (_, "ca" | "cert") => "../../tests/data/tls/router.pem",
        _ => "a",
    }
}

fn text_of(condition: &str, key: &str) -> String {
    let value = value_of(key);
    let (of_worker, of_router): (Vec<_>, Vec<_>) =
        condition.lines().partition(|line| line.starts_with('+'));
    let mut lines: Vec<String> =
        of_router.into_iter().filter(|line| *line != "https").map(str::to_owned).collect();
    let scheme = if condition == "https" { "https" } else { "http" };
    let mut worker = vec![format!("[[worker]]\nurl = \"{scheme}://b:1\"")];
    worker.extend(of_worker.iter().map(|line| line[1..].to_owned()));
    match key.split_once('.') {
        Some(("worker", name)) => worker.push(format!("{name} = {value}")),
        Some(("tenant", name)) => {
            worker.push(format!("[[tenant]]\nname = \"*\"\n{name} = {value}"));
        }
        _ => lines.push(format!("{key} = {value}")),
    }
    format!("{}\n{}\n", lines.join("\n"), worker.join("\n"))
}

/// The warnings that the key is not used.
fn unused(condition: &str, key: &str) -> Vec<String> {
    let text = text_of(condition, key);
    let loaded =
        crate::load(Some(crate::ConfigText { name: "f", text: &text }), &crate::Flags::default());
    let shown = key.strip_prefix("worker.").unwrap_or(key);
    let start = format!("warning: `{shown}` is not used: ");
    let found = loaded.findings.iter().map(ToString::to_string);
    let found: Vec<String> = found.filter(|found| found.contains(&start)).collect();
    let line = text.lines().position(|line| {
        line.split(" = ").next().is_some_and(|name| key.ends_with(name) && !name.is_empty())
    });
    for found in &found {
        let place = format!("f:{}:", line.map_or(0, |line| line + 1));
        assert!(found.starts_with(&place), "{text}\n{found}");
    }
    found
}

/// One warning, with its reason and its line; none where the key counts, or is switched off.
#[test]
fn a_key_that_nothing_reads_is_named() {
    let mut reasons = BTreeSet::new();
    for (keys, without, with) in CASES {
        for key in keys.split_whitespace() {
            let found = unused(without, key);
            assert_eq!(found.len(), 1, "{key} with {without:?}: {found:?}");
            reasons.extend(found);
            assert_eq!(unused(with, key), [""; 0], "{key} with {with:?}");
        }
    }
    let tested: BTreeSet<&str> =
        CASES.iter().flat_map(|(keys, ..)| keys.split_whitespace()).collect();
    let of_table = unused_keys().flat_map(|unused| unused.keys).copied().collect();
    assert_eq!(tested, of_table);
    let is_untested = |help: &&str| !reasons.iter().any(|found| found.contains(*help));
    let untested: Vec<_> = unused_keys().map(|unused| unused.help).filter(is_untested).collect();
    assert_eq!(untested, [""; 0]);
    for off in [
        "retry.mid_stream = false\nretry.attempts_max = 1",
        "session.members = []\npolicy = \"random\"",
    ] {
        let found = findings(off).concat();
        assert!(!found.contains("is not used"), "{off}: {found}");
    }
}

#[test]
fn workers_of_a_file_have_the_warnings_too() {
    let text = "[[worker]]\nurl = \"http://a:1\"\nkv_pool = \"p\"\ntls_key = \"k\"\n";
    let router = Config { policy: crate::Policy::Random, ..Config::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.toml");
    std::fs::write(&path, text).unwrap();
    let found = crate::read_worker_file(&path, &router).findings;
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("w.toml:3:11: warning: `kv_pool` is not used: the policy is"));
    assert!(lines[1].contains("w.toml:4:11: warning: `tls_key` is not used: `url` begins"));
}

#[test]
fn the_weight_of_a_single_table_is_named() {
    let table = "[[model]]\nname = \"a\"\nto = \"TO\"\nweight = 3\n";
    let of = |names: &[&str]| {
        let tables: String = names.iter().map(|to| table.replace("TO", to)).collect();
        findings(&format!("{tables}[[worker]]\nurl = \"http://b:1\"\n"))
    };
    let found = of(&["b"]);
    let is_named =
        found.iter().any(|found| found.contains(":4:10: warning: `model.weight` is not"));
    assert!(is_named, "{found:?}");
    let found = of(&["b", "c"]).concat();
    assert!(!found.contains("is not used"), "{found}");
}

/// A printed default that nothing reads would be a warning when the text is read again.
#[test]
fn what_is_printed_has_no_warning() {
    let worker = WorkerConfig { url: "http://a:1".to_owned(), ..WorkerConfig::default() };
    let config = Config { workers: vec![worker], ..Config::default() };
    let printed = to_toml(&config);
    let loaded = crate::load(
        Some(crate::ConfigText { name: "f", text: &printed }),
        &crate::Flags::default(),
    );
    assert_eq!(loaded.findings, [], "{printed}");
    assert_eq!(loaded.config, config);
    assert!(printed.contains("# prefix = \"forebay\" # not used: there is no `nats.url`"));
    assert_eq!(unused_reasons(&config)["nats.prefix"], "there is no `nats.url`");
}
