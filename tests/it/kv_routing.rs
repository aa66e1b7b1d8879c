//! The main job: conversations land on the rank that holds them, exactly as its engine sees it.
//! Simulated engines with real sockets, KV events and caches.

use crate::rig::{
    Client, PATIENCE, Reply, admin, admin_post, any_port, metric, port_for_later, post, router,
    truth, until, usable,
};
use forebay::config::{Config, Policy, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub(crate) fn engine(listen: SocketAddr, ranks: u32) -> EngineHandle {
    static TEXT: OnceLock<EngineText> = OnceLock::new();
    let text = TEXT.get_or_init(|| EngineText::load(None).expect("the built-in tokenizer"));
    let config = EngineConfig {
        listen,
        ranks,
        kv_events: Some("tcp://127.0.0.1:0".into()),
        kv_blocks: 4_096,
        prefill_tokens_per_s: 1e6,
        itl_ms: 1.0,
        ..EngineConfig::default()
    };
    Engine::start_with(config, text.clone()).expect("the engine starts")
}

/// A router with policy `kv` that has found all its workers.
pub(crate) fn kv_router(engines: &[&EngineHandle], cores: Vec<usize>) -> ServerHandle {
    kv_router_with(engines, cores, |_| ())
}

/// The same with a configuration that `change` has changed.
pub(crate) fn kv_router_with(
    engines: &[&EngineHandle],
    cores: Vec<usize>,
    change: impl FnOnce(&mut Config),
) -> ServerHandle {
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores,
        policy: Policy::Kv,
        model_dir: Some("tests/data/tokenizer".into()),
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

/// One person: keeps the history and asks on.
pub(crate) struct Person {
    pub(crate) client: Client,
    messages: Vec<Value>,
}

impl Person {
    pub(crate) fn new(address: SocketAddr, name: &str) -> Self {
        let system = format!("You answer {name}. ") + &format!("Rule about {name}. ").repeat(30);
        let messages = vec![json!({ "role": "system", "content": system })];
        Self { client: Client::connect(address), messages }
    }

    /// Asks one question; returns the reply and the engine's `cached_tokens`.
    pub(crate) fn ask(&mut self, question: &str) -> (Reply, u64) {
        self.messages.push(json!({ "role": "user", "content": question }));
        let body = json!({ "model": "sim", "messages": self.messages, "max_tokens": 24 });
        self.client.send(&post("/v1/chat/completions", body.to_string().as_bytes()));
        let reply = self.client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let answer: Value = serde_json::from_slice(&reply.body).expect("JSON");
        self.messages.push(answer["choices"][0]["message"].clone());
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        let cached = cached.as_u64().unwrap_or(0);
        (reply, cached)
    }
}

pub(crate) fn overlap_tokens(reply: &Reply) -> u64 {
    reply.field("x-forebay-overlap-tokens").map_or(0, |tokens| tokens.parse().unwrap())
}

/// Batches of KV events that the engines have sent.
pub(crate) fn sent(engines: &[&EngineHandle]) -> u64 {
    engines.iter().flat_map(|engine| engine.stats()).map(|rank| rank.kv_batches).sum()
}

pub(crate) fn received(handle: &ServerHandle) -> u64 {
    let text = format!("{}", metric(handle, "forebay_kv_batches_total{"));
    text.parse().expect("a whole number")
}

pub(crate) fn applied(handle: &ServerHandle) -> f64 {
    metric(handle, "forebay_kv_ops_applied")
}

/// Makes sure that the router hears every rank: a publisher drops what comes before it knows its
/// subscriber. Returns how many batches were lost until then, as a number to add to the received
/// ones.
pub(crate) fn follow(handle: &ServerHandle, engines: &[&EngineHandle]) -> u64 {
    for engine in engines {
        for rank in 0..engine.stats().len() {
            let before = received(handle);
            let mut word = 0;
            until("the rank is heard", || {
                word += 1;
                let text =
                    format!("warm up number {word} for rank {rank}, nobody will ask this again. ");
                let body = json!({ "model": "sim", "prompt": text.repeat(4), "max_tokens": 1 });
                let request = post("/v1/completions", body.to_string().as_bytes());
                let pin = format!("x-data-parallel-rank: {rank}\r\nhost:");
                let request = String::from_utf8(request).unwrap().replacen("host:", &pin, 1);
                let mut client = Client::connect(engine.addr());
                client.send(request.as_bytes());
                client.reply().status == 200 && received(handle) > before
            });
        }
    }
    let mut last = u64::MAX;
    until("the last warm-up is received", || {
        received(handle) == std::mem::replace(&mut last, received(handle))
    });
    until("every operation is applied", || applied(handle) == applied(handle));
    sent(engines).wrapping_sub(received(handle))
}

/// Waits until the router has received every event that the engines have sent, and applied it.
pub(crate) fn settle(handle: &ServerHandle, engines: &[&EngineHandle], lost: u64) {
    hear_all(handle, engines, lost);
    until("every operation is applied", || applied(handle) == applied(handle));
}

/// Waits until the engines are idle and every batch is received, but for so many. A feed that had
/// to begin again is told batches twice: then more are received than were sent.
pub(crate) fn hear_all(handle: &ServerHandle, engines: &[&EngineHandle], lost: u64) {
    let busy = |engine: &&EngineHandle| {
        engine.stats().iter().any(|rank| rank.requests.running + rank.requests.waiting > 0)
    };
    until("the engines are idle", || !engines.iter().any(busy));
    let start = Instant::now();
    loop {
        let missing = sent(engines).wrapping_sub(received(handle)).wrapping_sub(lost);
        if missing.cast_signed() <= 0 {
            return;
        }
        let seen = || truth::samples(handle.admin, "forebay_kv_").join("\n");
        assert!(start.elapsed() < PATIENCE, "{missing} batches are missing:\n{}", seen());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn conversations_stay_where_their_prefix_is_and_the_prediction_is_exact() {
    let engines = [engine(any_port(), 1), engine(any_port(), 1)];
    let handle = kv_router(&[&engines[0], &engines[1]], vec![0, 1, 0, 1]);
    let both = [&engines[0], &engines[1]];
    let lost = follow(&handle, &both);
    let mut used = HashSet::new();
    let mut exact = 0;
    let mut asked = 0;
    let mut people: Vec<Person> =
        (0..16).map(|n| Person::new(handle.listen, &format!("person {n}"))).collect();
    let mut homes = vec![String::new(); people.len()];
    for turn in 0..3 {
        for (person, home) in people.iter_mut().zip(&mut homes) {
            let (reply, cached) =
                person.ask(&format!("Question {turn}, please explain é 漢字 once more."));
            let worker = reply.field("x-forebay-worker").expect("named").to_owned();
            if turn > 0 {
                assert_eq!(*home, worker, "turn {turn} left its prefix");
                assert!(cached > 0, "turn {turn} found nothing");
            }
            *home = worker.clone();
            used.insert(worker);
            asked += 1;
            exact += u32::from(overlap_tokens(&reply).abs_diff(cached) <= 16);
            settle(&handle, &both, lost);
        }
    }
    // Newcomers go to either worker alike: that all 16 go to one has a chance of 1 in 32,768.
    assert_eq!(used.len(), 2, "both workers share the people");
    assert_eq!(exact, asked, "prediction within one block of the engine's own count");
    assert!(metric(&handle, "forebay_overlap_error_blocks_count") >= 32.0);
}

/// Clients' review, section 5: all nine predictions that were too high were of such requests.
#[test]
fn nothing_is_predicted_where_the_engine_reads_no_cache_or_another_prompt() {
    let engine = engine(any_port(), 1);
    let handle = kv_router(&[&engine], vec![0]);
    let lost = follow(&handle, &[&engine]);
    let mut client = Client::connect(handle.listen);
    let mut ask = |more: Value| {
        let prompt = "The same long prompt, again and again and again. ".repeat(20);
        let mut body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        settle(&handle, &[&engine], lost);
        reply.field("x-forebay-overlap-tokens").map(str::to_owned)
    };
    ask(json!({}));
    assert_ne!(ask(json!({})).as_deref(), Some("0"), "a plain request finds its prompt");
    let compared = || metric(&handle, "forebay_overlap_error_blocks_count");
    let before = compared();
    for more in [
        json!({ "prompt_logprobs": 0 }),
        json!({ "echo": true }),
        json!({ "truncate_prompt_tokens": 64 }),
        json!({ "suffix": "end" }),
        json!({ "kv_transfer_params": { "prompt_token_ids": [1, 2] } }),
    ] {
        assert_eq!(ask(more.clone()), None, "{more}");
    }
    assert!((compared() - before).abs() < 0.5, "no error is counted either");
    assert!(ask(json!({ "echo": false, "prompt_logprobs": null })).is_some());
}

#[test]
fn data_parallel_ranks_are_told_apart_and_pinned() {
    let engine = engine(any_port(), 2);
    let handle = kv_router(&[&engine], vec![0]);
    let lost = follow(&handle, &[&engine]);
    let mut people: Vec<Person> =
        (0..16).map(|n| Person::new(handle.listen, &format!("somebody {n}"))).collect();
    let mut ranks = HashSet::new();
    for turn in 0..2 {
        for person in &mut people {
            let (reply, cached) = person.ask("And then?");
            assert!(turn == 0 || cached > 0, "turn {turn} went to the wrong rank");
            ranks.insert(reply.field("x-forebay-worker").expect("named").to_owned());
            settle(&handle, &[&engine], lost);
        }
    }
    assert_eq!(ranks.len(), 2, "{ranks:?}");
}

/// Clients' review, E1: vLLM reads no rank there, 27 of 27 requests went where vLLM wanted,
/// whichever rank was asked for.
#[test]
fn no_rank_is_claimed_where_the_engine_chooses_it() {
    let engine = engine(any_port(), 2);
    let handle = kv_router(&[&engine], vec![0]);
    let lost = follow(&handle, &[&engine]);
    let worker = engine.addr().to_string();
    let mut client = Client::connect(handle.listen);
    let mut ask = |path: &str, field: &str, body: &Value| {
        let request = String::from_utf8(post(path, body.to_string().as_bytes())).unwrap();
        client.send(request.replacen("host:", &format!("{field}host:"), 1).as_bytes());
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        settle(&handle, &[&engine], lost);
        reply
    };
    let input = "Tell me about ranks, please, and leave nothing out. ".repeat(20);
    let mut answers = json!({ "model": "sim", "input": input, "max_output_tokens": 4 });
    let chat = json!({ "model": "sim", "messages": [{ "role": "user", "content": input }],
            "max_tokens": 4 });
    let booked = |rank: u32| {
        let labels = format!("{{worker=\"{worker}\",dp_rank=\"{rank}\"}}");
        metric(&handle, &format!("forebay_rank_ended_total{labels}")) > 0.5
    };
    // Booked by load, not by the client's word. Ranks without load are chosen by chance.
    let mut turn = 0;
    while turn < 2 || !(booked(0) && booked(1)) {
        turn += 1;
        assert!(turn < 60, "all are booked on one rank");
        answers["stream"] = (turn % 2 == 0).into();
        // The rank that a client asks for is not honoured there by vLLM either.
        let reply = ask("/v1/responses", "x-data-parallel-rank: 1\r\n", &answers);
        assert_eq!(reply.field("x-forebay-worker"), Some(worker.as_str()));
        assert_eq!(reply.field("x-forebay-overlap-tokens"), None);
        assert!(reply.text().contains("output_text"), "{}", reply.text());
    }
    assert!(metric(&handle, "forebay_overlap_error_blocks_count") < 0.5);
    // The same prompt as a chat: the rank is read there, so it is told and shown again.
    let reply = ask("/v1/chat/completions", "x-data-parallel-rank: 1\r\n", &chat);
    assert_eq!(reply.field("x-forebay-worker"), Some(format!("{worker}/1").as_str()));
    assert!(reply.field("x-forebay-overlap-tokens").is_some());
}

#[test]
fn a_restarted_engine_starts_with_nothing_and_is_used_again() {
    let other = engine(any_port(), 1);
    let first = engine(port_for_later(), 1);
    let address: SocketAddr = first.url().trim_start_matches("http://").parse().unwrap();
    let handle = kv_router(&[&other, &first], vec![0]);
    follow(&handle, &[&other, &first]);
    let mut people: Vec<Person> =
        (0..4).map(|n| Person::new(handle.listen, &format!("guest {n}"))).collect();
    for person in &mut people {
        person.ask("Hello?");
    }
    first.stop();
    until("the loss is seen", || usable(&handle) == 1);
    for person in &mut people {
        let (reply, _) = person.ask("Are you still there?");
        assert_ne!(reply.field("x-forebay-worker"), Some(address.to_string().as_str()));
    }
    let again = engine(address, 1);
    until("the worker is back", || usable(&handle) == 2);
    follow(&handle, &[&other, &again]);
    // Whoever it gets now has nothing there, and the router knows.
    for person in &mut people {
        let (reply, cached) = person.ask("What was the first thing I asked?");
        assert!(overlap_tokens(&reply).abs_diff(cached) <= 16, "a ghost of the old cache");
    }
}

fn explain(handle: &ServerHandle, query: &str, body: &[u8]) -> Reply {
    let mut client = Client::connect(handle.admin);
    client.send(&admin_post(&format!("/debug/overlap{query}"), body));
    client.reply()
}

#[test]
fn the_explanation_is_what_then_happens_and_asking_changes_nothing() {
    let engines = [engine(any_port(), 1), engine(any_port(), 1)];
    let both = [&engines[0], &engines[1]];
    let handle = kv_router(&both, vec![0, 1]);
    let lost = follow(&handle, &both);
    let mut person = Person::new(handle.listen, "the curious");
    let (reply, _) = person.ask("What holds what?");
    let home = reply.field("x-forebay-worker").expect("named").to_owned();
    settle(&handle, &both, lost);

    // Nothing was matched yet, so nothing is known of this text's tokens.
    let mut messages = person.messages.clone();
    messages.push(json!({ "role": "user", "content": "And now?" }));
    let body = json!({ "model": "sim", "messages": messages, "max_tokens": 24 }).to_string();
    let before = metric(&handle, "forebay_requests_total");
    let reply = explain(&handle, "?text=true", body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let explained: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(explained["chosen"]["worker"], home.as_str(), "{explained}");
    assert_eq!((&explained["policy"], &explained["by_chance"]), (&json!("kv"), &json!(false)));
    assert_eq!(explained["because"], "sticky", "{explained}");
    assert_eq!(explained["bytes_per_token_learnt"], false, "{explained}");
    let text = explained["prompt"]["text"].as_str().expect("asked for");
    assert!(text.contains("You answer the curious") && text.contains("And now?"), "{text}");
    assert_eq!(explained["prompt"]["bytes"], text.len());
    let ranks = explained["ranks"].as_array().expect("a list");
    assert_eq!(ranks.len(), 2);
    let (holder, other) = match ranks[0]["worker"] == home.as_str() {
        true => (&ranks[0], &ranks[1]),
        false => (&ranks[1], &ranks[0]),
    };
    assert!(holder["overlap_blocks"].as_u64() > other["overlap_blocks"].as_u64(), "{explained}");
    assert!(holder["cost"].as_u64() < other["cost"].as_u64(), "{explained}");
    for rank in ranks {
        assert_eq!((&rank["state"], &rank["breaker_admits"]), (&json!("up"), &json!(true)));
        assert_eq!(rank["in_flight"], 0, "no lease is taken");
    }
    assert_eq!(explain(&handle, "", body.as_bytes()).status, 200);
    assert!((metric(&handle, "forebay_requests_total") - before).abs() < 0.5);

    // The request itself goes there, with that prediction, which the engine confirms.
    let (reply, cached) = person.ask("And now?");
    assert_eq!(reply.field("x-forebay-worker"), Some(home.as_str()));
    assert_eq!(holder["cached_tokens_expected"], overlap_tokens(&reply));
    assert!(overlap_tokens(&reply).abs_diff(cached) <= 16);

    // What the shard has learnt from that match is used from now on.
    let reply = explain(&handle, "", body.as_bytes());
    let explained: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(explained["bytes_per_token_learnt"], true, "{explained}");
    assert_ne!(explained["bytes_per_token"], 4.0, "{explained}");
}

#[test]
fn explanations_are_refused_as_the_request_would_be() {
    let engine = engine(any_port(), 1);
    let handle = kv_router(&[&engine], vec![0]);
    let cases: [(&str, &[u8], u16); 6] = [
        ("", b"{nope", 400),
        ("", br#"{"model":"other","messages":[]}"#, 404),
        ("?endpoint=/v1/nothing", b"{}", 404),
        ("", &[b' '; 1 << 20], 400),
        ("", &[b' '; (1 << 20) + 1], 413),
        ("?text=maybe", b"{}", 400),
    ];
    for (query, body, status) in cases {
        let reply = explain(&handle, query, body);
        assert_eq!(reply.status, status, "{query}: {}", reply.text());
    }
    let any = br#"{"model":"sim","prompt":"hello"}"#;
    let reply = explain(&handle, "?endpoint=/v1/completions", any);
    let explained: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(
        (&explained["prompt"]["bytes"], &explained["prompt"]["text"]),
        (&json!(5), &Value::Null)
    );
    assert_eq!(admin(&handle, "/debug/overlap").status, 400);
}
