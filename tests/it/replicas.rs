//! Several routers that meet at a real nats-server: windows, load, limits in sum, and what happens
//! without it.

use crate::rig::{
    ASK, Client, Gate, Nats, Worker, admin, admin_post, config, metric, port_for_later, post,
    router, truth, until, usable,
};
use forebay::config::{Config, Policy, QueueMode, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn replica(worker: &Worker, nats: &Nats, name: &str) -> ServerHandle {
    let mut config = config(&[worker]);
    config.flow.rank_concurrency_max = Some(256);
    config.nats.url = Some(nats.url());
    config.replicas.name = Some(name.to_owned());
    router(config)
}

fn know_each_other(handles: &[&ServerHandle]) {
    for handle in handles {
        until("the replicas know each other", || {
            metric(handle, "forebay_replicas") == handles.len() as f64
        });
    }
}

fn status(address: SocketAddr) -> u16 {
    let mut client = Client::connect(address);
    client.send(&post("/v1/completions", ASK));
    client.reply().status
}

pub(crate) fn window(handle: &ServerHandle, what: &str) {
    let mut client = Client::connect(handle.admin);
    client.send(&admin_post("/admin/window", what.as_bytes()));
    assert_eq!(client.reply().status, 200);
}

fn others(handle: &ServerHandle) -> Value {
    serde_json::from_slice(&admin(handle, "/replicas").body).expect("JSON")
}

#[test]
fn a_window_closes_the_gate_of_every_replica() {
    let Some(nats) = Nats::start() else { return };
    let worker = Worker::json("{}");
    let [first, second] = ["first", "second"].map(|name| replica(&worker, &nats, name));
    know_each_other(&[&first, &second]);
    assert_eq!(status(second.listen), 200);
    window(&first, r#"{"open":"60s"}"#);
    until("the other refuses", || status(second.listen) == 429);
    assert_eq!(status(first.listen), 429);
    let shown = others(&second);
    assert_eq!((&shown["connected"], &shown["name"]), (&json!(true), &json!("second")));
    let other = &shown["replicas"][0];
    assert_eq!(other["name"], "first");
    assert!(other["windows"][0]["remaining_seconds"].as_f64().unwrap() > 30.0, "{other}");
    // Who comes later learns it from the others.
    let third = replica(&worker, &nats, "third");
    until("the late joiner refuses", || status(third.listen) == 429);
    window(&first, r#"{"close":true}"#);
    for handle in [&first, &second, &third] {
        until("all serve again", || status(handle.listen) == 200);
    }
    // A drain says goodbye: nobody waits for its silence.
    first.stop();
    first.join().unwrap();
    until("the others forget it", || metric(&second, "forebay_replicas") == 2.0);
    let byes = "forebay_replica_messages_total{kind=\"bye\",direction=\"in\",result=\"ok\"}";
    assert_eq!(metric(&second, byes), 1.0);
}

#[test]
fn nobody_notices_that_nats_dies() {
    let Some(mut nats) = Nats::start() else { return };
    let worker = Worker::json("{}");
    let [first, second] = ["first", "second"].map(|name| replica(&worker, &nats, name));
    know_each_other(&[&first, &second]);
    let done = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for address in [first.listen, second.listen] {
            let done = &done;
            let answered = &answered;
            scope.spawn(move || {
                let mut client = Client::connect(address);
                while !done.load(Ordering::Relaxed) {
                    client.send(&post("/v1/completions", ASK));
                    let reply = client.reply();
                    assert_eq!((reply.status, reply.complete), (200, true), "{}", reply.text());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let some_more = || {
            let before = answered.load(Ordering::Relaxed);
            until("requests are answered", || answered.load(Ordering::Relaxed) > before + 200);
        };
        some_more();
        nats.kill();
        for handle in [&first, &second] {
            until("the loss is seen", || metric(handle, "forebay_nats_connected") == 0.0);
            until("it is alone", || metric(handle, "forebay_replicas") == 1.0);
        }
        some_more();
        // What is opened now stays here.
        nats.run();
        know_each_other(&[&first, &second]);
        some_more();
        done.store(true, Ordering::Relaxed);
    });
    window(&second, r#"{"open":"60s"}"#);
    until("windows cross again", || status(first.listen) == 429);
}

#[test]
fn a_router_starts_without_nats_and_finds_it_later() {
    let Some(mut nats) = Nats::later() else { return };
    let worker = Worker::json("{}");
    let [first, second] = ["first", "second"].map(|name| replica(&worker, &nats, name));
    assert_eq!((status(first.listen), status(second.listen)), (200, 200));
    window(&first, r#"{"open":"60s"}"#);
    assert_eq!((status(first.listen), status(second.listen)), (429, 200));
    nats.run();
    until("the window is told when they meet", || status(second.listen) == 429);
}

fn engine() -> EngineHandle {
    let config = EngineConfig {
        listen: crate::rig::any_port(),
        prefill_tokens_per_s: 1e6,
        itl_ms: 5.0,
        ..EngineConfig::default()
    };
    let text = EngineText::load(None).expect("the built-in tokenizer");
    Engine::start_with(config, text).expect("the engine starts")
}

#[test]
fn limits_hold_for_all_replicas_together() {
    let Some(nats) = Nats::start() else { return };
    limits_hold(|config, _| config.nats.url = Some(nats.url()));
}

/// `join`: makes a router one of three.
pub(crate) fn limits_hold(join: impl Fn(&mut Config, usize)) {
    let engines = [engine(), engine()];
    let start = |at: usize| {
        let mut config = config(&[]);
        config.workers = engines
            .iter()
            .map(|engine| WorkerConfig { url: engine.url(), ..WorkerConfig::default() })
            .collect();
        config.policy = Policy::LeastLoaded;
        config.health.enabled = true;
        config.flow.rank_concurrency_max = Some(4);
        config.flow.queue.mode = QueueMode::Pool;
        config.flow.queue.wait_max = Duration::from_secs(60);
        join(&mut config, at);
        router(config)
    };
    let replicas = [0, 1, 2].map(start);
    for replica in &replicas {
        until("every worker is up", || usable(replica) == engines.len());
    }
    know_each_other(&replicas.each_ref());
    let is_divided = || {
        let allowed = |replica| metric(replica, "forebay_replica_places_allowed");
        replicas.iter().map(allowed).sum::<f64>() == 8.0
    };
    // A router that has just found a rank takes a place before other routers report the rank.
    until("the places are divided, and stay so", || {
        is_divided() && {
            std::thread::sleep(Duration::from_millis(200));
            is_divided()
        }
    });
    // All at once, from idle: nobody knows yet what the others will take.
    let ask = |number: usize, max_tokens: u32| {
        let address = replicas[number % replicas.len()].listen;
        let body = json!({
            "model": "sim", "prompt": format!("client {number}"), "max_tokens": max_tokens,
            "stream": true,
        });
        let mut client = Client::connect(address);
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        client
    };
    for _ in 0..3 {
        let mut clients: Vec<Client> = (0..90).map(|number| ask(number, 10)).collect();
        let replies = clients.iter_mut().map(Client::reply);
        assert!(replies.into_iter().all(|reply| reply.status == 200 && reply.complete));
    }
    let peaks = || engines.each_ref().map(|engine| engine.stats()[0].requests.in_flight_peak);
    assert!(peaks().iter().all(|&peak| peak <= 4), "{:?}: no more than the limit", peaks());
    // One alone gets what the others do not use.
    let _busy: Vec<Client> = (0..12).map(|number| ask(3 * number, 2_000)).collect();
    until("the busy one has it all", || metric(&replicas[1], "forebay_replica_in_flight") == 8.0);
    until("all of the limit, and no more", || peaks() == [4, 4]);
}

/// A router as a process, to be killed.
struct Process {
    child: Child,
    listen: SocketAddr,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Process {
    fn start(worker: &Worker, nats: &Nats) -> Self {
        let [listen, admin] = [0, 1].map(|_| port_for_later());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("forebay.toml");
        let worker = worker.url();
        let nats = nats.url();
        let text = format!(
            "listen = \"{listen}\"\nadmin = \"{admin}\"\nnats = \"{nats}\"\n[health]\nenabled = false\n\
             [[worker]]\nurl = \"{worker}\"\n"
        );
        std::fs::write(&file, text).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--config"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the router starts");
        Self { child, listen, admin, _folder: folder }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().expect("it runs, or was killed");
        self.child.wait().expect("it ends");
    }
}

#[test]
fn a_killed_replica_vanishes_with_its_load_and_windows() {
    let Some(nats) = Nats::start() else { return };
    let gate = Gate::start();
    let survivor = replica(&gate.worker, &nats, "survivor");
    let mut victim = Process::start(&gate.worker, &nats);
    until("it answers", || std::net::TcpStream::connect(victim.admin).is_ok());
    until("it knows the other", || truth::metric(victim.admin, "forebay_replicas") == 2.0);
    let mut client = Client::connect(victim.listen);
    client.send(&post("/v1/completions", ASK));
    until("its load is told", || metric(&survivor, "forebay_replica_in_flight") == 1.0);
    let load = others(&survivor)["replicas"][0]["ranks"][0]["in_flight"].clone();
    assert_eq!(load, 1);
    let mut hand = Client::connect(victim.admin);
    hand.send(&admin_post("/admin/window", br#"{"open":"60s"}"#));
    assert_eq!(hand.reply().status, 200);
    let told = || admin(&survivor, "/admin/window").text().contains("at another router");
    until("its window is told", told);
    assert_eq!(status(survivor.listen), 429);
    let killed = Instant::now();
    victim.child.kill().unwrap();
    until("its window is forgotten", || !told());
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    assert_eq!(metric(&survivor, "forebay_replica_in_flight"), 0.0);
    assert_eq!(metric(&survivor, "forebay_replicas"), 1.0);
    let allowed = metric(&survivor, "forebay_replica_places_allowed");
    assert_eq!(allowed, 256.0, "alone it may use all");
    let _ = gate.open_for_good();
    assert_eq!(status(survivor.listen), 200);
}
