//! Limits of tenants and what they have used: exact over shards, and as the engines count.

use crate::rig::{
    ASK, Client, Gate, Nats, Reply, Worker, any_port, config, metric, post, router, until, usable,
};
use forebay::config::{Config, TenantConfig, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineText, EngineWire};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn tenant(name: &str) -> TenantConfig {
    TenantConfig { name: name.to_owned(), ..TenantConfig::default() }
}

/// Keys `gold-key` and `some-key` of the tenants `gold` and `some`.
fn keyed(config: Config, tenants: Vec<TenantConfig>) -> Config {
    let mut config =
        Config { api_keys: Some(PathBuf::from("tests/data/api_keys/two.toml")), ..config };
    config.flow.tenants = tenants;
    config
}

fn sent(address: SocketAddr, key: &str, path: &str, body: &[u8]) -> Client {
    let mut client = Client::connect(address);
    let text = String::from_utf8(post(path, body)).unwrap();
    client.send(text.replacen("host:", &format!("x-api-key: {key}\r\nhost:"), 1).as_bytes());
    client
}

fn ask(address: SocketAddr, key: &str, body: &[u8]) -> Reply {
    sent(address, key, "/v1/completions", body).reply()
}

fn count(handle: &ServerHandle, name: &str) -> u64 {
    // Counts of a test are small whole numbers.
    format!("{:.0}", metric(handle, name).abs()).parse().unwrap()
}

fn number(reply: &Reply, name: &str) -> u64 {
    let field = reply.field(name).unwrap_or_else(|| panic!("{name} in {}", reply.head));
    field.parse().unwrap()
}

#[test]
fn requests_per_minute_hold_over_two_shards() {
    const LIMIT: u32 = 20;
    let worker = Worker::json("{}");
    let limited = TenantConfig { requests_per_minute: LIMIT, ..tenant("gold") };
    let mut config = keyed(config(&[&worker]), vec![limited]);
    config.cores = vec![0, 1];
    let router = router(config);
    let start = Instant::now();
    let clients: Vec<Client> =
        (0..3 * LIMIT).map(|_| sent(router.listen, "gold-key", "/v1/completions", ASK)).collect();
    let replies: Vec<Reply> = clients.into_iter().map(|mut client| client.reply()).collect();
    // What has flowed in since: none, on a machine that is not asleep.
    let flowed = start.elapsed().as_secs() * u64::from(LIMIT) / 60 + 1;
    let passed = replies.iter().filter(|reply| reply.status == 200).count() as u64;
    let limit = u64::from(LIMIT);
    assert!((limit..=limit + flowed).contains(&passed), "{passed} of {limit}");
    let refused = replies.iter().find(|reply| reply.status == 429).unwrap();
    assert_eq!(refused.field("x-forebay-reason"), Some("rejected-requests-per-minute"));
    assert_eq!(refused.field("x-ratelimit-limit-requests"), Some("20"));
    assert_eq!(refused.field("x-ratelimit-remaining-requests"), Some("0"));
    assert_eq!(refused.field("x-ratelimit-limit-tokens"), None);
    let after_ms = number(refused, "retry-after-ms");
    let after_s = number(refused, "retry-after");
    assert!((1..=3_000).contains(&after_ms) && after_s == after_ms.div_ceil(1_000), "{after_ms}");
    let error: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(error["error"]["code"], "rate_limit_exceeded");
    let one = ask(router.listen, "some-key", ASK);
    assert_eq!(one.status, 200, "another tenant");
    assert_eq!(one.field("x-ratelimit-limit-requests"), None, "without limits");
}

/// What one replica lets pass counts at the other, a second later.
#[test]
fn limits_hold_in_sum_over_two_replicas() {
    let Some(nats) = Nats::start() else { return };
    let worker = costly();
    let replica = |name: &str| {
        let limits =
            TenantConfig { requests_per_minute: 20, tokens_per_minute: 20_000, ..tenant("gold") };
        let mut config = keyed(config(&[&worker]), vec![limits]);
        config.nats.url = Some(nats.url());
        config.replicas.name = Some(name.to_owned());
        router(config)
    };
    let one = replica("one");
    let other = replica("other");
    for handle in [&one, &other] {
        until("they know each other", || count(handle, "forebay_replicas") == 2);
    }
    let left = |handle: &ServerHandle, what: &str| {
        count(handle, &format!("forebay_tenant_{what}_left{{tenant=\"gold\"}}"))
    };
    let send = |handle: &ServerHandle| {
        ask(handle.listen, "gold-key", br#"{"model":"m","prompt":"700/0/300"}"#)
    };
    // The first word of a replica is its beginning; further ones count.
    let mut sent_at: Option<Instant> = None;
    until("a word is heard", || {
        if sent_at.is_none_or(|at| at.elapsed() > Duration::from_millis(1_500)) {
            assert_eq!(send(&one).status, 200);
            sent_at = Some(Instant::now());
        }
        left(&other, "requests") < 20
    });
    while left(&one, "requests") > 0 {
        send(&one);
    }
    until("the other has heard of all requests", || left(&other, "requests") < 8);
    until("and of all tokens", || left(&other, "tokens") < 9_000);
    let passed = (0..20).filter(|_| send(&other).status == 200).count();
    assert!(passed < 12, "{passed} passed at the second replica");
}

#[test]
fn requests_in_flight_count_at_both_replicas() {
    let Some(nats) = Nats::start() else { return };
    // Answers what is quick, and holds the rest.
    let worker = Worker::start(|seen, stream| {
        let is_quick = seen.body.windows(5).any(|part| part == b"quick");
        is_quick && stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok() || {
            let _ = std::io::Read::read(stream, &mut [0]);
            false
        }
    });
    let replica = |name: &str| {
        let limits = TenantConfig { in_flight_max: 2, ..tenant("gold") };
        let mut config = keyed(config(&[&worker]), vec![limits]);
        config.nats.url = Some(nats.url());
        config.replicas.name = Some(name.to_owned());
        router(config)
    };
    let one = replica("one");
    let other = replica("other");
    for handle in [&one, &other] {
        until("they know each other", || count(handle, "forebay_replicas") == 2);
    }
    let quick = || ask(other.listen, "gold-key", br#"{"model":"m","prompt":"quick"}"#);
    assert_eq!(quick().status, 200);
    let held = [(); 2].map(|()| sent(one.listen, "gold-key", "/v1/completions", ASK));
    until("the other replica has heard", || {
        quick().field("x-forebay-reason") == Some("rejected-tenant-in-flight")
    });
    drop(held);
    until("and that they left", || quick().status == 200);
}

#[test]
fn answers_that_pass_say_what_is_left() {
    let worker = Worker::json("{}");
    let limits =
        TenantConfig { requests_per_minute: 600, tokens_per_minute: 60_000, ..tenant("gold") };
    let router = router(keyed(config(&[&worker]), vec![limits]));
    let reply = ask(router.listen, "gold-key", br#"{"model":"m","prompt":"hi","max_tokens":1000}"#);
    assert_eq!((reply.status, number(&reply, "x-ratelimit-limit-requests")), (200, 600));
    assert_eq!(number(&reply, "x-ratelimit-remaining-requests"), 599);
    assert_eq!(reply.field("x-ratelimit-reset-requests"), Some("100ms"));
    assert_eq!(number(&reply, "x-ratelimit-limit-tokens"), 60_000);
    let left = number(&reply, "x-ratelimit-remaining-tokens");
    assert!((58_000..59_000).contains(&left), "prompt and answer are expected: {left}");
    let reset = reply.field("x-ratelimit-reset-tokens").unwrap();
    assert!(reset.starts_with("1.") && reset.ends_with('s'), "{reset}");
    // The answer told of no tokens but those of its prompt, so the rest came back.
    until("the tokens come back", || {
        let reply = ask(router.listen, "gold-key", ASK);
        number(&reply, "x-ratelimit-remaining-tokens") > 59_000
    });
}

#[test]
fn places_of_a_tenant_are_its_own_and_come_back() {
    let gate = Gate::start();
    let limited = TenantConfig { in_flight_max: 2, ..tenant("gold") };
    let mut config = keyed(config(&[&gate.worker]), vec![limited]);
    config.cores = vec![0, 1];
    let router = router(config);
    let mut held: Vec<Client> = Vec::new();
    for _ in 0..2 {
        held.push(sent(router.listen, "gold-key", "/v1/completions", ASK));
        gate.prompt();
    }
    let in_flight = "forebay_tenant_in_flight{tenant=\"gold\"}";
    assert_eq!(count(&router, in_flight), 2);
    let refused = ask(router.listen, "gold-key", ASK);
    let reason = refused.field("x-forebay-reason");
    assert_eq!((refused.status, reason), (429, Some("rejected-tenant-in-flight")));
    assert!(number(&refused, "retry-after-ms") > 0);
    // Another tenant has its own places, and one who leaves gives its place back.
    let mut other = sent(router.listen, "some-key", "/v1/completions", ASK);
    gate.prompt();
    drop(held.pop());
    until("the place is back", || count(&router, in_flight) == 1);
    let mut next = sent(router.listen, "gold-key", "/v1/completions", ASK);
    gate.prompt();
    let _open = gate.open_for_good();
    for client in held.iter_mut().chain([&mut other, &mut next]) {
        assert_eq!(client.reply().status, 200);
    }
    until("all places are back", || count(&router, in_flight) == 0);
}

/// A worker whose answers have cost what the prompt says: `prompt/cached/output`.
fn costly() -> Worker {
    Worker::start(|seen, stream| {
        let body: Value = serde_json::from_slice(&seen.body).unwrap();
        let costs = body["prompt"].as_str().unwrap().split(' ').next().unwrap();
        let costs: Vec<u64> = costs.split('/').map(|cost| cost.parse().unwrap()).collect();
        let usage = json!({ "usage": {
            "prompt_tokens": costs[0], "completion_tokens": costs[2],
            "prompt_tokens_details": { "cached_tokens": costs[1] },
        } });
        let reply = usage.to_string();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", reply.len());
        stream.write_all(&[head.as_bytes(), reply.as_bytes()].concat()).is_ok()
    })
}

#[test]
fn tokens_are_reserved_by_estimate_and_charged_by_usage() {
    let worker = costly();
    let limited = TenantConfig { tokens_per_minute: 1_000, ..tenant("gold") };
    let router = router(keyed(config(&[&worker]), vec![limited]));
    let body = |prompt: &str, max_tokens: u64| {
        json!({ "model": "m", "prompt": prompt, "max_tokens": max_tokens }).to_string()
    };
    let send = |prompt: &str, max_tokens: u64| {
        ask(router.listen, "gold-key", body(prompt, max_tokens).as_bytes())
    };
    // 900 are reserved, 15 used: there is room for another 900 at once.
    for _ in 0..3 {
        let reply = send("10/4/5", 900);
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let tokens = |kind: &str| {
        let name =
            format!("forebay_tenant_tokens_total{{tenant=\"gold\",model=\"*\",kind=\"{kind}\"}}");
        count(&router, &name)
    };
    until("all are counted", || tokens("output") == 15);
    assert_eq!((tokens("prompt"), tokens("cached")), (30, 12));
    // More than was to be expected: a debt, which keeps the next request away for a minute and
    // more.
    assert_eq!(send("1500/0/500", 10).status, 200);
    until("the debt is known", || tokens("output") == 515);
    let refused = send("1/0/1", 10);
    let reason = refused.field("x-forebay-reason");
    assert_eq!((refused.status, reason), (429, Some("rejected-tokens-per-minute")));
    assert_eq!(refused.field("x-ratelimit-remaining-tokens"), Some("0"));
    assert_eq!(refused.field("retry-after"), Some("60"), "no client is sent away for longer");
    assert!(refused.field("x-ratelimit-reset-tokens").unwrap().contains('m'));
    let huge = send(&format!("1/0/1 {}", "x".repeat(9_000)), 10);
    let reason = huge.field("x-forebay-reason");
    assert_eq!((huge.status, reason), (429, Some("rejected-too-many-tokens")));
    assert_eq!(huge.field("x-should-retry"), Some("false"));
    assert_eq!((huge.field("retry-after"), huge.field("retry-after-ms")), (None, None));
    assert_eq!(ask(router.listen, "some-key", body("7/0/7", 900).as_bytes()).status, 200);
}

/// What an answer says it has cost, by the last object of its kind.
fn usage_of(reply: &Reply) -> (u64, u64) {
    let text = reply.text();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let values: Vec<Value> = events
        .chain([text.as_str()])
        .filter_map(|text| serde_json::from_str::<Value>(text).ok())
        .collect();
    let found = |name: &str| {
        let of = |value: &Value| {
            let places = [&value["usage"], &value["meta_info"]];
            places.iter().find_map(|place| place[name].as_u64())
        };
        values.iter().rev().find_map(of).unwrap_or(0)
    };
    (found("prompt_tokens"), found("completion_tokens"))
}

/// Paths and bodies that an engine of that wire answers with what they have cost.
fn telling(wire: EngineWire, round: usize) -> Vec<(&'static str, Value)> {
    let words = "one two three four five ".repeat(round + 1);
    let chat = json!([{ "role": "user", "content": words }]);
    let asked = json!({ "include_usage": true });
    let mut all = vec![
        ("/v1/completions", json!({ "prompt": words, "max_tokens": 3 + round })),
        (
            "/v1/completions",
            json!({ "prompt": words, "max_tokens": 9, "stream": true, "stream_options": asked }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": chat, "max_tokens": 7, "stream": true, "stream_options": asked }),
        ),
    ];
    if wire == EngineWire::Sglang {
        let sampling = json!({ "max_new_tokens": 6 });
        for stream in [false, true] {
            let body = json!({ "text": words, "stream": stream, "sampling_params": sampling });
            all.push(("/generate", body));
        }
    }
    all
}

#[test]
fn counters_agree_with_the_engine_to_the_token() {
    for wire in [EngineWire::Vllm, EngineWire::Sglang] {
        let text = EngineText::load(None).expect("the built-in tokenizer");
        let listen = any_port();
        let engine = EngineConfig { listen, wire, itl_ms: 0.2, ..EngineConfig::default() };
        let engine = Engine::start_with(engine, text).expect("the engine starts");
        let workers = vec![WorkerConfig { url: engine.url(), ..WorkerConfig::default() }];
        let listen = any_port();
        let admin = any_port();
        let config = Config { listen, admin, cores: vec![0, 1], workers, ..Config::default() };
        let router = router(keyed(config, vec![tenant("gold")]));
        until("the worker is up", || usable(&router) == 1);
        let mut prompt = 0;
        let mut output = 0;
        for (path, mut body) in (0..6).flat_map(|round| telling(wire, round)) {
            body["model"] = "sim".into();
            let body = body.to_string();
            let reply = sent(router.listen, "gold-key", path, body.as_bytes()).reply();
            assert_eq!(reply.status, 200, "{path} {}", reply.text());
            let (of_prompt, of_output) = usage_of(&reply);
            assert!(of_prompt > 0 && of_output > 0, "{path}: {}", reply.text());
            prompt += of_prompt;
            output += of_output;
        }
        let tokens = |kind: &str| {
            let of = format!("tenant=\"gold\",model=\"sim\",kind=\"{kind}\"");
            count(&router, &format!("forebay_tenant_tokens_total{{{of}}}"))
        };
        until("all are counted", || tokens("output") >= output);
        assert_eq!((tokens("prompt"), tokens("output")), (prompt, output));
        assert!((1..prompt).contains(&tokens("cached")), "the rounds share their beginning");
        // A stream that tells nothing: its events are counted.
        let silent = json!({ "model": "sim", "prompt": "a b c", "max_tokens": 8, "stream": true });
        let silent = silent.to_string();
        let mut client = sent(router.listen, "gold-key", "/v1/completions", silent.as_bytes());
        assert_eq!(client.reply().status, 200);
        until("it is counted too", || tokens("output") > output);
        let seen = tokens("output") - output;
        let of_prompt = tokens("prompt") - prompt;
        assert!((7..=9).contains(&seen) && of_prompt > 0, "{seen} of 8, {of_prompt}");
    }
}

#[test]
fn without_tenants_nothing_is_counted_and_nothing_told() {
    let worker = costly();
    let router = router(config(&[&worker]));
    let reply = ask(router.listen, "any", br#"{"model":"m","prompt":"5/0/5"}"#);
    assert_eq!((reply.status, reply.field("x-ratelimit-limit-requests")), (200, None));
    assert_eq!(count(&router, "forebay_tenant_tokens_total"), 0);
}

#[test]
fn who_leaves_before_the_answer_pays_for_the_prompt() {
    let gate = Gate::start();
    let limited = TenantConfig { tokens_per_minute: 1_000, ..tenant("gold") };
    let router = router(keyed(config(&[&gate.worker]), vec![limited]));
    let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "word ".repeat(400));
    let client = sent(router.listen, "gold-key", "/v1/completions", body.as_bytes());
    gate.holds(1);
    drop(client);
    until("it is counted", || count(&router, "forebay_tenant_tokens_total{tenant=\"gold\"") > 300);
    assert!(count(&router, "forebay_tenant_tokens_left{tenant=\"gold\"") < 700);
}

#[test]
fn a_stream_that_is_cut_costs_what_has_come_of_it() {
    let worker = Worker::start(|_, stream| {
        let event = |data: &str| format!("event: x\ndata: {data}\n\n");
        let first = event(r#"{"message":{"usage":{"input_tokens":7,"output_tokens":1}}}"#);
        let text = event(r#"{"delta":{"text":"a"}}"#).repeat(19);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    content-length: 9999\r\n\r\n";
        // The connection ends before the answer does.
        let _ = stream.write_all([head, &first, &text].concat().as_bytes());
        false
    });
    let router = router(keyed(config(&[&worker]), vec![tenant("gold")]));
    let body = br#"{"model":"m","max_tokens":99,"stream":true,"messages":[]}"#;
    let mut client = sent(router.listen, "gold-key", "/v1/messages", body);
    assert!(!client.reply().complete);
    let told = |kind: &str| {
        let tokens =
            format!("forebay_tenant_tokens_total{{tenant=\"gold\",model=\"*\",kind=\"{kind}\"");
        count(&router, &tokens)
    };
    until("it is counted", || told("output") == 20);
    assert_eq!(told("prompt"), 7);
}

#[test]
fn an_answer_that_is_counted_is_asked_for_in_plain() {
    let worker = Worker::json("{}");
    let router = router(keyed(config(&[&worker]), vec![tenant("gold")]));
    let mut client = Client::connect(router.listen);
    let request = String::from_utf8(post("/v1/completions", ASK)).unwrap();
    let fields = "x-api-key: gold-key\r\naccept-encoding: gzip\r\nhost:";
    client.send(request.replacen("host:", fields, 1).as_bytes());
    assert_eq!(client.reply().status, 200);
    let head = worker.next().head;
    assert!(head.contains("accept-encoding: identity") && !head.contains("gzip"), "{head}");
}

/// SGLang's order of members: what the client has sent stands behind `usage`.
fn echoing() -> Worker {
    Worker::start(|seen, stream| {
        let asked: Value = serde_json::from_slice(&seen.body).unwrap();
        let usage = json!({ "input_tokens": 100, "output_tokens": 50 });
        let response = format!("{{\"usage\":{usage},\"metadata\":{}}}", asked["metadata"]);
        let is_stream = asked["stream"] == true;
        let (kind, body) = if is_stream {
            let event = format!("{{\"type\":\"response.completed\",\"response\":{response}}}");
            ("text/event-stream", format!("event: response.completed\ndata: {event}\n\n"))
        } else {
            ("application/json", response)
        };
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).is_ok()
    })
}

#[test]
fn a_client_does_not_name_its_own_bill() {
    let worker = echoing();
    let router = router(keyed(config(&[&worker]), vec![tenant("gold")]));
    let used = |kind: &str| {
        count(
            &router,
            &format!("forebay_tenant_tokens_total{{tenant=\"gold\",model=\"*\",kind=\"{kind}\"}}"),
        )
    };
    for (turn, is_stream) in [(1, false), (2, true)] {
        let own = json!({ "input_tokens": 0, "output_tokens": 0 });
        let body = json!({
            "model": "m", "input": "hi", "stream": is_stream,
            "metadata": { "usage": own, "response": { "usage": own } },
        });
        let body = body.to_string();
        let reply = sent(router.listen, "gold-key", "/v1/responses", body.as_bytes()).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        until("it is counted", || used("output") == 50 * turn);
        assert_eq!(used("prompt"), 100 * turn);
    }
}

#[test]
fn work_behind_the_answer_is_refused_and_each_sample_is_reserved() {
    let worker = costly();
    let limited = TenantConfig { tokens_per_minute: 1_000, ..tenant("gold") };
    let router = router(keyed(config(&[&worker]), vec![limited]));
    let send = |path: &str, body: Value| {
        sent(router.listen, "gold-key", path, body.to_string().as_bytes()).reply()
    };
    let later = send("/v1/responses", json!({ "model": "m", "input": "hi", "background": true }));
    assert_eq!(later.status, 400);
    assert!(later.text().contains("`background` to false"), "{}", later.text());
    let path = "/v1/responses/resp_1/cancel";
    assert_eq!(send(path, json!({})).status, 404, "others' responses have ids too");
    let of =
        |samples: u64| json!({ "model": "m", "prompt": "1/0/1", "max_tokens": 100, "n": samples });
    assert_eq!(send("/v1/completions", of(9)).status, 200);
    let many = send("/v1/completions", of(11));
    let reason = many.field("x-forebay-reason");
    assert_eq!((many.status, reason), (429, Some("rejected-too-many-tokens")));
}
