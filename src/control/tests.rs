//! Discovery against recorded answers, and the whole plane with shards that only listen.

use super::described::{
    Announced, DescribedRank, Description, events_of_vllm, ranks_of_vllm_metrics, read_models,
    read_sglang_info,
};
use super::discovery::{DiscoveryError, Subject, assume, check_health, discover};
use super::http::Asker;
use super::test_support::block_on_local;
use super::{ControlError, ControlSetup, run};
use axum::Router;
use axum::http::{StatusCode, Uri};
use forebay_base::{Clock, NanosSinceStart, RankIndex};
use forebay_config::{Config, EngineKind, HealthConfig, WorkerConfig, WorkerRole, WorkerUrl};
use forebay_fleet::account::{ShardPhase, Stage, StageHistograms};
use forebay_fleet::mailbox::{ShardCommand, ShardEnd, wire};
use forebay_fleet::worker::{ANY_MODEL, Dialect, FleetSnapshot, LoadBoard, Role, WorkerState};
use forebay_index::{KeySeed, KvOp};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!("../../tests/data/workers/", $name))
    };
}

type Answers = &'static [(&'static str, &'static str)];

const VLLM: Answers = &[
    ("/v1/models", recorded!("vllm-0.32.0/models.json")),
    ("/version", recorded!("vllm-0.32.0/version.json")),
    ("/metrics", recorded!("vllm-0.32.0/metrics.txt")),
    ("/kv_event_sources", recorded!("vllm-0.32.0/kv_event_sources.json")),
    ("/health", ""),
];
const VLLM_RUST: Answers = &[
    ("/v1/models", recorded!("vllm-rs-0.33.0/models.json")),
    ("/metrics", recorded!("vllm-rs-0.33.0/metrics.txt")),
    ("/health", ""),
];
const SGLANG: Answers = &[
    ("/v1/models", recorded!("sglang-0.5.23/models.json")),
    ("/server_info", recorded!("sglang-0.5.23/server_info.json")),
    ("/model_info", recorded!("sglang-0.5.23/model_info.json")),
];
const PLAIN: Answers =
    &[("/v1/models", r#"{"object":"list","data":[{"id":"a"},{"id":"b","parent":"a"}]}"#)];

/// A server that knows some answers and says 404 to the rest.
async fn fake(answers: Answers) -> SocketAddr {
    refusing(answers, &[]).await
}

/// One that answers some paths with another status.
async fn refusing(answers: Answers, refused: &'static [(&'static str, u16)]) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().fallback(move |uri: Uri| async move {
        if let Some((_, status)) = refused.iter().find(|(path, _)| *path == uri.path()) {
            return (StatusCode::from_u16(*status).unwrap(), "");
        }
        let known = answers.iter().find(|(path, _)| *path == uri.path());
        known.map_or((StatusCode::NOT_FOUND, ""), |(_, body)| (StatusCode::OK, *body))
    });
    tokio::task::spawn_local(async move { axum::serve(listener, app).await });
    address
}

#[test]
fn a_configured_health_path_is_all_that_is_asked() {
    const LITELLM: Answers = &[("/health/liveliness", ""), ("/v1/models", "")];
    block_on_local(async {
        let asker = asker(refusing(LITELLM, &[("/health", 500)]).await);
        let check = async |path| check_health(&asker, path, Dialect::Openai).await.is_ok();
        assert!(check(Some("/health/liveliness")).await);
        assert!(!check(None).await, "the usual one is asked");
        assert!(!check(Some("/health/readiness")).await, "and no other instead of a missing one");
    });
}

fn asker(address: SocketAddr) -> Asker {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    Asker::new(client, &format!("http://{address}"), None, Duration::from_secs(5))
}

async fn described(answers: Answers, config: &WorkerConfig) -> Result<Description, DiscoveryError> {
    described_at(fake(answers).await, config).await
}

async fn described_at(
    address: SocketAddr,
    config: &WorkerConfig,
) -> Result<Description, DiscoveryError> {
    let url = WorkerUrl::parse("http://gpu1:8000").unwrap();
    let ip = address.ip();
    let subject = Subject { config, engine: EngineKind::Auto, url: &url, ip, taken_ports: &[] };
    discover(&asker(address), subject).await
}

fn names(description: &Description) -> Vec<&str> {
    description.models.iter().map(|model| &*model.name).collect()
}

fn streams(description: &Description) -> Vec<String> {
    let shown = |rank: &DescribedRank| {
        let replay = |events: &Announced| {
            events.replay.as_ref().map_or_else(String::new, |r| format!(" {r}"))
        };
        let events = rank.events.as_ref();
        events.map_or("-".to_owned(), |events| {
            format!("{} {}{}", events.endpoint, events.topic, replay(events))
        })
    };
    description.ranks.iter().map(shown).collect()
}

#[test]
fn recorded_servers_are_recognised() {
    block_on_local(async {
        let none = WorkerConfig::default();
        let vllm = described(VLLM, &none).await.unwrap();
        assert_eq!(vllm.dialect, Dialect::Vllm);
        assert_eq!(names(&vllm), ["tiny"]);
        assert_eq!(vllm.models[0].root.as_deref(), Some("/srv/models/tiny-random-llama"));
        assert!(vllm.models[0].card_json.starts_with("{\"id\":\"tiny\""));
        assert_eq!(
            streams(&vllm),
            ["tcp://gpu1:5557 kv@tiny tcp://gpu1:5657", "tcp://gpu1:5558 kv@tiny tcp://gpu1:5658"]
        );
        assert!(vllm.ranks.iter().all(|r| (r.block_size_tokens, r.kv_block_count) == (32, 64)));

        let rust = described(VLLM_RUST, &none).await.unwrap();
        assert_eq!(rust.dialect, Dialect::Vllm);
        assert_eq!(rust.ranks.len(), 2, "two engines in the metrics");
        assert_eq!(streams(&rust), ["-", "-"]);

        let sglang = described(SGLANG, &none).await.unwrap();
        assert_eq!(sglang.dialect, Dialect::Sglang);
        assert_eq!(names(&sglang), ["tiny"]);
        assert_eq!(sglang.models[0].root.as_deref(), Some("/srv/models/tiny-random-llama"));
        assert_eq!(streams(&sglang), ["tcp://gpu1:6657 "]);
        let load = sglang.ranks[0].load.as_ref().unwrap();
        assert_eq!((load.endpoint.to_string(), &*load.topic), ("tcp://gpu1:6658".into(), "load"));
        assert_eq!(sglang.ranks[0].block_size_tokens, 4);
        assert_eq!(sglang.ranks[0].kv_block_count, 25_000);

        let plain = described(PLAIN, &none).await.unwrap();
        assert_eq!((plain.dialect, names(&plain)), (Dialect::Openai, vec!["a", "b"]));
        assert_eq!(plain.models[1].parent.as_deref(), Some("a"));

        let silent = described(&[], &none).await.unwrap();
        assert_eq!(
            (silent.dialect, silent.models.len(), silent.ranks.len()),
            (Dialect::Openai, 0, 1)
        );
        let odd = described(&[("/v1/models", "<html>")], &none).await;
        assert!(matches!(odd, Err(DiscoveryError::Models)));
    });
}

/// A worker that fails to answer for a moment is what it was, not one without a role or further
/// ranks.
#[test]
fn a_page_that_fails_does_not_change_what_a_worker_is() {
    const PREFILL: Answers = &[
        ("/v1/models", r#"{"data":[{"id":"m","owned_by":"sglang"}]}"#),
        (
            "/server_info",
            r#"{"model_path":"m","dp_size":2,"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998}"#,
        ),
    ];
    const UNREADABLE: Answers = &[
        ("/v1/models", r#"{"data":[{"id":"m","owned_by":"sglang"}]}"#),
        ("/server_info", "<html>"),
    ];
    block_on_local(async {
        let (auto, told) = (
            WorkerConfig::default(),
            WorkerConfig { role: WorkerRole::Prefill, ..WorkerConfig::default() },
        );
        let prefill = described(PREFILL, &auto).await.unwrap();
        assert_eq!((prefill.role, prefill.ranks.len()), (Role::Prefill, 2));
        for failed in [
            &[("/server_info", 500)][..],
            &[("/server_info", 503)],
            &[("/server_info", 429)],
            &[("/server_info", 404), ("/get_server_info", 502)],
        ] {
            for config in [&auto, &told] {
                let found = described_at(refusing(PREFILL, failed).await, config).await;
                assert!(matches!(found, Err(DiscoveryError::Ask(_))), "{failed:?} {found:?}");
            }
        }
        // It never tells: what is configured counts, and nothing is assumed.
        for missing in
            [&[("/server_info", 404)][..], &[("/server_info", 401)], &[("/server_info", 403)]]
        {
            let found = described_at(refusing(PREFILL, missing).await, &auto).await;
            assert!(matches!(found, Err(DiscoveryError::Role)), "{missing:?} {found:?}");
            let found = described_at(refusing(PREFILL, missing).await, &told).await.unwrap();
            assert_eq!((found.role, found.ranks.len()), (Role::Prefill, 1));
        }
        assert!(matches!(described(UNREADABLE, &auto).await, Err(DiscoveryError::Role)));
        for failed in [&[("/metrics", 500)][..], &[("/kv_event_sources", 503)]] {
            let found = described_at(refusing(VLLM, failed).await, &auto).await;
            assert!(matches!(found, Err(DiscoveryError::Ask(_))), "{failed:?} {found:?}");
        }
        let closed = described_at(refusing(VLLM, &[("/metrics", 403)]).await, &auto).await.unwrap();
        assert_eq!(closed.dialect, Dialect::Vllm, "a proxy in front of it keeps them to itself");
    });
}

/// What each engine tells of how many requests its ranks run at once. The recorded servers do not
/// tell.
#[test]
fn declared_capacity_is_found_where_engines_tell_it() {
    const SETTLED: Answers = &[
        ("/v1/models", recorded!("sglang-0.5.23/models.json")),
        (
            "/server_info",
            r#"{"model_path":"m","page_size":4,"dp_size":2,"enable_dp_attention":true,"max_running_requests":64,
            "internal_states":[{"effective_max_running_requests_per_dp":32},{"effective_max_running_requests_per_dp":31}]}"#,
        ),
        ("/v1/loads", r#"{"loads":[{"dp_rank":0,"max_running_requests":9}]}"#),
    ];
    const LOADS: Answers = &[
        ("/v1/models", recorded!("sglang-0.5.23/models.json")),
        ("/server_info", recorded!("sglang-0.5.23/server_info.json")),
        ("/v1/loads", r#"{"loads":[{"dp_rank":0,"max_running_requests":48}]}"#),
    ];
    const DEVELOPED: Answers = &[
        ("/v1/models", recorded!("vllm-0.32.0/models.json")),
        ("/metrics", recorded!("vllm-rs-0.33.0/metrics.txt")),
        ("/server_info", r#"{"vllm_config":{"scheduler_config":{"max_num_seqs":128}}}"#),
    ];
    const LLAMA: Answers = &[
        ("/v1/models", r#"{"data":[{"id":"g","owned_by":"llamacpp"}]}"#),
        ("/props", r#"{"total_slots":4}"#),
    ];
    const NOT_LLAMA: Answers =
        &[("/v1/models", r#"{"data":[{"id":"g"}]}"#), ("/props", r#"{"total_slots":4}"#)];
    block_on_local(async {
        for (answers, wanted) in [
            (VLLM, &[None, None][..]),
            (VLLM_RUST, &[None, None]),
            (SGLANG, &[None]),
            (SETTLED, &[Some(32), Some(31)]),
            (LOADS, &[Some(48)]),
            (DEVELOPED, &[Some(128), Some(128)]),
            (LLAMA, &[Some(4)]),
            (NOT_LLAMA, &[None]),
        ] {
            let found = described(answers, &WorkerConfig::default()).await.unwrap();
            let told: Vec<_> = found.ranks.iter().map(|rank| rank.running_max).collect();
            assert_eq!(told, wanted, "{:?}", found.dialect);
        }
    });
}

#[test]
fn health_asks_the_cheapest_question_of_each_engine() {
    block_on_local(async {
        for (answers, dialect, well) in [
            (VLLM, Dialect::Vllm, true),
            (SGLANG, Dialect::Sglang, true),
            (PLAIN, Dialect::Openai, true),
            (&[], Dialect::Openai, false),
            (&[], Dialect::Sglang, false),
        ] {
            let asker = asker(fake(answers).await);
            assert_eq!(check_health(&asker, None, dialect).await.is_ok(), well);
        }
    });
}

#[test]
fn the_workers_own_settings_win() {
    block_on_local(async {
        let config = WorkerConfig {
            kv_events: vec!["tcp://*:7000".to_owned()],
            kv_topic: "kv".to_owned(),
            ranks: Some(3),
            models: vec!["tiny".to_owned(), "alias".to_owned()],
            block_size_tokens: Some(8),
            ..WorkerConfig::default()
        };
        let described = described(VLLM, &config).await.unwrap();
        assert_eq!(
            streams(&described),
            ["tcp://gpu1:7000 kv", "tcp://gpu1:7001 kv", "tcp://gpu1:7002 kv"]
        );
        assert!(described.ranks.iter().all(|rank| rank.block_size_tokens == 8));
        assert_eq!(names(&described), ["tiny", "alias"]);
        assert!(described.models[0].root.is_some(), "what is known of a configured name is kept");
    });
    let url = WorkerUrl::parse("http://gpu1:8000").unwrap();
    let config = WorkerConfig::default();
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    let engine = EngineKind::Auto;
    let subject = Subject { config: &config, engine, url: &url, ip, taken_ports: &[] };
    let assumed = assume(subject).unwrap();
    assert_eq!((assumed.models.len(), assumed.ranks.len()), (0, 1));
}

#[test]
fn odd_answers_are_survived() {
    assert!(read_models("[]").is_none());
    assert_eq!(read_models(r#"{"data":[1,{"id":2},{"id":"x"}]}"#).unwrap().models.len(), 1);
    assert!(read_sglang_info("nonsense", "h").is_none());
    let info =
        read_sglang_info(r#"{"dp_size":4000000000,"page_size":-1,"kv_events":7}"#, "h").unwrap();
    assert_eq!(info.ranks.len(), forebay_base::limits::RANKS_MAX);
    let ranks = ranks_of_vllm_metrics("vllm:num_requests_running{engine=\"4000000000\"} 1\n");
    assert_eq!(ranks.len(), 1);
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    assert!(events_of_vllm("{\"x\":{},\"99999999\":{}}", "h", ip).is_empty());
    let off = r#"{"0":{"enable_kv_cache_events":false,"endpoint":"tcp://*:1"},"1":{"enable_kv_cache_events":true,
        "publisher":"null","endpoint":"tcp://*:1"}}"#;
    assert_eq!(events_of_vllm(off, "h", ip), [(0, None), (1, None)].into());
    let rust = r#"{"frontend":"rust","dp_size":2,"page_size":1}"#;
    assert!(read_sglang_info(rust, "h").unwrap().port_per_rank);
    let tiered = r#"{"page_size":64,"enable_hierarchical_cache":true}"#;
    assert!(read_sglang_info(tiered, "h").unwrap().ranks[0].expects_tiers);
    assert!(!read_sglang_info(rust, "h").unwrap().ranks[0].expects_tiers);
}

pub(super) const SEED: KeySeed = KeySeed(3);

pub(super) fn config(urls: &[&str]) -> Config {
    let worker = |url: &&str| WorkerConfig { url: (*url).to_owned(), ..WorkerConfig::default() };
    Config { workers: urls.iter().map(worker).collect(), ..Config::default() }
}

/// The control plane on its own thread, with shards that a test plays.
struct Plane {
    admin: SocketAddr,
    stop: tokio::sync::watch::Sender<bool>,
    shards: Vec<ShardEnd>,
    ended: mpsc::Receiver<Result<(), ControlError>>,
}

impl Plane {
    fn start(config: Config) -> Self {
        let wakes =
            (0..2).map(|_| std::fs::File::options().write(true).open("/dev/null").unwrap().into());
        let (end, shards) = wire(wakes.collect());
        let admin = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        admin.set_nonblocking(true).unwrap();
        let address = admin.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let (index, _slices) = forebay_index::index(2, SEED, 1 << 20);
        let setup = ControlSetup {
            config: Arc::new(config),
            clock: Clock::start(),
            seed: SEED,
            snapshot: None,
            end,
            board: Arc::new(LoadBoard::new()),
            index,
            admin,
            admin_token: None,
            stopped,
            signals: false,
            reloader: None,
            feed_timers: forebay_kv_events::FeedTimers::default(),
        };
        let (tell, ended) = mpsc::channel();
        std::thread::spawn(move || {
            tell.send(run(setup)).unwrap();
        });
        Self { admin: address, stop, shards, ended }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let out = Rc::new(RefCell::new((0, String::new())));
        let shared = Rc::clone(&out);
        let url = format!("http://{}{path}", self.admin);
        block_on_local(async move {
            let response = reqwest::Client::builder()
                .no_proxy()
                .build()
                .unwrap()
                .get(url)
                .send()
                .await
                .unwrap();
            let status = response.status().as_u16();
            *shared.borrow_mut() = (status, response.text().await.unwrap());
        });
        out.take()
    }

    /// All its shards drain, and it ends with them.
    fn end(mut self) {
        self.stop.send(true).unwrap();
        for shard in &mut self.shards {
            drain_of(poll(|| shard.commands.pop()));
            shard.counters.set_phase(ShardPhase::Ended);
        }
        self.ended.recv_timeout(Duration::from_secs(5)).unwrap().unwrap();
    }

    fn snapshot_until(
        &mut self,
        shard: usize,
        done: impl Fn(&FleetSnapshot) -> bool,
    ) -> Arc<FleetSnapshot> {
        poll(|| self.shards[shard].fleet.take().filter(|snapshot| done(snapshot)))
    }
}

fn poll<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1_000 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("did not happen within 10 s");
}

/// A worker for tests outside of any runtime; it serves until the process ends.
fn background_worker(answers: Answers) -> SocketAddr {
    let (tell, address) = mpsc::channel();
    std::thread::spawn(move || {
        block_on_local(async move {
            tell.send(fake(answers).await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    address.recv().unwrap()
}

fn is_up(snapshot: &FleetSnapshot) -> bool {
    snapshot.workers.iter().all(|worker| worker.state == WorkerState::Up)
}

#[test]
fn the_plane_finds_its_workers_answers_questions_and_drains() {
    let worker = background_worker(VLLM_RUST);
    let mut config = config(&[&format!("http://{worker}")]);
    config.health.interval = Duration::from_millis(50);
    config.timeouts.drain = Duration::from_secs(60);
    let mut plane = Plane::start(config);
    let snapshot = plane.snapshot_until(0, is_up);
    assert_eq!(snapshot.model("tiny").unwrap().1.ranks.len(), 2);
    assert_eq!(snapshot.workers[0].address, worker);
    plane.snapshot_until(1, is_up);

    assert_eq!(plane.get("/healthz").0, 200);
    let (status, body) = plane.get("/readyz");
    assert_eq!(status, 503);
    assert!(body.contains("0 of 2 shards listen"), "{body}");
    for shard in &plane.shards {
        shard.counters.set_phase(ShardPhase::Listening);
    }
    assert_eq!(plane.get("/readyz").0, 200);

    let mut measured = StageHistograms::new();
    measured.record(Stage::Dispatch, 30_000);
    plane.shards[0].counters.answered(0, 200);
    plane.shards[1].counters.answered(0, 200);
    plane.shards[1].counters.refused(3, 0, Some(true), 0);
    plane.shards[1].counters.overlap_error(-2);
    plane.shards[0].histograms.push(Box::new(measured)).unwrap();
    let metrics = poll(|| {
        let text = plane.get("/metrics").1;
        text.contains("stage_seconds_count{stage=\"dispatch\"} 1").then_some(text)
    });
    for line in [
        "forebay_requests_total{endpoint=\"chat_completions\",code=\"200\"} 2",
        "forebay_rejected_total{reason=\"unknown-model\",endpoint=\"chat_completions\",model=\"tiny\",type=\"stream\"} 1",
        &format!("forebay_in_flight{{worker=\"{worker}\",dp_rank=\"1\"}} 0"),
        &format!("forebay_worker_up{{worker=\"{worker}\",engine=\"vllm\"}} 1"),
        "forebay_stage_seconds_bucket{stage=\"dispatch\",le=\"0.00002\"} 0",
        "forebay_stage_seconds_bucket{stage=\"dispatch\",le=\"0.00005\"} 1",
        "forebay_overlap_error_blocks_bucket{le=\"1\"} 0",
        "forebay_overlap_error_blocks_bucket{le=\"2\"} 1",
        "forebay_overlap_error_blocks_sum 2",
        "forebay_kv_batches_total{result=\"applied\"} 0",
        "forebay_index_entries ",
        "forebay_broken_invariants_total ",
    ] {
        assert!(metrics.lines().any(|have| have.starts_with(line)), "{line}\n{metrics}");
    }
    let (_, workers) = plane.get("/workers");
    assert!(workers.contains("\"dp_rank\":1") && workers.contains("\"state\":\"up\""), "{workers}");
    assert_eq!(plane.get("/nonsense").0, 404);

    plane.stop.send(true).unwrap();
    for shard in &mut plane.shards {
        let deadline = drain_of(poll(|| shard.commands.pop()));
        assert!(deadline.0 > 50_000_000_000, "{deadline:?}");
        shard.counters.set_phase(ShardPhase::Draining);
    }
    let (status, body) = plane.get("/readyz");
    assert!(status == 503 && body.contains("draining"), "{body}");
    plane.stop.send(true).unwrap();
    for shard in &mut plane.shards {
        let deadline = drain_of(poll(|| shard.commands.pop()));
        assert!(deadline.0 < 50_000_000_000, "the second request cuts: {deadline:?}");
        shard.counters.set_phase(ShardPhase::Ended);
    }
    plane.ended.recv_timeout(Duration::from_secs(5)).unwrap().unwrap();
}

#[test]
fn a_shard_that_ends_by_itself_drains_the_others_and_ends_the_plane_with_an_error() {
    let mut plane = Plane::start(config(&["http://127.0.0.1:1"]));
    plane.shards[0].counters.set_phase(ShardPhase::Listening);
    plane.shards[1].counters.set_phase(ShardPhase::Ended);
    let told = poll(|| plane.shards[0].commands.pop());
    assert!(drain_of(told).0 > 0);
    let (status, body) = plane.get("/readyz");
    assert!(status == 503 && body.contains("1 ended by a fault"), "{body}");
    plane.shards[0].counters.set_phase(ShardPhase::Ended);
    let ended = plane.ended.recv_timeout(Duration::from_secs(5)).unwrap();
    assert!(matches!(ended, Err(ControlError::ShardEnded { ended: 1, shards: 2 })), "{ended:?}");
}

fn drain_of(command: ShardCommand) -> NanosSinceStart {
    match command {
        ShardCommand::Drain { deadline } => deadline,
        #[cfg(debug_assertions)]
        other @ ShardCommand::Plant(_) => panic!("{other:?}"),
    }
}

#[test]
fn what_an_engine_reports_of_its_load_reaches_shards_metrics_and_list() {
    let worker = background_worker(VLLM_RUST);
    let mut config = config(&[&format!("http://{worker}")]);
    config.health.interval = Duration::from_millis(50);
    let mut plane = Plane::start(config);
    for shard in &mut plane.shards {
        let reports = [poll(|| shard.reports.pop()), poll(|| shard.reports.pop())];
        assert_eq!(reports.map(|report| report.rank), [RankIndex(0), RankIndex(1)]);
    }
    let metrics = plane.get("/metrics").1;
    for line in [
        &format!("forebay_reported_running{{worker=\"{worker}\",dp_rank=\"1\"}} 0"),
        &format!("forebay_reported_kv_usage{{worker=\"{worker}\",dp_rank=\"0\"}} 0"),
        &format!("forebay_load_report_age_seconds{{worker=\"{worker}\",dp_rank=\"0\"}} "),
        "forebay_load_scrape_seconds_count ",
        "forebay_load_reports_dropped_total 0",
    ] {
        assert!(metrics.lines().any(|have| have.starts_with(line)), "{line}\n{metrics}");
    }
    let (_, workers) = plane.get("/workers");
    assert!(workers.contains("\"load_source\":\"metrics\""), "{workers}");
    assert!(workers.contains("\"foreign_requests\":0"), "{workers}");
    plane.end();
}

/// Publishes the load of an SGLang rank until the process ends; returns its port.
fn background_load_publisher() -> u16 {
    use zeromq::{Socket, SocketSend};
    let (tell, place) = mpsc::channel();
    std::thread::spawn(move || {
        block_on_local(async move {
            let mut socket = zeromq::PubSocket::new();
            tell.send(socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string()).unwrap();
            // Twelve run, three wait, 40,960 of 262,144 tokens are in use.
            let payload = b"\x96\xa8LoadStat\x0c\x03\xcd\xa0\x00\xce\x00\x04\x00\x00\xc0";
            for number in 0_u64.. {
                let mut message = zeromq::ZmqMessage::from("load");
                message.push_back(number.to_be_bytes().to_vec().into());
                message.push_back(payload.to_vec().into());
                socket.send(message).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    });
    place.recv().unwrap().rsplit(':').next().unwrap().parse().unwrap()
}

#[test]
fn what_sglang_publishes_of_its_load_is_found_and_followed() {
    let info = serde_json::json!({ "model_path": "m", "kv_events": {
        "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 9, "block_size": 4,
        "load_endpoint_port_base": background_load_publisher(), "load_topic": "load",
    }});
    let mut answers = vec![("/server_info", &*info.to_string().leak())];
    answers.extend(SGLANG.iter().filter(|(path, _)| *path != "/server_info"));
    let worker = background_worker(answers.leak());
    let mut plane = Plane::start(config(&[&format!("http://{worker}")]));
    for shard in &mut plane.shards {
        let report = poll(|| shard.reports.pop());
        assert_eq!((report.running, report.waiting, report.kv_permille), (12, 3, Some(156)));
        assert_eq!(report.foreign.requests, 15, "none is ours");
    }
    assert!(plane.get("/workers").1.contains("\"load_source\":\"push\""));
    plane.end();
}

#[test]
fn without_health_checks_workers_are_up_at_once() {
    let mut config = config(&["http://127.0.0.1:9"]);
    config.health = HealthConfig { enabled: false, ..config.health };
    let mut plane = Plane::start(config);
    let snapshot = plane.snapshot_until(0, is_up);
    assert_eq!(snapshot.model(ANY_MODEL).unwrap().1.ranks, [RankIndex(0)]);
    assert_eq!(snapshot.workers[0].address, "127.0.0.1:9".parse().unwrap());
    plane.end();
}

/// Serves until told to stop, on a port that can be had again.
struct Mortal {
    stop: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

fn mortal_worker(address: SocketAddr, answers: Answers) -> (Mortal, SocketAddr) {
    let (tell, bound) = mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        block_on_local(async move {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(address).unwrap();
            let listener = socket.listen(16).unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let app = Router::new().fallback(move |uri: Uri| async move {
                let known = answers.iter().find(|(path, _)| *path == uri.path());
                known.map_or((StatusCode::NOT_FOUND, ""), |(_, body)| (StatusCode::OK, *body))
            });
            let serving = tokio::task::spawn_local(async move { axum::serve(listener, app).await });
            let _ = stopped.await;
            serving.abort();
        });
    });
    (Mortal { stop, thread }, bound.recv().unwrap())
}

#[test]
fn a_worker_that_dies_and_returns_as_another_is_described_again() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (first, address) = mortal_worker(any, VLLM);
    let mut config = config(&[&format!("http://{address}")]);
    config.health.interval = Duration::from_millis(30);
    let mut plane = Plane::start(config);
    let up = plane.snapshot_until(0, is_up);
    assert!(up.model("tiny").is_some());
    first.stop.send(()).unwrap();
    first.thread.join().unwrap();
    plane.snapshot_until(0, |snapshot| snapshot.workers[0].state == WorkerState::Down);
    let (second, _) = mortal_worker(address, PLAIN);
    let up = plane.snapshot_until(0, is_up);
    assert_eq!(up.model("a").unwrap().1.ranks, [RankIndex(0)], "described before it takes traffic");
    assert!(up.model("tiny").unwrap().1.ranks.is_empty());
    second.stop.send(()).unwrap();
    second.thread.join().unwrap();
    plane.end();
}

/// Publishes the same stored blocks again and again, as engine of its own life, until the process
/// ends.
fn background_publisher(tokens: &'static [u8]) -> String {
    use zeromq::{Socket, SocketSend};
    let (tell, place) = mpsc::channel();
    std::thread::spawn(move || {
        block_on_local(async move {
            let mut socket = zeromq::PubSocket::new();
            tell.send(socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string()).unwrap();
            // [0.0, [["BlockStored", [1], nil, tokens, 4]]]
            let mut payload = vec![0x92, 0xca, 0, 0, 0, 0, 0x91, 0x95, 0xab];
            payload.extend_from_slice(b"BlockStored");
            payload.extend_from_slice(&[0x91, 1, 0xc0, 0x94]);
            payload.extend_from_slice(tokens);
            payload.push(4);
            for number in 0_u64.. {
                let mut message = zeromq::ZmqMessage::from("");
                message.push_back(number.to_be_bytes().to_vec().into());
                message.push_back(payload.clone().into());
                socket.send(message).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    });
    place.recv().unwrap()
}

/// Answers of a vLLM worker whose events come from there.
fn with_events(place: &str) -> Answers {
    let sources = serde_json::json!({"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": place}});
    let mut answers = VLLM_RUST.to_vec();
    answers.push(("/kv_event_sources", sources.to_string().leak()));
    answers.leak()
}

/// Index operations of either slice, with the slice.
fn next_op(shards: &mut [ShardEnd]) -> (usize, KvOp) {
    poll(|| {
        shards.iter_mut().enumerate().find_map(|(slice, shard)| {
            let batch = shard.kv.pop()?;
            assert_eq!((batch.rank, batch.ops.len()), (RankIndex(0), 1));
            Some((slice, batch.ops[0]))
        })
    })
}

#[test]
fn events_reach_the_slices_and_a_moved_feed_takes_its_blocks_along() {
    let (old, new) = (background_publisher(&[1, 2, 3, 4]), background_publisher(&[5, 6, 7, 8]));
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (first, address) = mortal_worker(any, with_events(&old));
    let mut config = config(&[&format!("http://{address}")]);
    config.health.interval = Duration::from_millis(30);
    config.model_dir = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer").into());
    let mut plane = Plane::start(config);
    let up = plane.snapshot_until(0, |s| {
        is_up(s) && s.ranks[0].kv_feed_live && s.ranks[0].block_size_tokens == 4
    });
    let model = up.model("tiny").unwrap().1;
    assert!(model.text.is_some());
    let (slice, op) = next_op(&mut plane.shards);
    let KvOp::Store { parent, key: stored, .. } = op else { panic!("{op:?}") };
    assert!(model.roots.iter().any(|root| root.key == parent), "rooted where prompts are");
    assert_eq!(slice, forebay_index::slice_of(stored, 2).index());

    // The worker comes back with its events elsewhere.
    first.stop.send(()).unwrap();
    first.thread.join().unwrap();
    plane.snapshot_until(0, |snapshot| snapshot.workers[0].state == WorkerState::Down);
    let (second, _) = mortal_worker(address, with_events(&new));
    // The other slice may have the store already, which came later.
    let removed = poll(|| plane.shards[slice].kv.pop());
    assert_eq!(removed.ops, [KvOp::Remove { key: stored }]);
    let (_, op) = next_op(&mut plane.shards);
    assert!(matches!(op, KvOp::Store { key, .. } if key != stored), "{op:?}");
    second.stop.send(()).unwrap();
    second.thread.join().unwrap();
    plane.end();
}
