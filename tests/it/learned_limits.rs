//! K3: engines that do not declare how many requests they run. The router learns it from their
//! metrics and says where its limit comes from.

use crate::rig::{Client, Reply, admin, any_port, metric, post, router, until, usable};
use forebay::config::{Config, Policy, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

/// Requests that the engine runs at once.
const PLACES: usize = 8;

/// An engine that answers in a fifth of a second, and the router in front of it.
fn start(change: impl FnOnce(&mut Config)) -> (EngineHandle, ServerHandle) {
    let text = EngineText::load(None).expect("the built-in tokenizer");
    let engine = EngineConfig {
        listen: any_port(),
        concurrency: PLACES,
        kv_blocks: 100_000,
        prefill_tokens_per_s: 1e6,
        itl_ms: 4.0,
        ..EngineConfig::default()
    };
    let engine = Engine::start_with(engine, text).expect("the engine starts");
    let worker = WorkerConfig { url: engine.url(), ..WorkerConfig::default() };
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0],
        policy: Policy::LeastLoaded,
        workers: vec![worker],
        ..Config::default()
    };
    config.load.interval = Duration::from_millis(100);
    config.load.back_off = false;
    change(&mut config);
    let handle = router(config);
    until("the worker is up", || usable(&handle) == 1);
    (engine, handle)
}

fn sent(address: SocketAddr, count: usize) -> Vec<Client> {
    let one = |number: usize| {
        let body = json!({
            "model": "sim", "prompt": format!("client {number}"), "max_tokens": 50, "stream": true,
        });
        let mut client = Client::connect(address);
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        client
    };
    (0..count).map(one).collect()
}

fn rank(handle: &ServerHandle) -> Value {
    let workers: Value = serde_json::from_str(&admin(handle, "/workers").text()).expect("JSON");
    workers["workers"][0]["ranks"][0].clone()
}

#[test]
fn a_limit_that_an_engine_does_not_declare_is_learned() {
    let (engine, handle) = start(|_| {});
    assert_eq!(rank(&handle)["concurrency_source"], "learned");
    assert_eq!(rank(&handle)["concurrency_max"], 0, "nothing has waited");
    let places = || metric(&handle, "forebay_rank_places_max{");
    let mut first = sent(handle.listen, 150);
    until("a limit is learned", || places() > 0.0);
    let mut second = sent(handle.listen, 150);
    let load = || engine.stats()[0].requests;
    until("what came first has been served", || load().waiting <= 2);
    let mut waiting = Vec::new();
    while metric(&handle, "forebay_queue_depth") > 0.0 {
        waiting.push(load().waiting);
        sleep(Duration::from_millis(10));
    }
    let sum = waiting.iter().sum::<usize>();
    let most = waiting.iter().max().copied();
    assert!(waiting.len() > 20 && sum <= 2 * waiting.len(), "{sum} of {}", waiting.len());
    // How late a load report comes is the host's matter: on a busy host 5 waited.
    assert!(most <= Some(10), "{most:?} waited at one time");
    assert!((9.0..=12.0).contains(&places()), "{} places", places());
    assert_eq!(metric(&handle, r#"forebay_rank_places_source{"#), 1.0);
    let replies: Vec<Reply> = first.iter_mut().chain(&mut second).map(Client::reply).collect();
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.complete));
}

#[test]
fn a_configured_0_is_no_limit_and_nothing_is_learned() {
    let (engine, handle) = start(|config| config.flow.rank_concurrency_max = Some(0));
    assert_eq!(rank(&handle)["concurrency_source"], "configured");
    let mut clients = sent(handle.listen, 150);
    let replies: Vec<Reply> = clients.iter_mut().map(Client::reply).collect();
    assert!(replies.iter().all(|reply| reply.status == 200));
    assert!(engine.stats()[0].requests.in_flight_peak > 4 * PLACES, "they waited in the engine");
    assert_eq!(metric(&handle, "forebay_rank_places_max{"), 0.0);
}
