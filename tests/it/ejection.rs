//! O4: ranks that stand still, or are far slower than their pool, get no requests. They come back.

use crate::rig::{
    Client, Reply, Worker, admin, any_port, config, metric, post, router, until, usable,
};
use forebay::config::{Config, EngineKind, Policy, QueueMode, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const STALLED: &str = r#""ejected":"stalled""#;

/// An engine whose HTTP server answers checks, and sends the heads of answers. Bodies follow unless
/// it hangs.
struct Hangs {
    worker: Worker,
    hangs: Arc<AtomicBool>,
    drips: Arc<AtomicBool>,
}

impl Hangs {
    fn start() -> Self {
        let hangs = Arc::new(AtomicBool::new(false));
        let drips = Arc::new(AtomicBool::new(true));
        let is_hung = Arc::clone(&hangs);
        let drip = Arc::clone(&drips);
        let worker = Worker::start(move |seen, stream| {
            if seen.head.starts_with("GET") {
                let models = r#"{"data":[{"id":"m"}]}"#;
                let length = models.len();
                let page = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{models}");
                return stream.write_all(page.as_bytes()).is_ok();
            }
            let waits = || is_hung.load(Ordering::SeqCst);
            let is_long = String::from_utf8_lossy(&seen.body).contains("DRIP");
            stream.write_all(HEAD).unwrap();
            while waits() {
                std::thread::sleep(Duration::from_millis(5));
            }
            while is_long && drip.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20));
                if stream.write_all(b"9\r\ndata: y\n\n\r\n").is_err() {
                    return false;
                }
            }
            stream.write_all(b"9\r\ndata: x\n\n\r\n0\r\n\r\n").is_ok()
        });
        Self { worker, hangs, drips }
    }

    fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    fn name(&self) -> String {
        self.worker.address.to_string()
    }
}

fn quick(config: &mut Config) {
    config.health.enabled = true;
    config.health.interval = Duration::from_millis(50);
    config.health.timeout = Duration::from_millis(200);
    config.health.stall_timeout = Duration::from_millis(1_500);
    config.breaker.open = Duration::from_millis(100);
    config.timeouts.drain = Duration::ZERO;
}

fn pair_of(change: impl FnOnce(&mut Config)) -> ([Hangs; 2], ServerHandle) {
    let engines = [Hangs::start(), Hangs::start()];
    let mut config = config(&[&engines[0].worker, &engines[1].worker]);
    config.workers.iter_mut().for_each(|worker| worker.engine = Some(EngineKind::Openai));
    quick(&mut config);
    change(&mut config);
    let handle = router(config);
    until("both are up", || usable(&handle) == 2);
    (engines, handle)
}

fn stream(address: SocketAddr, prompt: &str) -> Client {
    let body = format!(r#"{{"model":"m","prompt":"{prompt}","max_tokens":1,"stream":true}}"#);
    let mut client = Client::connect(address);
    client.send(&post("/v1/completions", body.as_bytes()));
    client
}

fn ok(reply: &Reply) -> String {
    assert_eq!((reply.status, reply.complete), (200, true), "{}", reply.text());
    reply.field("x-forebay-worker").expect("named").to_owned()
}

fn shows(handle: &ServerHandle, what: &str) -> bool {
    admin(handle, "/workers").text().contains(what)
}

fn ejections(handle: &ServerHandle, reason: &str) -> f64 {
    let text = admin(handle, "/metrics").text();
    let of_reason = format!("reason=\"{reason}\"");
    let lines = text.lines().filter(|line| line.starts_with("forebay_rank_ejections_total{"));
    let lines = lines.filter(|line| line.contains(&of_reason));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

#[test]
fn an_engine_that_hangs_loses_its_requests_and_comes_back_when_it_answers() {
    let ([ill, well], handle) = pair_of(|config| config.retry.after_send = true);
    ill.hang(true);
    let mut clients: Vec<Client> = (0..6).map(|_| stream(handle.listen, "hi")).collect();
    for client in &mut clients {
        assert_eq!(ok(&client.reply()), well.name());
    }
    assert!(shows(&handle, STALLED));
    assert_eq!(usable(&handle), 2, "its checks pass all the while");
    assert!(ejections(&handle, "stalled") >= 1.0);
    assert_eq!(ejections(&handle, "slow").to_bits(), 0_f64.to_bits());
    ill.hang(false);
    until("a trial brings it back", || {
        ok(&stream(handle.listen, "hi").reply());
        !shows(&handle, STALLED)
    });
    let names: Vec<String> = (0..4).map(|_| ok(&stream(handle.listen, "hi").reply())).collect();
    assert!(names.contains(&ill.name()) && names.contains(&well.name()), "{names:?}");
}

#[test]
fn what_waits_for_a_hung_rank_in_the_router_goes_elsewhere_and_what_was_sent_stays() {
    let ([ill, well], handle) = pair_of(|config| {
        config.flow.rank_concurrency_max = Some(1);
        config.flow.queue.mode = QueueMode::Endpoint;
        config.flow.queue.stale_after = Duration::from_secs(600);
    });
    let depth = |count: f64| metric(&handle, "forebay_queue_depth").to_bits() == count.to_bits();
    ill.hang(true);
    // One is sent to each, and one more waits for each. Streams of the one that is well move.
    let mut clients: Vec<Client> = (0..4).map(|_| stream(handle.listen, "DRIP")).collect();
    until("two wait", || depth(2.0));
    until("it stands still", || shows(&handle, STALLED));
    well.drips.store(false, Ordering::SeqCst);
    until("both have gone on", || depth(0.0));
    ill.drips.store(false, Ordering::SeqCst);
    ill.hang(false);
    let names: Vec<String> = clients.iter_mut().map(|client| ok(&client.reply())).collect();
    assert_eq!(names.iter().filter(|name| **name == ill.name()).count(), 1, "{names:?}");
}

#[test]
fn a_busy_engine_is_not_ejected() {
    let ([busy, _well], handle) = pair_of(|config| config.retry.after_send = true);
    let mut moving: Vec<Client> = (0..2).map(|_| stream(handle.listen, "DRIP")).collect();
    moving.iter_mut().for_each(|client| client.until_body(b"data: y"));
    // Those that come now wait, while the stream from before moves.
    busy.hang(true);
    let mut waits: Vec<Client> = (0..4).map(|_| stream(handle.listen, "hi")).collect();
    // Twice `stall_timeout`.
    for _ in 0..150 {
        moving.iter_mut().for_each(|client| client.until_body(b"data: y"));
    }
    assert!(!shows(&handle, STALLED));
    busy.hang(false);
    waits.iter_mut().for_each(|client| drop(ok(&client.reply())));
}

fn engine(prefill_tokens_per_s: f64) -> EngineHandle {
    let text = EngineText::load(None).expect("the built-in tokenizer");
    let config = EngineConfig {
        listen: any_port(),
        prefill_tokens_per_s,
        itl_ms: 1.0,
        prefix_caching: false,
        ..EngineConfig::default()
    };
    Engine::start_with(config, text).expect("the engine starts")
}

fn before(engines: &[EngineHandle], change: impl FnOnce(&mut Config)) -> ServerHandle {
    let worker =
        |engine: &EngineHandle| WorkerConfig { url: engine.url(), ..WorkerConfig::default() };
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0],
        policy: Policy::RoundRobin,
        workers: engines.iter().map(worker).collect(),
        ..Config::default()
    };
    quick(&mut config);
    config.health.timeout = Duration::from_secs(1);
    config.load.interval = Duration::from_millis(100);
    config.load.back_off = false;
    change(&mut config);
    let handle = router(config);
    until("all are up", || usable(&handle) == engines.len());
    handle
}

fn sim_stream(handle: &ServerHandle) -> Client {
    let body = r#"{"model":"sim","prompt":"one and two and three","max_tokens":2,"stream":true}"#;
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", body.as_bytes()));
    client
}

#[test]
fn reports_that_repeat_themselves_do_not_keep_a_hung_engine() {
    let engines = [engine(1e6), engine(1e6)];
    let handle = before(&engines, |config| config.retry.after_send = true);
    let mut order = Client::connect(engines[0].addr());
    order.send(&post("/debug/stall?ms=600000", b""));
    assert_eq!(order.reply().status, 200);
    let well = engines[1].addr().to_string();
    let mut clients: Vec<Client> = (0..6).map(|_| sim_stream(&handle)).collect();
    for client in &mut clients {
        assert_eq!(ok(&client.reply()), well);
    }
    assert!(shows(&handle, STALLED));
    assert!(metric(&handle, "forebay_load_scrape_seconds_count") > 10.0, "reports come");
}

#[test]
fn a_slow_engine_is_left_and_comes_back() {
    let engines = [engine(40.0), engine(1e6), engine(1e6)];
    let handle = before(&engines, |config| {
        config.health.slow_factor = 8;
        config.health.slow_after = Duration::from_millis(500);
    });
    let slow = engines[0].addr().to_string();
    let is_out = || shows(&handle, r#""ejected":"slow""#);
    let mut asked = Vec::new();
    until("it is ejected", || {
        if asked.len() < 300 {
            asked.push(sim_stream(&handle));
        }
        std::thread::sleep(Duration::from_millis(20));
        is_out()
    });
    let names: Vec<String> = (0..8).map(|_| ok(&sim_stream(&handle).reply())).collect();
    assert!(is_out() || ejections(&handle, "slow") >= 1.0);
    assert!(!names.contains(&slow), "{names:?}");
    until("it comes back", || !is_out());
    until("it is asked again", || ok(&sim_stream(&handle).reply()) == slow);
}

#[test]
fn the_last_of_a_model_stays() {
    let ill = Hangs::start();
    let mut config = config(&[&ill.worker]);
    config.workers[0].engine = Some(EngineKind::Openai);
    quick(&mut config);
    config.health.stall_timeout = Duration::from_millis(300);
    let handle = router(config);
    until("it is up", || usable(&handle) == 1);
    ill.hang(true);
    let mut client = stream(handle.listen, "hi");
    std::thread::sleep(Duration::from_millis(1_000));
    let list: Value = serde_json::from_slice(&admin(&handle, "/workers").body).unwrap();
    assert_eq!(list["workers"][0]["ranks"][0]["ejected"], Value::Null);
    ill.hang(false);
    ok(&client.reply());
}
