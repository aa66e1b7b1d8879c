//! Flags beside the file, and the cores of shards.

use super::*;

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
            "--nats b:4222: error: `nats.url` \"b:4222\" has no scheme. help: write it as \
             nats://host:4222, or tls://host:4222",
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
