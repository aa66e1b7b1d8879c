//! Prefix affinity without events: workers that publish none, prompts that nobody can render, and
//! bursts that are quicker than any event. Simulated engines with real sockets and caches.

use crate::rig::{
    Client, PATIENCE, Reply, admin, any_port, metric, port_for_later, post, router, until, usable,
};
use forebay::config::{Config, Policy, QueueMode, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn engine(config: EngineConfig) -> EngineHandle {
    static TEXT: OnceLock<EngineText> = OnceLock::new();
    let text = TEXT.get_or_init(|| EngineText::load(None).expect("the built-in tokenizer"));
    Engine::start_with(config, text.clone()).expect("the engine starts")
}

/// An engine that tells nobody what it caches.
fn silent(listen: SocketAddr) -> EngineHandle {
    engine(EngineConfig {
        listen,
        prefill_tokens_per_s: 1e6,
        itl_ms: 1.0,
        ..EngineConfig::default()
    })
}

/// A router with policy `kv` that has found all its workers.
fn kv_router(engines: &[EngineHandle], change: impl FnOnce(&mut Config)) -> ServerHandle {
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0, 1],
        policy: Policy::Kv,
        workers: engines
            .iter()
            .map(|engine| WorkerConfig { url: engine.url(), ..WorkerConfig::default() })
            .collect(),
        ..Config::default()
    };
    config.health.interval = Duration::from_millis(100);
    config.timeouts.drain = Duration::from_secs(1);
    change(&mut config);
    let handle = router(config);
    until("every worker is up", || usable(&handle) == engines.len());
    handle
}

/// Chunks that the owners of the slices hold now.
fn chunks(handle: &ServerHandle) -> f64 {
    metric(handle, "forebay_guessed_chunks_stored")
        - metric(handle, "forebay_guessed_chunks_expired")
        - metric(handle, "forebay_guessed_chunks_evicted")
}

/// One conversation; its messages are made by `message`.
struct Person {
    client: Client,
    messages: Vec<Value>,
    message: fn(&str, &str) -> Value,
}

fn plain(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// As clients with pictures or tools write it.
fn in_parts(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": [{ "type": "text", "text": content }] })
}

impl Person {
    fn new(address: SocketAddr, name: &str, message: fn(&str, &str) -> Value) -> Self {
        let system = format!("You answer {name}. ") + &format!("Rule about {name}. ").repeat(60);
        Self {
            client: Client::connect(address),
            messages: vec![message("system", &system)],
            message,
        }
    }

    fn ask(&mut self, question: &str) -> (Reply, u64) {
        self.messages.push((self.message)("user", question));
        let body = json!({ "model": "sim", "messages": self.messages, "max_tokens": 24 });
        self.client.send(&post("/v1/chat/completions", body.to_string().as_bytes()));
        let reply = self.client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let answer: Value = serde_json::from_slice(&reply.body).expect("JSON");
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        self.messages.push((self.message)("assistant", content));
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        let cached = cached.as_u64().unwrap_or(0);
        (reply, cached)
    }
}

/// Twelve people talk for three turns; whoever asks again finds its history. Returns the workers
/// that were used.
fn conversations(handle: &ServerHandle, message: fn(&str, &str) -> Value) -> HashSet<String> {
    let name = |number| format!("person {number}");
    let mut people: Vec<Person> =
        (0..12).map(|number| Person::new(handle.listen, &name(number), message)).collect();
    let mut homes = HashMap::new();
    let known = chunks(handle);
    for turn in 0..3 {
        for (number, person) in people.iter_mut().enumerate() {
            let (reply, cached) = person.ask(&format!("Question {turn} é, \"again\"?"));
            assert_eq!(reply.field("x-forebay-overlap-tokens"), None, "no event said so");
            let worker = reply.field("x-forebay-worker").expect("named").to_owned();
            if let Some(home) = homes.insert(number, worker.clone()) {
                assert_eq!(home, worker, "turn {turn} of person {number} left its prefix");
                assert!(cached > 0, "turn {turn} of person {number} found nothing");
            }
        }
        // A first prompt has 1,300 bytes and more: two chunks at least.
        until("the owners of the slices have heard of each", || chunks(handle) >= known + 24.0);
    }
    homes.into_values().collect()
}

#[test]
fn conversations_stick_to_workers_without_events() {
    let engines = [silent(any_port()), silent(any_port()), silent(any_port())];
    let handle = kv_router(&engines, |config| {
        config.model_dir = Some("tests/data/tokenizer".into());
        config.cores = vec![0, 1, 0, 1];
    });
    assert!(conversations(&handle, plain).len() >= 2);
    assert!(metric(&handle, "forebay_guessed_bytes_total") > 0.0);
    assert!(metric(&handle, "forebay_rendered_plan_total") > 0.0);
    let compared = metric(&handle, "forebay_overlap_error_blocks_count");
    assert!(compared == 0.0, "only exact predictions are compared");
}

/// A text as it stands in a query.
fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn an_explanation_tells_guesses_from_what_is_known() {
    let engines = [silent(any_port()), silent(any_port())];
    let handle = kv_router(&engines, |_| {});
    let mut person = Person::new(handle.listen, "somebody", plain);
    let (reply, _) = person.ask("First of all?");
    let home = reply.field("x-forebay-worker").expect("named").to_owned();
    until("the owner remembers", || chunks(&handle) > 0.5);
    person.messages.push(plain("user", "And then?"));
    let messages = escaped(&Value::from(person.messages).to_string());
    let reply = admin(&handle, &format!("/debug/overlap?model=sim&messages={messages}"));
    let explained: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(explained["chosen"]["worker"], home.as_str(), "{explained}");
    assert_eq!(explained["because"], "sticky", "{explained}");
    for rank in explained["ranks"].as_array().expect("a list") {
        let is_home = rank["worker"] == home.as_str();
        assert_eq!(rank["overlap_bytes"], 0, "no event told: {explained}");
        assert_eq!(rank["guess"] == "approximate", is_home, "{explained}");
        assert_eq!(rank["guessed_bytes"].as_u64() > Some(512), is_home, "{explained}");
    }
}

/// How many of 60 turns that follow another one of their chat went to the worker that had it. The
/// chats take their turns in another order each round.
fn turns_that_stay(change: impl FnOnce(&mut Config)) -> usize {
    let engines = [silent(any_port()), silent(any_port())];
    let handle = kv_router(&engines, change);
    let mut people: Vec<Person> = (0..12)
        .map(|number| Person::new(handle.listen, &format!("guest {number}"), plain))
        .collect();
    let mut homes: HashMap<usize, String> = HashMap::new();
    let mut stayed = 0;
    let mut order = fastrand::Rng::with_seed(1);
    for turn in 0..6 {
        let mut turns: Vec<usize> = (0..people.len()).collect();
        order.shuffle(&mut turns);
        for number in turns {
            let (reply, _) = people[number].ask(&format!("Question {turn}?"));
            let worker = reply.field("x-forebay-worker").expect("named").to_owned();
            let home = homes.insert(number, worker.clone());
            stayed += usize::from(home.is_some_and(|home| home == worker));
        }
    }
    stayed
}

#[test]
fn chats_stay_on_their_workers_by_default() {
    let stayed = turns_that_stay(|_| {});
    assert!(stayed >= 58, "{stayed} of 60");
    let stayed = turns_that_stay(|config| config.approximate.ttl = Duration::ZERO);
    assert!(stayed < 58, "without guesses load alone decides: {stayed} of 60");
}

#[test]
fn conversations_stick_without_a_tokenizer_too() {
    let engines = [silent(any_port()), silent(any_port())];
    let handle = kv_router(&engines, |_| {});
    assert!(conversations(&handle, plain).len() >= 2);
    assert!(conversations(&handle, in_parts).len() >= 2);
}

#[test]
fn templates_with_unknown_constructs_leave_requests_to_guesses() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::copy("tests/data/tokenizer/tokenizer.json", dir.path().join("tokenizer.json"))
        .expect("copied");
    let template = "{% for m in messages %}{{ m.content | no_such_filter }}{% endfor %}";
    std::fs::write(dir.path().join("chat_template.jinja"), template).expect("written");
    let engines = [silent(any_port()), silent(any_port())];
    let handle = kv_router(&engines, |config| config.model_dir = Some(dir.path().to_owned()));
    assert!(conversations(&handle, plain).len() >= 2);
    assert_eq!(metric(&handle, "forebay_unrenderable_total"), 36.0, "each is counted");
    assert!(metric(&handle, "forebay_guessed_bytes_total") > 0.0);
}

/// Asks the first question of some chats.
fn ask_all(people: &mut [Person]) {
    people.iter_mut().for_each(|person| drop(person.ask("Hello?")));
}

fn guests(handle: &ServerHandle) -> Vec<Person> {
    (0..4).map(|n| Person::new(handle.listen, &format!("guest {n}"), plain)).collect()
}

#[test]
fn what_a_worker_held_is_forgotten_after_its_time() {
    let engines = [silent(any_port()), silent(any_port())];
    let handle = kv_router(&engines, |config| config.approximate.ttl = Duration::from_secs(3));
    let start = Instant::now();
    ask_all(&mut guests(&handle));
    until("the prompts are remembered", || chunks(&handle) > 0.0);
    until("their time is over", || chunks(&handle) == 0.0);
    assert!(start.elapsed() > Duration::from_secs(2), "too early");
    assert!(metric(&handle, "forebay_index_entries") == 0.0);
}

#[test]
fn what_a_worker_held_is_forgotten_when_it_restarts() {
    let mut engines = vec![silent(port_for_later()), silent(port_for_later())];
    let addresses: Vec<SocketAddr> = engines
        .iter()
        .map(|engine| engine.url().trim_start_matches("http://").parse().unwrap())
        .collect();
    // Not by its time: that is longer than any wait here.
    let handle = kv_router(&engines, |config| {
        config.approximate.ttl = PATIENCE * 10;
        config.timeouts.connect = Duration::from_millis(200);
    });
    let mut people = guests(&handle);
    ask_all(&mut people);
    until("the prompts are remembered", || chunks(&handle) > 0.0);
    for engine in engines.drain(..) {
        engine.stop();
    }
    until("the loss is forgotten", || chunks(&handle) == 0.0);
    let again: Vec<EngineHandle> = addresses.into_iter().map(silent).collect();
    until("the workers are back", || usable(&handle) == again.len());
    ask_all(&mut people);
    until("what they are sent now is remembered", || chunks(&handle) > 0.0);
}

/// An engine that publishes KV events.
fn publishing() -> EngineHandle {
    engine(EngineConfig {
        listen: any_port(),
        kv_events: Some("tcp://127.0.0.1:0".into()),
        prefill_tokens_per_s: 1e6,
        itl_ms: 1.0,
        ..EngineConfig::default()
    })
}

/// Stalls the engines for `ms`, at most an hour; 0 ends the stall.
fn stall(engines: &[EngineHandle], ms: u32) {
    for engine in engines {
        let mut client = Client::connect(engine.addr());
        client.send(&post(&format!("/debug/stall?ms={ms}"), b""));
        assert_eq!(client.reply().status, 200);
    }
}

/// Requests in flight, as the load board has them.
fn in_flight(handle: &ServerHandle) -> u64 {
    let fleet: Value = serde_json::from_str(&admin(handle, "/workers").text()).expect("JSON");
    let workers = fleet["workers"].as_array().expect("a list");
    let ranks = workers.iter().flat_map(|worker| worker["ranks"].as_array().expect("a list"));
    ranks.filter_map(|rank| rank["in_flight"].as_u64()).sum()
}

/// Sends `count` requests that begin alike, each when the one before has been routed but none has
/// been answered; the workers that served them, with how many each. `guesses`: where the first went
/// is known before the second comes.
fn burst(
    engines: &[EngineHandle],
    handle: &ServerHandle,
    count: u64,
    guesses: bool,
) -> HashMap<String, usize> {
    stall(engines, 3_600_000);
    let shared = "The whole company shares these rules, whoever asks. ".repeat(120);
    let mut clients = Vec::new();
    for number in 0..count {
        let prompt = format!("{shared} Ask number {number}.");
        let body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 2 });
        let mut client = Client::connect(handle.listen);
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        clients.push(client);
        until("the request is routed", || in_flight(handle) == number + 1);
        // The shard of the path may be another one, and hear of it later.
        until("the guess is there", || !guesses || chunks(handle) > 0.0);
    }
    stall(engines, 0);
    let mut served = HashMap::new();
    for mut client in clients {
        let reply = client.reply();
        assert_eq!(reply.status, 200);
        *served.entry(reply.field("x-forebay-worker").expect("named").to_owned()).or_default() += 1;
    }
    served
}

fn followed(handle: &ServerHandle) -> usize {
    admin(handle, "/workers").text().matches("\"kv_events\":true").count()
}

#[test]
fn a_burst_of_siblings_meets_before_any_event_and_a_full_rank_is_left() {
    let start = |limit: u32, ttl: Duration| {
        let engines = [publishing(), publishing()];
        let handle = kv_router(&engines, |config| {
            config.model_dir = Some("tests/data/tokenizer".into());
            config.flow.rank_concurrency_max = Some(limit);
            // With a queue they wait for the rank that holds most.
            config.flow.queue.mode = QueueMode::Off;
            config.approximate.speculative_ttl = ttl;
        });
        until("events are followed", || followed(&handle) == 2);
        (engines, handle)
    };
    let ttl = PATIENCE;
    let (engines, handle) = start(0, ttl);
    let served = burst(&engines, &handle, 5, true);
    assert_eq!(served.len(), 1, "{served:?}");
    assert!(metric(&handle, "forebay_guessed_bytes_total") > 0.0);

    let (engines, handle) = start(3, ttl);
    let mut counts: Vec<usize> = burst(&engines, &handle, 5, true).into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [2, 3], "the rank's limit holds");

    let (engines, handle) = start(0, Duration::ZERO);
    let served = burst(&engines, &handle, 5, false);
    assert_eq!(served.len(), 2, "without it they spread: {served:?}");
}
