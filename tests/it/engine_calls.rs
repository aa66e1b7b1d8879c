//! Calls that the admin API hands to engines: to all, to one, and what is no such call.

use crate::rig::{Client, Gate, Worker, admin_post, config, router, until};
use forebay::base::limits::ENGINE_CALLS_MAX;
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpListener;

/// Answers everything with that status and body.
fn engine(status: u16, body: &'static str) -> Worker {
    Worker::start(move |_, stream| {
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).is_ok()
    })
}

/// In front of `w0` and `w1`; the first has a key.
fn in_front_of(workers: &[&Worker]) -> ServerHandle {
    let mut config = config(workers);
    for (number, worker) in config.workers.iter_mut().enumerate() {
        worker.name = Some(format!("w{number}"));
        worker.models = vec!["m".to_owned()];
    }
    config.workers[0].api_key = Some("k0".to_owned());
    router(config)
}

fn said(router: &ServerHandle, request: &[u8]) -> (u16, Value) {
    let mut client = Client::connect(router.admin);
    client.send(request);
    let reply = client.reply();
    let text = reply.text();
    (reply.status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn post(router: &ServerHandle, path: &str, body: &[u8]) -> (u16, Value) {
    said(router, &admin_post(path, body))
}

fn get(router: &ServerHandle, path: &str) -> (u16, Value) {
    said(router, format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())
}

#[test]
fn a_call_reaches_all_engines_and_the_answer_says_what_each_said() {
    let first = engine(200, r#"{"ok":1}"#);
    let second = engine(400, "no");
    let router = in_front_of(&[&first, &second]);
    let (status, answer) = post(&router, "/engines/v1/load_lora_adapter?a=1&b=%20", br#"{"x":2}"#);
    let expected = json!({ "workers": [
        { "worker": "w0", "status": 200, "answer": { "ok": 1 } },
        { "worker": "w1", "status": 400, "answer": "no" },
    ] });
    assert_eq!((status, answer), (502, expected));
    for (worker, key) in [(&first, Some("k0")), (&second, None)] {
        let seen = worker.next();
        let head = seen.head.to_ascii_lowercase();
        assert!(head.starts_with("post /v1/load_lora_adapter?a=1&b=%20 http/1.1\r\n"), "{head}");
        assert!(head.contains("content-type: application/json\r\n"), "{head}");
        let bearer = head.lines().find_map(|line| line.strip_prefix("authorization: bearer "));
        assert_eq!((bearer, &*seen.body), (key, &br#"{"x":2}"#[..]));
    }
    let (status, answer) = post(&router, "/workers/w0/engine/flush_cache", b"");
    assert_eq!((status, &answer["workers"][0]["answer"]), (200, &json!({ "ok": 1 })));
    let head = first.next().head.to_ascii_lowercase();
    assert!(head.starts_with("post /flush_cache http/1.1\r\n"), "{head}");
    assert!(!head.contains("content-type"), "{head}");
    assert_eq!(get(&router, "/workers/w0/engine/get_server_info").0, 200);
    assert!(first.next().head.starts_with("GET /get_server_info HTTP/1.1\r\n"));
    assert!(second.seen.try_recv().is_err(), "only one was asked");
}

#[test]
fn what_is_no_call_reaches_no_engine() {
    let worker = engine(200, "{}");
    let router = in_front_of(&[&worker]);
    for path in [
        "/engines/v1/chat/completions",
        "/engines/flush_cache/../v1/models",
        "/engines/%66lush_cache",
        "/engines/flush_cache/",
        "/engines//flush_cache",
        "/engines/",
        "/workers/w0/engine/v1/models",
        "/workers/other/engine/flush_cache",
    ] {
        assert_eq!(post(&router, path, b"").0, 404, "{path}");
    }
    // A page of another site could make a browser send it.
    assert_eq!(get(&router, "/engines/flush_cache").0, 405);
    assert!(worker.seen.try_recv().is_err());
}

#[test]
fn an_engine_that_cannot_be_asked_is_named() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let worker = engine(200, "fine");
    let mut config = config(&[&worker]);
    config.workers[0].name = Some("here".to_owned());
    let mut other = config.workers[0].clone();
    other.name = Some("gone".to_owned());
    other.url = format!("http://{gone}");
    config.workers.insert(0, other);
    let router = router(config);
    let (status, answer) = get(&router, "/engines/metrics");
    assert_eq!(status, 502);
    assert_eq!(answer["workers"][0]["worker"], "gone");
    let error = answer["workers"][0]["error"].as_str().unwrap();
    assert!(error.contains("/metrics") && error.contains("refused"), "{error}");
    assert_eq!(answer["workers"][1], json!({ "worker": "here", "status": 200, "answer": "fine" }));
}

#[test]
fn calls_that_hang_are_few() {
    let gate = Gate::start();
    let router = in_front_of(&[&gate.worker]);
    let hanging: Vec<Client> = (0..ENGINE_CALLS_MAX)
        .map(|_| {
            let mut client = Client::connect(router.admin);
            client.send(&admin_post("/engines/flush_cache", b""));
            client
        })
        .collect();
    gate.holds(ENGINE_CALLS_MAX);
    assert_eq!(post(&router, "/engines/flush_cache", b"").0, 503);
    let _worker = gate.open_for_good();
    for mut client in hanging {
        assert_eq!(client.reply().status, 200);
    }
    until("there is room again", || post(&router, "/engines/flush_cache", b"").0 == 200);
}
