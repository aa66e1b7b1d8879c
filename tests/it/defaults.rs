//! What the defaults do to clients that send everything at once, as benchmarks and batch jobs do.

use crate::rig::gate::Gate;
use crate::rig::{Client, Reply, any_port, config, metric, post, router, until, usable};
use forebay::config::{Config, Policy, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::server::ServerHandle;
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;

/// One engine behind a router without any key but its addresses.
fn behind_defaults(engine: EngineConfig) -> (EngineHandle, ServerHandle) {
    let text = EngineText::load(None).expect("the built-in tokenizer");
    let engine = Engine::start_with(engine, text).expect("the engine starts");
    let worker = WorkerConfig { url: engine.url(), ..WorkerConfig::default() };
    let listen = any_port();
    let admin = any_port();
    let config =
        Config { listen, admin, cores: vec![0], workers: vec![worker], ..Config::default() };
    let handle = router(config);
    until("the worker is up", || usable(&handle) == 1);
    (engine, handle)
}

/// Sends them all; no answer is read.
fn sent(address: SocketAddr, count: usize) -> Vec<Client> {
    let one = |number: usize| {
        let body = json!({
            "model": "sim", "prompt": format!("client {number}"), "max_tokens": 4, "stream": true,
        });
        let mut client = Client::connect(address);
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        client
    };
    (0..count).map(one).collect()
}

/// `vllm bench serve --num-prompts 1000 --request-rate inf`. All prompts together want far more KV
/// tokens than the engine has.
#[test]
fn a_thousand_requests_at_once_succeed() {
    let (engine, handle) = behind_defaults(EngineConfig {
        listen: any_port(),
        concurrency: 8,
        dev_mode: true,
        kv_blocks: 64,
        prefill_tokens_per_s: 1e6,
        itl_ms: 0.5,
        ..EngineConfig::default()
    });
    let mut clients = sent(handle.listen, 1_000);
    let replies: Vec<Reply> = clients.iter_mut().map(Client::reply).collect();
    let failed: Vec<&str> = replies
        .iter()
        .filter(|reply| reply.status != 200 || !reply.complete)
        .map(|reply| reply.field("x-forebay-reason").unwrap_or("cut off"))
        .collect();
    assert!(failed.is_empty(), "{} failed: {:?} ...", failed.len(), failed.first());
    assert!(engine.stats()[0].requests.in_flight_peak <= 8, "what it declares is its limit");
}

/// vLLM outside of development mode tells no `max_num_seqs`.
#[test]
fn an_engine_that_declares_no_limit_is_not_held_below_what_it_runs() {
    let (engine, handle) = behind_defaults(EngineConfig {
        listen: any_port(),
        concurrency: 600,
        kv_blocks: 100_000,
        prefill_tokens_per_s: 1e6,
        // None ends before all have come.
        itl_ms: 60_000.0,
        ..EngineConfig::default()
    });
    let clients = sent(handle.listen, 400);
    until("all run at once", || engine.stats()[0].requests.in_flight_peak == 400);
    assert_eq!(metric(&handle, "forebay_queue_depth"), 0.0);
    drop(clients);
}

/// One place, and that is taken.
fn waiting_behind(gate: &Gate, change: impl FnOnce(&mut Config)) -> (ServerHandle, Client) {
    let mut config = config(&[&gate.worker]);
    config.policy = Policy::LeastLoaded;
    config.flow.rank_concurrency_max = Some(1);
    change(&mut config);
    let handle = router(config);
    let first = ask(handle.listen, "");
    gate.holds(1);
    (handle, first)
}

fn ask(address: SocketAddr, fields: &str) -> Client {
    let request = String::from_utf8(post("/v1/completions", crate::rig::ASK)).unwrap();
    let request = request.replacen("host: router\r\n", &format!("host: router\r\n{fields}"), 1);
    let mut client = Client::connect(address);
    client.send(request.as_bytes());
    client
}

#[test]
fn a_wait_outlasts_the_first_byte_timeout() {
    let gate = Gate::start();
    let short = Duration::from_millis(500);
    let (handle, mut first) = waiting_behind(&gate, |config| config.timeouts.first_byte = short);
    let mut second = ask(handle.listen, "");
    // Its worker has had the first one as long as it may.
    assert_eq!(first.reply().status, 504);
    gate.open();
    gate.open();
    assert_eq!(second.reply().status, 200);
}

#[test]
fn the_time_that_a_client_gives_shortens_its_wait() {
    let gate = Gate::start();
    let (handle, mut first) = waiting_behind(&gate, |_| {});
    let reply = ask(handle.listen, "x-forebay-timeout-ms: 200\r\n").reply();
    assert_eq!(reply.field("x-forebay-reason"), Some("request-deadline"));
    gate.open();
    assert_eq!(first.reply().status, 200);
}

#[test]
fn a_configured_wait_is_the_bound_even_of_clients_that_have_more_time() {
    let gate = Gate::start();
    let short = Duration::from_millis(200);
    let (handle, mut first) = waiting_behind(&gate, |config| config.flow.queue.wait_max = short);
    let reply = ask(handle.listen, "x-forebay-timeout-ms: 60000\r\n").reply();
    assert_eq!(reply.field("x-forebay-reason"), Some("rejected-queue-wait"));
    gate.open();
    assert_eq!(first.reply().status, 200);
}
