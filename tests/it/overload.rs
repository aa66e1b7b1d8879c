//! More requests than the engines can take: limits as the engines themselves count, and what
//! becomes of the rest.

use crate::rig::{Client, Reply, any_port, metric, post, router, until, usable};
use forebay::config::{Config, Policy, QueueMode, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineRefusal, EngineText};
use forebay::server::ServerHandle;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

/// Takes up to `concurrency` at a time and lets `queued` wait; an answer takes a tenth of a second.
fn engine(concurrency: usize, queued: Option<usize>, refusal: EngineRefusal) -> EngineHandle {
    static TEXT: OnceLock<EngineText> = OnceLock::new();
    let text = TEXT.get_or_init(|| EngineText::load(None).expect("the built-in tokenizer"));
    let config = EngineConfig {
        listen: any_port(),
        prefill_tokens_per_s: 1e6,
        itl_ms: 10.0,
        concurrency,
        queued_max: queued,
        refusal,
        ..EngineConfig::default()
    };
    Engine::start_with(config, text.clone()).expect("the engine starts")
}

fn config(engines: &[EngineHandle], mode: QueueMode, places: u32) -> Config {
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0, 1],
        policy: Policy::LeastLoaded,
        workers: engines
            .iter()
            .map(|engine| WorkerConfig { url: engine.url(), ..WorkerConfig::default() })
            .collect(),
        ..Config::default()
    };
    config.flow.rank_concurrency_max = Some(places);
    config.flow.queue.mode = mode;
    config.flow.queue.wait_max = Duration::from_secs(60);
    config.timeouts.drain = Duration::from_secs(1);
    config
}

fn start(config: Config, engines: usize) -> ServerHandle {
    let handle = router(config);
    until("every worker is up", || usable(&handle) == engines);
    handle
}

/// That many clients at once, each with its own connection; their answers.
fn burst(address: SocketAddr, clients: usize, stream: bool) -> Vec<Reply> {
    let one = |number: usize| {
        let body = json!({
            "model": "sim", "prompt": format!("client {number}"), "max_tokens": 10,
            "stream": stream,
        });
        let mut client = Client::connect(address);
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        client
    };
    let mut clients: Vec<Client> = (0..clients).map(one).collect();
    clients.iter_mut().map(Client::reply).collect()
}

fn count(replies: &[Reply], status: u16) -> usize {
    replies.iter().filter(|reply| reply.status == status).count()
}

#[test]
fn no_engine_ever_has_more_than_its_places() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint, QueueMode::Off] {
        let engines: Vec<_> = (0..4).map(|_| engine(64, None, EngineRefusal::Vllm)).collect();
        let mut config = config(&engines, mode, 2);
        // Room for three times the places in all; ten times as many come.
        config.flow.queue.depth_max = if mode == QueueMode::Endpoint { 4 } else { 16 };
        let handle = start(config, engines.len());
        let replies = burst(handle.listen, 80, true);
        for engine in &engines {
            let peak = engine.stats()[0].requests.in_flight_peak;
            assert!((1..=2).contains(&peak), "{peak} at once, {mode:?}");
        }
        let served = count(&replies, 200);
        let refused = count(&replies, 429);
        assert_eq!(served + refused, 80, "everybody is answered, {mode:?}");
        assert!(served >= if mode == QueueMode::Off { 8 } else { 24 }, "{served} served, {mode:?}");
        assert!(replies.iter().all(|reply| reply.complete));
        for refusal in replies.iter().filter(|reply| reply.status == 429) {
            let reason = refusal.field("x-forebay-reason").unwrap_or("");
            assert!(reason.starts_with("rejected-"), "{}", refusal.head);
            assert_eq!(refusal.field("x-should-retry"), Some("true"));
            let seconds = refusal.field("retry-after").map(|text| text.parse::<u64>().unwrap());
            assert!(seconds.is_none_or(|seconds| (1..=60).contains(&seconds)));
        }
        until("all places are given back", || metric(&handle, "forebay_in_flight") == 0.0);
        let finished: u64 = engines.iter().map(|engine| engine.stats()[0].requests.finished).sum();
        assert_eq!(finished, served as u64, "{mode:?}");
        handle.stop();
        handle.join().unwrap();
    }
}

#[test]
fn an_engines_refusal_is_never_passed_on() {
    for refusal in [EngineRefusal::Vllm, EngineRefusal::TooMany, EngineRefusal::Overloaded] {
        // The router thinks they could take many more.
        let engines: Vec<_> = (0..2).map(|_| engine(2, Some(0), refusal)).collect();
        let handle = start(config(&engines, QueueMode::Pool, 64), engines.len());
        let replies = burst(handle.listen, 12, false);
        let refused: u64 = engines.iter().map(|engine| engine.stats()[0].requests.refused).sum();
        assert!(refused > 0, "the engines did refuse, {refusal:?}");
        for reply in &replies {
            let reason = reply.field("x-forebay-reason").unwrap_or("");
            match reply.status {
                200 => {}
                429 => assert!(reason.starts_with("rejected-"), "{} {}", reply.head, reply.text()),
                other => assert_eq!(other, 429, "{refusal:?} {}", reply.text()),
            }
        }
        assert!(count(&replies, 200) >= 4, "who found room was served, {refusal:?}");
        handle.stop();
        handle.join().unwrap();
    }
}

#[test]
fn a_place_that_an_engine_has_again_lets_one_through_and_not_the_whole_queue() {
    // It takes four and keeps nobody waiting; the router may give it 64.
    let engines = [engine(4, Some(0), EngineRefusal::Vllm)];
    let handle = start(config(&engines, QueueMode::Pool, 64), engines.len());
    let replies = burst(handle.listen, 40, false);
    assert_eq!(count(&replies, 200), 40, "everybody's turn came");
    let refused = engines[0].stats()[0].requests.refused;
    assert!((1..80).contains(&refused), "{refused} refused");
    until("all places are given back", || metric(&handle, "forebay_in_flight") == 0.0);
    assert!(metric(&handle, "forebay_rank_ended_total") == 40.0, "what was refused is no end");
    handle.stop();
    handle.join().unwrap();
}

#[test]
fn what_one_engine_refuses_another_serves() {
    // The first takes one at a time and refuses the rest; the second takes all.
    let engines = [engine(1, Some(0), EngineRefusal::Vllm), engine(64, None, EngineRefusal::Vllm)];
    let handle = start(config(&engines, QueueMode::Pool, 64), engines.len());
    for _ in 0..3 {
        let replies = burst(handle.listen, 10, true);
        assert_eq!(count(&replies, 200), 10, "nobody notices");
    }
    assert!(engines[0].stats()[0].requests.refused > 0);
}
