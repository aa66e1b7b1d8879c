//! M2: a worker that looks healthy and fails requests has its status and what to do in each view,
//! from the first failed request until another process answers.

use crate::rig::{ASK, Client, Worker, admin, config, port_for_later, post, router, until, usable};
use forebay::config::{Config, EngineKind};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// An engine as a process: it can end, and another one can start at its address.
struct Engine {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// GET finds a healthy engine; POST gets `status`.
    fn start(address: SocketAddr, status: u16) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let serve = move || {
            while !ended.load(Ordering::SeqCst) {
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                let mut seen = [0; 16_384];
                let read = stream.read(&mut seen).unwrap_or(0);
                let list = r#"{"data":[{"id":"m"}]}"#;
                let is_get = seen[..read].starts_with(b"GET");
                let status = if is_get { 200 } else { status };
                let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
                let reply = format!("{head}content-length: {}\r\n\r\n{list}", list.len());
                let _ = stream.write_all(reply.as_bytes());
            }
        };
        Self { ends, thread: Some(std::thread::spawn(serve)) }
    }

    fn end(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn watching(workers: &[&Worker]) -> Config {
    let mut config = config(workers);
    config.health.enabled = true;
    config.health.interval = Duration::from_millis(30);
    config.health.unhealthy_after = 1_000;
    for worker in &mut config.workers {
        worker.engine = Some(EngineKind::Openai);
    }
    config
}

fn ask(handle: &ServerHandle) -> u16 {
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", ASK));
    client.reply().status
}

fn fault_of(handle: &ServerHandle, worker: usize) -> String {
    let workers: Value = serde_json::from_str(&admin(handle, "/workers").text()).unwrap();
    let fault = &workers["workers"][worker]["ranks"][0]["fault"];
    fault.as_str().unwrap_or_default().to_owned()
}

fn concerns(handle: &ServerHandle) -> String {
    let ready: Value = serde_json::from_str(&admin(handle, "/readyz").text()).unwrap();
    ready["concerns"].to_string()
}

#[test]
fn the_first_404_of_a_healthy_engine_is_in_its_state() {
    let address = port_for_later();
    let _engine = Engine::start(address, 404);
    let mut config = watching(&[]);
    config.workers = vec![forebay::config::WorkerConfig {
        url: format!("http://{address}"),
        engine: Some(EngineKind::Openai),
        ..Default::default()
    }];
    let handle = router(config);
    until("the worker is up", || usable(&handle) == 1);
    assert_eq!(fault_of(&handle, 0), "");
    assert_eq!(ask(&handle), 404);
    until("the state has the status", || fault_of(&handle, 0).contains("status 404"));
    let fault = fault_of(&handle, 0);
    assert!(fault.contains("compare GET /v1/models"), "{fault}");
    // A caller may be wrong: refusals are a concern only if nothing else comes for ten seconds.
    until("a concern", || {
        assert_eq!(ask(&handle), 404);
        std::thread::sleep(Duration::from_millis(500));
        concerns(&handle).contains("1 of 1 ranks fail requests")
    });
}

#[test]
fn a_pause_ends_with_the_process_that_failed() {
    let address = port_for_later();
    let mut engine = Engine::start(address, 404);
    let good = Worker::json(r#"{"data":[{"id":"m"}]}"#);
    let mut config = watching(&[&good]);
    let broken = forebay::config::WorkerConfig {
        url: format!("http://{address}"),
        engine: Some(EngineKind::Openai),
        ..Default::default()
    };
    config.workers.push(broken);
    config.breaker.open = Duration::from_hours(1);
    let handle = router(config);
    until("both workers are up", || usable(&handle) == 2);
    until("the rank is paused", || {
        let _ = ask(&handle);
        fault_of(&handle, 1).starts_with("paused: requests failed with status 404")
    });
    assert!(
        concerns(&handle).contains("1 of 2 ranks paused, requests failed there with 404: "),
        "{}",
        concerns(&handle)
    );
    engine.end();
    let refused = || std::net::TcpStream::connect(address).is_err();
    until("nothing listens", refused);
    std::thread::sleep(Duration::from_millis(300));
    let _next = Engine::start(address, 200);
    until("the next process begins without failures", || fault_of(&handle, 1).is_empty());
    assert!(!concerns(&handle).contains("paused"), "{}", concerns(&handle));
}

#[test]
fn a_wrong_endpoint_of_kv_events_is_a_concern_with_a_reason() {
    let worker = Worker::json(r#"{"data":[{"id":"m"}]}"#);
    let mut config = watching(&[&worker]);
    config.policy = forebay::config::Policy::Kv;
    let endpoint = format!("tcp://{}", port_for_later());
    config.workers[0].engine = Some(EngineKind::Vllm);
    config.workers[0].kv_events = vec![endpoint.clone()];
    let handle = router(config);
    until("a reason", || fault_of(&handle, 0).contains(&endpoint));
    let fault = fault_of(&handle, 0);
    assert!(fault.starts_with("no KV events") && fault.contains("correct `kv_events`"), "{fault}");
    assert!(concerns(&handle).contains("1 of 1 ranks have no KV events"), "{}", concerns(&handle));
}

/// M1: an engine that is gone explains its feed. Its health checks fail long before it is down, and
/// the help must not be to correct `kv_events`.
#[test]
fn an_engine_that_is_gone_is_no_fault_of_its_feed() {
    let address = port_for_later();
    let mut engine = Engine::start(address, 200);
    let mut config = watching(&[]);
    config.policy = forebay::config::Policy::Kv;
    config.workers = vec![forebay::config::WorkerConfig {
        url: format!("http://{address}"),
        engine: Some(EngineKind::Vllm),
        kv_events: vec![format!("tcp://{}", port_for_later())],
        ..Default::default()
    }];
    let handle = router(config);
    until("the feed has a fault", || fault_of(&handle, 0).contains("`kv_events`"));
    engine.end();
    until("the fault of the feed follows", || !fault_of(&handle, 0).contains("`kv_events`"));
    assert_eq!(usable(&handle), 1, "not down yet");
    assert!(!concerns(&handle).contains("KV events"), "{}", concerns(&handle));
    let _next = Engine::start(address, 200);
    until("the fault is of the feed again", || fault_of(&handle, 0).contains("`kv_events`"));
}
