//! What a wrong file gets: findings with their places.

use super::*;

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

/// TOML counts a key to the table above it, and flags spell a path with `-`.
#[test]
fn a_key_of_another_table_is_named() {
    for (text, help) in [
        ("[[worker]]\npolicy = \"kv\"", "`policy` belongs to no table"),
        ("[queue]\ncores = [0]", "`cores` belongs to no table"),
        ("tls_cert = \"a.pem\"", "did you mean `tls.cert`?"),
        ("[limits]\nqueue_depth_max = 3", "did you mean `queue.depth_max`?"),
    ] {
        let found = findings(text);
        assert!(found.iter().any(|finding| finding.contains(help)), "{text}\n{found:?}");
    }
}

/// Issue 39: keys as operators of nginx, HAProxy and Envoy write them had no hint, or a wrong hint.
#[test]
fn a_key_in_the_words_of_another_program_has_a_hint() {
    for (text, hint) in [
        ("[queue]\nwait = \"1s\"", "did you mean `queue.wait_max`?"),
        ("[queue]\nmax_depth = 3", "did you mean `queue.depth_max`?"),
        ("[queue]\nmax_wait_time = \"1s\"", "did you mean `queue.wait_max`?"),
        ("[limits]\nmax_body = \"1MiB\"", "did you mean `limits.body_bytes_max`?"),
        ("[limits]\nclient_max_body_size = \"1m\"", "did you mean `limits.body_bytes_max`?"),
        ("maxconn = 3", "did you mean `limits.connections_max` or `rank_concurrency_max`?"),
        ("max_conns = 3", "did you mean `limits.connections_max` or `rank_concurrency_max`?"),
        ("worker_connections = 3", "did you mean `limits.connections_max`?"),
        ("control_plane_api_keys = \"a\"", "did you mean `admin_token_file`?"),
        ("chat_template = \"a\"", "did you mean `model_dir`?"),
        ("kv_penalty_host = 3", "did you mean `kv.host_credit_percent`?"),
        ("slowstart = \"3s\"", "did you mean `health.slow_start`?"),
        ("[tls]\nkey_file = \"a\"", "did you mean `tls.key`?"),
        ("[timeouts]\nclient = \"3s\"", "did you mean `timeouts.body`?"),
        ("[timeouts]\ncheck = \"3s\"", "did you mean `health.timeout`?"),
        ("[worker_defaults]\nhealth_check_endpoint = \"/x\"", "`worker_defaults.health_path`?"),
        ("kv_event_replay_source = \"a\"", "did you mean `worker.replay`?"),
        ("kv_connector = \"a\"", "did you mean `worker.kv_flow`?"),
        ("disable_health_check = true", "did you mean `health.enabled`?"),
        ("disable_retries = true", "did you mean `retry.attempts_max`?"),
        ("cpu_map = \"1\"", "did you mean `cores`?"),
        ("split_clients = \"a\"", "did you mean `model`?"),
        ("auth_request = \"a\"", "did you mean `api_keys`?"),
        ("server_template = \"a\"", "did you mean `discovery.dns`?"),
        ("least_conn = true", "\"least_loaded\" or \"session\""),
        ("cookie = \"a\"", "\"least_loaded\" or \"session\""),
        ("httpchk = \"a\"", "did you mean `health`?"),
        ("mcp_config_path = \"a\"", "not by this router: remove it"),
        ("retries = 3", "did you mean `retry.attempts_max`?"),
        ("max_retries = 3", "did you mean `retry.attempts_max`?"),
        ("proxy_connect_timeout = \"1s\"", "did you mean `timeouts.connect`?"),
        ("idle_timeout = \"1s\"", "did you mean `timeouts.idle`?"),
        ("[timeout]\nconnect = \"1s\"", "did you mean `timeouts`?"),
        ("[timeouts]\nclient_idle = \"1s\"", "did you mean `timeouts.idle`?"),
        ("health_check_interval = \"1s\"", "did you mean `health.interval`?"),
        ("ssl_certificate = \"a\"", "did you mean `tls.cert`?"),
        ("log-level = \"info\"", "did you mean `log.level`?"),
        ("concurrency_max = 3", "did you mean `rank_concurrency_max` or `worker.concurrency_max`?"),
        ("[queue]\nlevel = 1", "did you mean `log.level`?"),
        ("keepalive_timeout = \"1s\"", "did you mean `timeouts.idle`?"),
        ("worker_processes = 4", "did you mean `cores`?"),
        // The hint was to write `health` and `model` above the first table.
        ("[worker_defaults]\nhealth = \"/x\"", "did you mean `worker_defaults.health_path`?"),
        ("[worker_defaults]\nmodel = \"m\"", "`worker.models` is a key of a single worker"),
        ("[queue]\nsize = 3", "did you mean `queue.depth_max`?"),
        ("models = [\"a\"]", "did you mean `worker.models` or `model`?"),
        ("[prefill]\nurl = \"a\"", "`role = \"prefill\"` or `role = \"decode\"`"),
        ("workers_file = \"a\"", "did you mean `discovery.file`?"),
        ("[retry]\nretries = 3", "did you mean `retry.attempts_max`?"),
        (
            "[timeouts]\nread = \"1s\"",
            "did you mean `timeouts.first_byte` or `timeouts.stream_idle`?",
        ),
        ("api_key = \"sk\"", "did you mean `api_keys` or `worker_defaults.api_key`?"),
        ("[health]\nfailureThreshold = 3", "did you mean `health.unhealthy_after`?"),
        ("[health]\nperiodSeconds = 3", "did you mean `health.interval`?"),
        ("lbPolicy = \"x\"", "did you mean `policy`?"),
        ("[limits]\nrate_limit = 3", "did you mean `tenant.requests_per_minute`?"),
        (
            "request_timeout_secs = 3",
            "did you mean `timeouts.first_byte` or `timeouts.stream_idle`?",
        ),
        ("queue_timeout_secs = 3", "did you mean `queue.wait_max`?"),
        ("port = 80", "did you mean `listen`?"),
        ("[[upstream]]\nurl = \"a\"", "did you mean `worker`?"),
        ("[[servers]]\nurl = \"a\"", "did you mean `worker`?"),
        ("[log]\nfile = \"a\"", "start with 2>>FILE"),
        ("zebra = 1", "lists the keys"),
    ] {
        let found = findings(&format!("{text}\n{WORKER}"));
        assert!(found.len() == 1 && found[0].ends_with(hint), "{text}\n{found:?}");
    }
}

/// Issue 39: the message of the library has no name.
#[test]
fn a_key_that_stands_twice_is_named() {
    for (text, what) in [
        (
            "policy = \"kv\"\npolicy = \"kv\"",
            "forebay.toml:2:1: error: duplicate key `policy`. help: ",
        ),
        (
            "[queue]\nhops_max = 1\nhops_max = 1",
            "forebay.toml:3:1: error: duplicate key `hops_max`.",
        ),
        ("[queue]\n[queue]", "forebay.toml:2:2: error: duplicate key `queue`."),
    ] {
        let found = findings(text);
        assert!(found.len() == 1 && found[0].starts_with(what), "{text}\n{found:?}");
    }
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
            "[timeouts]\nfirst_byte = \"1ms\"",
            "forebay.toml:2:14: warning: `timeouts.first_byte` is 1ms, less than 1s",
        ),
        (
            "[timeouts]\nconnect = \"99ms\"",
            "forebay.toml:2:11: warning: `timeouts.connect` is 99ms, less than 100ms",
        ),
        (
            "[health]\ntimeout = \"1ms\"",
            "forebay.toml:2:11: warning: `health.timeout` is 1ms, less than 100ms",
        ),
        (
            "[disaggregation]\nprefill_timeout = \"1ms\"",
            "forebay.toml:2:19: warning: `disaggregation.prefill_timeout` is 1ms",
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
            "forebay.toml:1:13: error: `model_dir` /nonexistent: No such file",
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

/// Issue 39: the other key is a default and has no line.
#[test]
fn a_finding_on_two_keys_stands_at_the_key_that_is_written() {
    for (text, expected) in [
        (
            "[limits]\nbody_bytes_max = \"300MiB\"",
            "forebay.toml:2:18: warning: `queue.bytes_max` is smaller than `limits.body_bytes_max`",
        ),
        ("[limits]\n\nbody_bytes_max = \"1GiB\"", "forebay.toml:3:18: error: `limits.buffered_"),
        ("[load]\n\ninterval = \"9s\"", "forebay.toml:3:12: warning: `load.age_max` is less"),
        (
            "[kv]\n\nhost_credit_percent = 40",
            "forebay.toml:3:23: warning: `kv.pool_credit_percent` is more than",
        ),
    ] {
        let found = findings(&format!("{text}\n{WORKER}"));
        assert!(found.iter().any(|found| found.starts_with(expected)), "{found:?}");
        let is_placed = |found: &String| found.starts_with("forebay.toml:");
        assert!(found.iter().all(is_placed), "{found:?}");
    }
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

/// A key that cannot be read is written: its table does not lack it.
#[test]
fn a_key_that_cannot_be_read_is_not_called_missing() {
    for (text, expected) in [
        (
            "[[listener]]\naddress = \"localhost:81\"",
            "forebay.toml:2:11: error: `listener.address`: \"localhost:81\" is not an address",
        ),
        ("[[tenant]]\nname = 7", "forebay.toml:2:8: error: `tenant.name`: has type integer"),
        ("[[worker]]\nurl = 7", "forebay.toml:2:7: error: `worker.url`: has type integer"),
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
            "forebay.toml:2:10: warning: `jwt.issuer` is not used: there is no `jwt.jwks`",
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
            "forebay.toml:3:17: warning: `queue.tenant_header` is not used: `api_keys` is set",
        ),
    ] {
        only_finding(text, expected);
    }
}

/// Issue 39: a file that cannot be read had the help of a missing file. Each key takes a folder in
/// place of a file.
#[test]
fn each_file_that_cannot_be_read_has_the_advice_of_its_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let worker = "[[worker]]\nurl = \"http://a:1\"\n";
    let secure = "[[worker]]\nurl = \"https://a:1\"\n";
    let authority = "tls_ca = \"../../tests/data/tls/router.pem\"";
    let good = "cert = \"../../tests/data/tls/router.pem\"";
    for text in [
        format!("admin_token_file = {path:?}\n{worker}"),
        format!("replicas.token_file = {path:?}\n{worker}"),
        format!("image_key_file = {path:?}\n{worker}"),
        format!("api_keys = {path:?}\n{worker}"),
        format!("[jwt]\nissuer = \"i\"\naudience = \"a\"\njwks = {path:?}\n{worker}"),
        format!("worker_defaults.api_key_file = {path:?}\n{worker}"),
        format!("{worker}api_key_file = {path:?}\n"),
        format!("{secure}tls_ca = {path:?}\n"),
        format!("{secure}{authority}\ntls_{good}\ntls_key = {path:?}\n"),
        format!("upstream_tls.ca = {path:?}\n{secure}"),
        format!("[replicas]\npeers = [\"https://127.0.0.1:1\"]\nca = {path:?}\n{worker}"),
        format!("[tls]\ncert = {path:?}\nkey = {path:?}\n{worker}"),
        format!("[tls]\n{good}\nkey = {path:?}\n{worker}"),
        format!("[admin_tls]\n{good}\nkey = {path:?}\n{worker}"),
        format!("[traces]\nendpoint = \"https://a:1\"\nheaders_file = {path:?}\n{worker}"),
        format!("[traces]\nendpoint = \"https://a:1\"\nca = {path:?}\n{worker}"),
        format!("discovery.file = {path:?}\n"),
    ] {
        let mut loaded = load(Some(ConfigText { name: "f", text: &text }), &Flags::default());
        loaded.read_workers();
        let errors = loaded.findings.iter().filter(|found| found.severity == Severity::Error);
        let errors: Vec<String> = errors.map(ToString::to_string).collect();
        let says = "it is a folder. help: name a file in this folder";
        assert!(errors.len() == 1 && errors[0].contains(says), "{text}: {errors:?}");
    }
    let source = ConfigSource { file: Some(path.to_owned()), flags: Flags::default() };
    let fault = source.load().unwrap_err();
    assert!(fault.contains("help: name a file in this folder"), "{fault}");
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

/// Issue 39: of these keys the hint was wrong, or there was none.
#[test]
fn a_key_of_a_worker_in_the_words_of_another_program_has_a_hint() {
    for (key, hint) in [
        ("health = \"/x\"", "did you mean `worker.health_path`?"),
        ("health_check = \"/x\"", "did you mean `worker.health_path`?"),
        ("model = \"m\"", "did you mean `worker.models`?"),
        ("address = \"a\"", "did you mean `worker.url`?"),
        ("max_num_seqs = 3", "did you mean `worker.concurrency_max`?"),
        ("maxconn = 3", "did you mean `worker.concurrency_max`?"),
        ("dp_size = 3", "did you mean `worker.ranks`?"),
        ("weight = 3", "limits the requests of each rank"),
        ("timeout = \"1s\"", "see `[timeouts]`"),
        ("disaggregation_mode = \"prefill\"", "or `role = \"decode\"`"),
        ("zebra = 1", "lists the keys"),
    ] {
        let found = findings(&format!("{WORKER}{key}\n"));
        assert!(found.len() == 1 && found[0].ends_with(hint), "{key}\n{found:?}");
    }
}

/// A key forged a line with an "ok" of another file, and turned the title of the terminal.
#[test]
fn a_finding_is_a_line_whatever_the_file_holds() {
    for odd in ["\\n", "\\u001b]0;x\\u0007", "\\r", "\\u2028", "\\u202e", "\\u0085"] {
        for text in [
            format!("\"a{odd}forebay.toml: ok, 2 workers\" = 1"),
            format!("policy = \"a{odd}b\""),
            format!("[[worker]]\nurl = \"http://a{odd}b:1\""),
        ] {
            for finding in findings(&text) {
                let is_plain = |c: char| !c.is_control() && !"\u{2028}\u{202e}".contains(c);
                assert!(finding.chars().all(is_plain), "{text:?}: {finding:?}");
            }
        }
    }
}
