//! Engines that die and come back: what they held is forgotten, however their numbers look.

use crate::rig::truth::{NONE, explained, feed, follower, resets, until_difference, until_feed};
use crate::rig::{
    Client, Proxy, Publisher, Replay, any_port, port_for_later, post, router, until, usable,
};
use forebay::config::{Config, Policy, WorkerConfig};
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Another process answers at the same place, and has counted past what was seen of the first.
#[test]
fn an_engine_that_has_counted_on_is_another_one() {
    for with_replay in [true, false] {
        let mut first = Publisher::start(0, Replay::Topic);
        let wire = Proxy::start(first.live);
        let history = Proxy::start(first.replay);
        let replay = with_replay.then(|| history.endpoint());
        let handle = follower(&[wire.endpoint()], replay.as_slice());
        until("subscribed", || first.subscribers() == 1);
        (0..50).for_each(|_| first.churn());
        until_difference(handle.admin, &first, |now| now == NONE);

        let mut second = Publisher::start(0, Replay::Topic);
        (0..80).for_each(|_| second.churn());
        // Prompts that only the first one held are ghosts now.
        second.prompts.extend(first.prompts.clone());
        wire.lead_to(second.live);
        history.lead_to(second.replay);
        wire.cut();
        until("subscribed", || second.subscribers() == 1);
        second.churn();
        let good = |now: crate::rig::truth::Difference| {
            if with_replay { now == NONE } else { now.ghosts == 0 }
        };
        until_difference(handle.admin, &second, good);
        assert!((resets(handle.admin, "disconnect") - 1.0).abs() < 0.5);
    }
}

/// The same behind a forwarder: the connection never breaks.
#[test]
fn a_restart_behind_an_open_connection_is_seen() {
    for (with_replay, lost) in [(true, 0), (true, 60), (false, 0), (false, 60)] {
        let mut publisher = Publisher::start(0, Replay::Topic);
        let wire = Proxy::start(publisher.live);
        let replay = with_replay.then(|| format!("tcp://{}", publisher.replay));
        let handle = follower(&[wire.endpoint()], replay.as_slice());
        until("subscribed", || publisher.subscribers() == 1);
        (0..50).for_each(|_| publisher.churn());
        until_difference(handle.admin, &publisher, |now| now == NONE);

        publisher.restart_behind_its_connections();
        wire.lose_next(lost);
        (0..lost).for_each(|_| publisher.churn());
        until("lost", || wire.lost() == lost);
        (0..20).for_each(|_| publisher.churn());
        let good = |now: crate::rig::truth::Difference| {
            if with_replay || lost == 0 { now == NONE } else { now.ghosts == 0 }
        };
        until_difference(handle.admin, &publisher, good);
        let reason = if with_replay || lost == 0 { "restart" } else { "gap" };
        assert!((resets(handle.admin, reason) - 1.0).abs() < 0.5, "{with_replay} {lost}");
        assert_eq!(wire.connections(), 1);
    }
}

/// Decision 0030: the first batch that arrives of a restarted engine has exactly the next number. A
/// replay of the silence after it begins before that batch.
#[test]
fn a_restart_that_arrives_with_the_next_number_is_seen() {
    let mut publisher = Publisher::start(0, Replay::Topic);
    let wire = Proxy::start(publisher.live);
    let handle = follower(&[wire.endpoint()], &[format!("tcp://{}", publisher.replay)]);
    until("subscribed", || publisher.subscribers() == 1);
    (0..30).for_each(|_| publisher.churn());
    until_difference(handle.admin, &publisher, |now| now == NONE);

    publisher.restart_behind_its_connections();
    wire.lose_next(30);
    (0..30).for_each(|_| publisher.churn());
    until("lost", || wire.lost() == 30);
    (0..5).for_each(|_| publisher.churn());
    until_difference(handle.admin, &publisher, |now| now == NONE);
    assert!((resets(handle.admin, "restart") - 1.0).abs() < 0.5);
    assert_eq!((resets(handle.admin, "gap"), wire.connections()), (0.0, 1));
}

/// A simulated engine as a process of its own, to be killed.
struct EngineProcess {
    child: Child,
    url: String,
}

impl EngineProcess {
    fn start([http, live, replay]: [SocketAddr; 3], ranks: u32) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["engine", "--listen", &http.to_string(), "--ranks", &ranks.to_string()])
            .args(["--kv-events", &format!("tcp://{live}"), "--replay", &format!("tcp://{replay}")])
            .args(["--kv-blocks", "400", "--itl-ms", "1", "--prefill-tokens-per-s", "1000000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let engine = Self { child, url: format!("http://{http}") };
        until("the engine answers", || std::net::TcpStream::connect(http).is_ok());
        engine
    }

    fn address(&self) -> SocketAddr {
        self.url.trim_start_matches("http://").parse().unwrap()
    }

    /// Leading blocks of the prompt that each of its ranks holds.
    fn held(&self, body: &[u8]) -> Vec<usize> {
        let mut client = Client::connect(self.address());
        client.send(&post("/debug/held", body));
        let answer: Value = serde_json::from_slice(&client.reply().body).unwrap();
        let blocks = answer["held_blocks"].as_array().unwrap().iter();
        blocks.map(|count| usize::try_from(count.as_u64().unwrap()).unwrap()).collect()
    }

    /// As `kill -9` does it.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ports one after another, so that ranks have room.
fn places() -> [SocketAddr; 3] {
    [0, 1, 2].map(|_| {
        loop {
            let place = port_for_later();
            let next = SocketAddr::new(place.ip(), place.port().saturating_add(1));
            if TcpListener::bind(next).is_ok() {
                return place;
            }
        }
    })
}

fn ask(address: SocketAddr, body: &[u8]) {
    let mut client = Client::connect(address);
    client.send(&post("/v1/completions", body));
    assert_eq!(client.reply().status, 200);
}

fn bodies(salt: u32) -> Vec<Vec<u8>> {
    let body = |number: u32| {
        let prompt: Vec<u32> =
            (0..180).map(|at| 200 + (at * 7 + number * 13 + salt) % 1_500).collect();
        json!({ "model": "sim", "prompt": prompt, "max_tokens": 4 }).to_string().into_bytes()
    };
    (0..60).map(body).collect()
}

/// For every prompt ever sent the router believes what the engine holds, rank by rank.
fn until_equal(view: SocketAddr, engine: &EngineProcess, bodies: &[Vec<u8>]) {
    let mut client = Client::connect(view);
    until("the views are equal", || {
        bodies
            .iter()
            .all(|body| explained(&mut client, "/v1/completions", body) == engine.held(body))
    });
}

#[test]
fn a_killed_engine_leaves_no_ghost_and_is_followed_again() {
    let places = places();
    let mut engine = EngineProcess::start(places, 1);
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0],
        policy: Policy::Kv,
        model_dir: Some("tests/data/tokenizer".into()),
        workers: vec![WorkerConfig { url: engine.url.clone(), ..WorkerConfig::default() }],
        ..Config::default()
    };
    config.health.interval = Duration::from_millis(100);
    let handle = router(config);
    until("the worker is up", || usable(&handle) == 1);
    until_feed(handle.admin, "live");
    // Straight to the engine: more than its cache holds, so that blocks are evicted.
    let before = bodies(0);
    before.iter().for_each(|body| ask(engine.address(), body));
    until_equal(handle.admin, &engine, &before);

    engine.kill();
    until("the loss is seen", || feed(handle.admin, 0)["state"] == "connecting");
    let mut client = Client::connect(handle.admin);
    until("forgotten", || {
        before.iter().all(|body| explained(&mut client, "/v1/completions", body) == [0])
    });

    // It comes back with two ranks and has answered before the router is there.
    let engine = EngineProcess::start(places, 2);
    let after = bodies(500);
    after.iter().for_each(|body| ask(engine.address(), body));
    until("both ranks are followed", || {
        (0..2).all(|rank| feed(handle.admin, rank)["state"] == "live")
    });
    let all: Vec<Vec<u8>> = before.into_iter().chain(after).collect();
    until_equal(handle.admin, &engine, &all);
    assert!(resets(handle.admin, "disconnect") >= 1.0);
}
