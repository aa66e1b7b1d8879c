//! Load that others send to the engines: reported by them, and left alone by the router.

use crate::rig::{Client, Reply, admin, any_port, metric, post, router, until, usable};
use forebay::config::{Config, LoadSource, Policy, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

fn engine() -> EngineHandle {
    static TEXT: OnceLock<EngineText> = OnceLock::new();
    let text = TEXT.get_or_init(|| EngineText::load(None).expect("the built-in tokenizer"));
    let config = EngineConfig {
        listen: any_port(),
        kv_events: Some("tcp://127.0.0.1:0".into()),
        prefill_tokens_per_s: 1e6,
        ..EngineConfig::default()
    };
    Engine::start_with(config, text.clone()).expect("the engine starts")
}

fn start(engines: &[&EngineHandle], policy: Policy, source: LoadSource) -> ServerHandle {
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0, 1],
        policy,
        model_dir: Some("tests/data/tokenizer".into()),
        workers: engines
            .iter()
            .map(|engine| WorkerConfig { url: engine.url(), ..WorkerConfig::default() })
            .collect(),
        ..Config::default()
    };
    config.health.interval = Duration::from_millis(100);
    config.load.interval = Duration::from_millis(100);
    config.load.source = source;
    // The machine that runs tests may be too busy for either.
    config.load.back_off = false;
    config.load.age_max = Duration::from_secs(60);
    config.timeouts.drain = Duration::from_secs(1);
    let handle = router(config);
    until("every worker is up", || usable(&handle) == engines.len());
    handle
}

/// Long answers, asked of an engine directly; they go on until the clients are dropped.
fn strangers(address: SocketAddr, count: usize) -> Vec<Client> {
    let ask = |number: usize| {
        let prompt = format!("stranger {number} wants a very long story");
        let body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 4_000, "stream": true });
        let mut client = Client::connect(address);
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        client
    };
    (0..count).map(ask).collect()
}

/// Short requests one after the other; the workers that answered.
fn ask(handle: &ServerHandle, from: usize, count: usize) -> Vec<String> {
    let one = |number: usize| {
        let prompt = format!("number {number}, and nothing like the others");
        let body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 1 });
        let mut client = Client::connect(handle.listen);
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.field("x-forebay-worker").expect("named").to_owned()
    };
    (from..from + count).map(one).collect()
}

fn foreign(handle: &ServerHandle) -> f64 {
    metric(handle, "forebay_reported_foreign{")
}

/// Waits until the reports say so; what the metrics show the shards have.
fn reported(handle: &ServerHandle, what: &str, condition: impl Fn(f64) -> bool) {
    until(what, || condition(foreign(handle)));
}

#[test]
fn a_worker_that_strangers_keep_busy_gets_no_newcomers_until_they_leave() {
    let engines = [engine(), engine()];
    for policy in [Policy::Kv, Policy::LeastLoaded, Policy::PowerOfTwo] {
        let handle = start(&[&engines[0], &engines[1]], policy, LoadSource::Auto);
        let busy = strangers(engines[0].addr(), 8);
        reported(&handle, "the strangers", |foreign| foreign > 7.5);
        let workers = ask(&handle, 0, 24);
        let to_busy =
            workers.iter().filter(|&worker| *worker == engines[0].addr().to_string()).count();
        // Of two random picks both are the busy one in a quarter of all cases.
        let most = if policy == Policy::PowerOfTwo { 16 } else { 0 };
        assert!(to_busy <= most, "{policy:?}: {to_busy} of 24 went to the busy one");
        drop(busy);
        reported(&handle, "that they are gone", |foreign| foreign < 0.5);
        let workers: HashSet<String> = ask(&handle, 100, 40).into_iter().collect();
        assert_eq!(workers.len(), 2, "{policy:?}: both are used again");
    }
}

#[test]
fn a_prompt_is_ahead_of_others_until_its_first_token() {
    let config = EngineConfig {
        listen: any_port(),
        kv_events: Some("tcp://127.0.0.1:0".into()),
        prefill_tokens_per_s: 2_000.0,
        ..EngineConfig::default()
    };
    let engine = Engine::start(config).expect("the engine starts");
    let handle = start(&[&engine], Policy::Kv, LoadSource::Off);
    let ahead = || {
        let listed = admin(&handle, "/workers");
        let listed: Value = serde_json::from_slice(&listed.body).expect("JSON");
        listed["workers"][0]["ranks"][0]["prefill_tokens"].as_u64().expect("a number")
    };
    let prompt = "a word and another one ".repeat(200);
    let body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 4_000, "stream": true });
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", body.to_string().as_bytes()));
    until("the prompt is ahead", || ahead() > 500);
    client.until_body(b"data:");
    until("it is computed", || ahead() == 0);
    assert_eq!(engine.stats()[0].requests.running, 1, "its answer goes on");
}

#[test]
fn without_reports_strangers_are_not_seen() {
    let engines = [engine(), engine()];
    let handle = start(&[&engines[0], &engines[1]], Policy::Kv, LoadSource::Off);
    let _busy = strangers(engines[0].addr(), 8);
    until("they run", || engines[0].stats()[0].requests.running == 8);
    let workers: HashSet<String> = ask(&handle, 0, 40).into_iter().collect();
    assert_eq!(workers.len(), 2, "leases alone: both look idle");
    assert_eq!(admin(&handle, "/metrics").text().matches("forebay_reported_").count(), 0);
    let list: Value = serde_json::from_slice(&admin(&handle, "/workers").body).unwrap();
    assert_eq!(list["workers"][0]["load_source"], Value::Null);
    assert_eq!(list["workers"][0]["ranks"][0]["report"], Value::Null);
}

#[test]
fn what_the_router_sent_itself_is_not_taken_for_foreign() {
    let engine = engine();
    let handle = start(&[&engine], Policy::Kv, LoadSource::Auto);
    let own = strangers(handle.listen, 6);
    until("all run", || metric(&handle, "forebay_reported_running{") > 5.5);
    assert!(foreign(&handle) < 0.5);
    let list: Value = serde_json::from_slice(&admin(&handle, "/workers").body).unwrap();
    let rank = &list["workers"][0]["ranks"][0];
    assert_eq!((&rank["report"]["running"], &rank["in_flight"]), (&json!(6), &json!(6)), "{list}");
    assert!(rank["report"]["age_seconds"].as_f64().unwrap() < 5.0, "{list}");
    drop(own);
}

fn explained(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.text());
    serde_json::from_slice(&reply.body).expect("JSON")
}

#[test]
fn a_prompt_in_a_query_is_explained_with_the_parts_of_its_cost() {
    let engines = [engine(), engine()];
    let handle = start(&[&engines[0], &engines[1]], Policy::Kv, LoadSource::Auto);
    let busy = strangers(engines[0].addr(), 8);
    reported(&handle, "the strangers", |foreign| foreign > 7.5);
    let answer =
        explained(&admin(&handle, "/debug/overlap?model=sim&prompt=hello%20you&text=true"));
    assert_eq!(answer["endpoint"], "completions", "{answer}");
    assert_eq!(answer["prompt"]["text"], "hello you");
    assert_eq!(answer["chosen"]["worker"], engines[1].addr().to_string(), "{answer}");
    assert_eq!((&answer["because"], &answer["by_chance"]), (&json!("cheapest"), &json!(false)));
    let ranks = answer["ranks"].as_array().expect("a list");
    let is_strange = |rank: &&Value| rank["worker"] == engines[0].addr().to_string();
    let strange = ranks.iter().find(is_strange).expect("listed");
    let idle = ranks.iter().find(|rank| !is_strange(rank)).expect("listed");
    let parts = &strange["cost_parts"];
    assert!(parts["reported_tokens"].as_u64() >= Some(7 * 32 / 2), "{answer}");
    assert_eq!(idle["cost_parts"]["reported_tokens"], 0, "{answer}");
    assert_eq!(strange["report"]["foreign_requests"], 8);
    for rank in [strange, idle] {
        let sum: i64 =
            rank["cost_parts"].as_object().unwrap().values().map(|p| p.as_i64().unwrap()).sum();
        assert_eq!(rank["cost"], sum, "{answer}");
    }
    let chat = "/debug/overlap?model=sim&cache_salt=s&messages=[%7B%22role%22:%22user%22,%22content%22:%22hi%22%7D]";
    assert_eq!(explained(&admin(&handle, chat))["endpoint"], "chat_completions");
    for (query, status) in [
        ("", 400),
        ("?model=sim", 400),
        ("?model=sim&messages=nope", 400),
        ("?model=sim&prompt=a&messages=[]", 400),
        ("?model=other&prompt=a", 404),
        // One model: it need not be named.
        ("?prompt=a", 200),
        ("?model=sim&prompt=a&endpoint=/nope", 404),
    ] {
        let reply = admin(&handle, &format!("/debug/overlap{query}"));
        assert_eq!(reply.status, status, "{query}: {}", reply.text());
    }
    drop(busy);
}
