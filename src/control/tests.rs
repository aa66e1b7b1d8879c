//! The whole plane with shards that only listen.

use super::test_config::{SEED, config};
use super::{ControlError, ControlSetup, HandoverSetup, TlsSetup, run};
use axum::Router;
use axum::http::{StatusCode, Uri};
use forebay_admin::{Access, AdminSocket};
use forebay_base::{Clock, NanosSinceStart, RankIndex, RouterId};
use forebay_board::LoadBoard;
use forebay_board::account::{ShardPhase, Stage, StageHistograms};
use forebay_config::{Config, HealthConfig};
use forebay_discovery::test_support::{Answers, PLAIN, SGLANG, VLLM, VLLM_RUST, fake};
use forebay_fleet::worker::{ANY_MODEL, FleetSnapshot, WorkerState};
use forebay_index::KvOp;
use forebay_kv_events::test_support::block_on_local;
use forebay_mailbox::{ShardCommand, ShardEnd, wire};
use forebay_prompt::parse::Reason;
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

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
            handover: HandoverSetup::default(),
            config: Arc::new(config),
            clock: Clock::start(),
            router_id: RouterId::from_random(1),
            seed: SEED,
            snapshot: None,
            end,
            board: Arc::new(LoadBoard::new()),
            index,
            admin: AdminSocket::Tcp(admin),
            tls: TlsSetup::default(),
            admin_tls: None,
            callers: None,
            access: Access::default(),
            api_keys: None,
            stopped,
            signals: false,
            reloader: None,
            feed_timers: forebay_kv_events::FeedTimers::default(),
            log_dropped: || 0,
        };
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            sender.send(run(setup)).unwrap();
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
    let (sender, address) = mpsc::channel();
    std::thread::spawn(move || {
        block_on_local(async move {
            sender.send(fake(answers).await).unwrap();
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
    assert!(body.contains("shards that listen: 0 of 2"), "{body}");
    for shard in &plane.shards {
        shard.counters.set_phase(ShardPhase::Listening);
    }
    assert_eq!(plane.get("/readyz").0, 200);

    let mut measured = StageHistograms::new();
    measured.record(Stage::Dispatch, 30_000);
    plane.shards[0].counters.answered(0, 200);
    plane.shards[1].counters.answered(0, 200);
    plane.shards[1].counters.refused(Reason::UnknownModel as usize, 0, Some(true), 0);
    plane.shards[1].counters.overlap_error(-2);
    plane.shards[0].to_control.histograms.push(Box::new(measured)).unwrap();
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
    let command = poll(|| plane.shards[0].commands.pop());
    assert!(drain_of(command).0 > 0);
    let (status, body) = plane.get("/readyz");
    assert!(status == 503 && body.contains("1 ended by a fault"), "{body}");
    plane.shards[0].counters.set_phase(ShardPhase::Ended);
    let ended = plane.ended.recv_timeout(Duration::from_secs(5)).unwrap();
    assert!(matches!(ended, Err(ControlError::ShardEnded { ended: 1, shards: 2 })), "{ended:?}");
}

fn drain_of(command: ShardCommand) -> NanosSinceStart {
    match command {
        ShardCommand::Drain(order) => order.deadline,
        other => panic!("{other:?}"),
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
    let (sender, place) = mpsc::channel();
    std::thread::spawn(move || {
        block_on_local(async move {
            let mut socket = zeromq::PubSocket::new();
            sender.send(socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string()).unwrap();
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

/// A server that a test can stop, on a port that can be bound again.
struct StoppableServer {
    stop: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

fn mortal_worker(address: SocketAddr, answers: Answers) -> (StoppableServer, SocketAddr) {
    let (sender, bound) = mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        block_on_local(async move {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(address).unwrap();
            let listener = socket.listen(16).unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let app = Router::new().fallback(move |uri: Uri| async move {
                let known = answers.iter().find(|(path, _)| *path == uri.path());
                known.map_or((StatusCode::NOT_FOUND, ""), |(_, body)| (StatusCode::OK, *body))
            });
            let serving = tokio::task::spawn_local(async move { axum::serve(listener, app).await });
            let _ = stopped.await;
            serving.abort();
        });
    });
    (StoppableServer { stop, thread }, bound.recv().unwrap())
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
    let (sender, place) = mpsc::channel();
    std::thread::spawn(move || {
        block_on_local(async move {
            let mut socket = zeromq::PubSocket::new();
            sender.send(socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string()).unwrap();
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

/// Answers of a vLLM worker that publishes its events at `place`.
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
    let old = background_publisher(&[1, 2, 3, 4]);
    let new = background_publisher(&[5, 6, 7, 8]);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (first, address) = mortal_worker(any, with_events(&old));
    let mut config = config(&[&format!("http://{address}")]);
    config.health.interval = Duration::from_millis(30);
    config.model_dir =
        Some(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tokenizer").into());
    let mut plane = Plane::start(config);
    let up = plane.snapshot_until(0, |s| {
        is_up(s) && s.ranks[0].kv_feed_live && s.ranks[0].block_size_tokens == 4
    });
    let model = up.model("tiny").unwrap().1;
    assert!(model.text.is_some());
    let (slice, op) = next_op(&mut plane.shards);
    let KvOp::Store { parent, key: stored, .. } = op else { panic!("{op:?}") };
    assert!(model.roots.blocks.iter().any(|root| root.key == parent), "rooted where prompts are");
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
