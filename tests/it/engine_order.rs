//! The number that vLLM's own queue is ordered by: where it is sent, and what it replaces.

use crate::rig::pairs::{ask, pair_config, ready};
use crate::rig::stub::{Stub, answer};
use crate::rig::stub_pages::Pages;
use crate::rig::{ASK, Client, Worker, config, post, router};
use forebay::config::{Config, EngineKind};
use std::io::Write;
use std::time::{Duration, SystemTime};

/// Priorities of clients above 0 stand behind it.
const USUAL_LAST: i64 = i32::MAX as i64 - (1 << 20);

fn ordered(workers: &[&Worker], engine: EngineKind) -> Config {
    let mut config = config(workers);
    config.engine = engine;
    by_arrival(&mut config);
    config
}

/// The number is that of the arrival alone.
fn by_arrival(config: &mut Config) {
    config.flow.queue.engine_priority = true;
    config.flow.queue.overtaken_max = 0;
}

/// Quarters of a second since 2026-01-01.
fn steps_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let steps = (since - Duration::from_secs(1_767_225_600)).as_millis() / 250;
    i64::try_from(steps).unwrap()
}

/// The value that the worker was told; `None` without the field.
fn told(head: &str) -> Option<i64> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut values = lines.filter(|(name, _)| name.eq_ignore_ascii_case("x-vllm-priority"));
    let value = values.next().map(|(_, value)| value.trim().parse().unwrap());
    assert!(values.next().is_none(), "twice: {head}");
    value
}

fn with_fields(fields: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let request = String::from_utf8(post(path, body)).unwrap();
    request.replacen("host:", &format!("{fields}host:"), 1).into_bytes()
}

#[test]
fn vllm_is_told_when_each_request_came() {
    let worker = Worker::json("{}");
    let router = router(ordered(&[&worker], EngineKind::Vllm));
    let mut client = Client::connect(router.listen);
    let chat =
        br#"{ "model":"m", "messages":[{"role":"user","content":"h\u00e9"}],"priority" : 0 }"#;
    let mut before = steps_now();
    for (path, body) in [
        ("/v1/completions", ASK),
        ("/v1/chat/completions", chat),
        ("/v1/messages", chat),
        ("/v1/responses", br#"{"model":"m","input":"hi"}"#),
    ] {
        client.send(&post(path, body));
        assert_eq!(client.reply().status, 200);
        let seen = worker.next();
        assert_eq!(seen.body, body, "the body is the client's");
        let number = told(&seen.head).expect("a number");
        assert!((before..=steps_now()).contains(&number), "{number} after {before}");
        before = number;
    }
    let pieces = b"POST /v1/completions HTTP/1.1\r\nhost: router\r\n\
                   content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let (first, rest) = ASK.split_at(9);
    let chunk =
        |piece: &[u8]| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
    client.send(&[&pieces[..], &chunk(first), &chunk(rest), b"0\r\n\r\n"].concat());
    assert_eq!(client.reply().status, 200);
    let seen = worker.next();
    assert_eq!(seen.body, ASK);
    assert!(told(&seen.head).is_some_and(|number| number >= before), "{}", seen.head);
}

#[test]
fn a_prompt_that_takes_long_is_told_a_later_time() {
    let worker = Worker::start(|_, stream| {
        std::thread::sleep(Duration::from_millis(20));
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok()
    });
    let mut config = ordered(&[&worker], EngineKind::Vllm);
    config.flow.queue.overtaken_max = 1_000;
    let router = router(config);
    let mut client = Client::connect(router.listen);
    let mut steps_later = |prompt: &str| {
        let body = format!(r#"{{"model":"m","prompt":"{prompt}","max_tokens":1}}"#);
        let now = steps_now();
        client.send(&post("/v1/completions", body.as_bytes()));
        assert_eq!(client.reply().status, 200);
        told(&worker.next().head).unwrap() - now
    };
    let long = "a b c d ".repeat(1_000);
    assert!(steps_later(&long) <= 4, "no speed is known yet");
    for _ in 0..4 {
        steps_later(&long);
    }
    let long = steps_later(&long);
    let short = steps_later("hi");
    // 20 ms and more, 1,000 times.
    assert!(long >= 40 && short < long, "{long} {short}");
}

#[test]
fn nothing_else_is_told() {
    for (engine, is_on) in
        [(EngineKind::Vllm, false), (EngineKind::Sglang, true), (EngineKind::Openai, true)]
    {
        let worker = Worker::json("{}");
        let mut config = ordered(&[&worker], engine);
        config.flow.queue.engine_priority = is_on;
        let router = router(config);
        let mut client = Client::connect(router.listen);
        client.send(&post("/v1/completions", ASK));
        assert_eq!(client.reply().status, 200);
        let seen = worker.next();
        assert_eq!((told(&seen.head), &*seen.body), (None, ASK), "{engine:?}");
    }
}

/// All that ask for less than 0 go before the usual ones, all that ask for more behind.
#[test]
fn the_order_of_clients_stays() {
    let worker = Worker::json("{}");
    let mut config = ordered(&[&worker], EngineKind::Vllm);
    config.flow.tenants = vec![forebay::config::TenantConfig {
        name: "gold".to_owned(),
        ..forebay::config::TenantConfig::default()
    }];
    config.flow.queue.tenant_header = "x-team".to_owned();
    let router = router(config);
    let mut client = Client::connect(router.listen);
    let early = br#"{"model":"m","prompt":"hi","priority":-5}"#;
    let late = br#"{"model":"m","prompt":"hi","priority":3}"#;
    let mut number = |fields: &str, body: &[u8]| {
        client.send(&with_fields(fields, "/v1/completions", body));
        assert_eq!(client.reply().status, 200);
        let seen = worker.next();
        assert_eq!(seen.body, body);
        told(&seen.head).expect("a number")
    };
    assert_eq!(number("x-team: gold\r\n", early), -5);
    assert_eq!(number("", late), USUAL_LAST + 3);
    assert_eq!(number("x-vllm-priority: 4\r\n", late), USUAL_LAST + 4);
    assert_eq!(
        number("x-team: gold\r\nx-vllm-priority: -99999999999\r\n", ASK),
        i64::from(i32::MIN)
    );
    // A caller that may not go before others has the usual place.
    let usual = number("", early);
    assert!((steps_now() - 8..=steps_now()).contains(&usual), "{usual}");
}

#[test]
fn the_next_worker_is_told_the_same() {
    let busy = Worker::start(|_, stream| {
        let refused = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(refused).is_ok()
    });
    let good = Worker::json("{}");
    let mut config = ordered(&[&busy, &good], EngineKind::Vllm);
    config.retry.budget_percent = 100;
    let router = router(config);
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(router.listen);
        client.send(&post("/v1/completions", ASK));
        assert_eq!(client.reply().status, 200);
        numbers.push(told(&good.next().head).unwrap());
    }
    let refused = told(&busy.next().head).expect("the first worker is told too");
    let apart = numbers.iter().map(|number| number - refused).min_by_key(|apart| apart.abs());
    assert!(apart.is_some_and(|apart| apart.abs() <= 1), "{refused} and {numbers:?}");
}

#[test]
fn both_legs_are_told_the_same() {
    let stubs = [Stub::start(Pages::vllm()), Stub::start(Pages::vllm())];
    let workers = [(&stubs[0], "role = \"prefill\""), (&stubs[1], "role = \"decode\"")];
    let mut config = pair_config(&workers, "");
    by_arrival(&mut config);
    let router = ready(config, &workers);
    stubs[0].always(answer(br#"{"kv_transfer_params":{"do_remote_prefill":true}}"#));
    let reply = ask(&router, "/v1/completions", r#"{"model":"m","prompt":"hi"}"#).reply();
    assert_eq!(reply.status, 200);
    let heads = stubs.each_ref().map(|stub| stub.arrival(0).head);
    let numbers = heads.each_ref().map(|head| told(head).expect("a number"));
    assert_eq!(numbers[0], numbers[1]);
    assert!((steps_now() - 40..=steps_now()).contains(&numbers[0]), "{numbers:?}");
}
