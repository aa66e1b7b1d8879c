//! More KV wanted than there is: that refuses requests, and never a pool.

use crate::rig::{Client, any_port, metric, post, router, until, usable};
use forebay::config::{Config, Policy, WorkerConfig};
use forebay::engine::{Engine, EngineConfig};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;

fn ask(listen: SocketAddr, tokens: usize) -> Client {
    let body = json!({ "model": "sim", "prompt": "the ".repeat(tokens), "max_tokens": 8 });
    let mut client = Client::connect(listen);
    client.send(&post("/v1/completions", body.to_string().as_bytes()));
    client
}

/// Quality review: 37 refusals for want of KV closed the door for 393 requests.
#[test]
fn a_refusal_for_want_of_kv_is_of_that_request_alone() {
    let engine = EngineConfig {
        listen: any_port(),
        kv_blocks: 250,
        itl_ms: 60_000.0,
        ..EngineConfig::default()
    };
    let engine = Engine::start(engine).expect("the engine starts");
    let workers = vec![WorkerConfig { url: engine.url(), ..WorkerConfig::default() }];
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0],
        policy: Policy::LeastLoaded,
        workers,
        ..Config::default()
    };
    config.flow.kv_demand_percent = 125;
    config.flow.queue.wait_max = Duration::from_secs(60);
    config.timeouts.drain = Duration::from_millis(100);
    let router = router(config);
    until("the worker is up", || usable(&router) == 1);
    let held = metric(&router, "forebay_rank_kv_tokens_max{");
    assert!((held - 3_800.0).abs() < 0.5, "95 % of 250 blocks of 16: {held}");
    // 3,200 of 3,800 tokens in flight, then 1,600 that wait: 4,800 of the 5,000 that may be wanted.
    let in_flight = [ask(router.listen, 1_600), ask(router.listen, 1_600)];
    until("two are in flight", || metric(&router, "forebay_in_flight{") > 1.5);
    let waits = ask(router.listen, 1_600);
    let depth = |count: f64| metric(&router, "forebay_queue_depth") > count - 0.5;
    until("one waits", || depth(1.0));
    for _ in 0..3 {
        let reply = ask(router.listen, 1_600).reply();
        assert_eq!((reply.status, reply.field("x-forebay-reason")), (429, Some("rejected-demand")));
        assert!(reply.field("retry-after").is_some(), "{}", reply.head);
    }
    let small = ask(router.listen, 20);
    until("a small one goes first", || metric(&router, "forebay_in_flight{") > 2.5);
    assert!(depth(1.0), "the large one waits");
    assert!(metric(&router, "forebay_rejected_total{reason=\"rejected-window\"") < 0.5);
    // There is room again.
    drop(in_flight);
    until("both are served", || metric(&router, "forebay_queue_depth") < 0.5);
    let again = ask(router.listen, 1_600);
    until("as many as before", || metric(&router, "forebay_in_flight{") > 2.5);
    drop((waits, small, again));
}
