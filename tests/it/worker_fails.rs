//! What the client sees when a worker fails at each phase.

use crate::rig::{ASK, Client, Worker, admin, config, metric, post, router, until};
use forebay::config::{EngineKind, QueueMode};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};

const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// A worker whose port nobody listens on.
fn dead() -> Worker {
    let mut worker = Worker::json("{}");
    worker.address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    worker
}

#[test]
fn a_refused_connection_is_retried_on_another_worker() {
    let bad = dead();
    let good = Worker::json(r#"{"ok":true}"#);
    let router = router(config(&[&bad, &good]));
    let mut client = Client::connect(router.listen);
    for _ in 0..4 {
        client.send(&post("/v1/completions", ASK));
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, r#"{"ok":true}"#.into()));
        assert_eq!(reply.field("x-forebay-worker"), Some(good.address.to_string().as_str()));
    }
}

#[test]
fn with_no_other_worker_the_answer_is_a_502_that_says_so() {
    let bad = dead();
    let router = router(config(&[&bad]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/chat/completions", br#"{"model":"m","messages":[]}"#));
    let reply = client.reply();
    assert_eq!(reply.status, 502);
    assert_eq!(reply.field("x-forebay-reason"), Some("upstream-failed"));
    assert!(reply.text().contains("refused"), "{}", reply.text());
    client.send(&post("/v1/chat/completions", br#"{"model":"m","messages":[]}"#));
    assert_eq!(client.reply().status, 502, "the connection is still good");
}

#[test]
fn a_pooled_connection_that_died_is_replaced_unseen() {
    // Answers once per connection, then closes without saying so, like a server whose idle time is
    // over.
    let answers = AtomicUsize::new(0);
    let worker = Worker::start(move |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        answers.fetch_add(1, Ordering::SeqCst);
        false
    });
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    for _ in 0..20 {
        client.send(&post("/v1/completions", ASK));
        assert_eq!(client.reply().status, 200);
    }
}

#[test]
fn death_in_the_middle_of_a_stream_is_told_and_not_dressed_up() {
    let worker = Worker::start(|_, stream| {
        stream.write_all(STREAM_HEAD).unwrap();
        stream.write_all(b"9\r\ndata: x\n\n\r\n5\r\nda").unwrap();
        false
    });
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    let reply = client.reply();
    assert!(!reply.complete, "no clean end");
    let text = reply.text();
    assert!(text.starts_with("data: x\n\n"), "{text}");
    assert!(text.contains("data: {\"error\":{\"message\":\"The worker failed"), "{text}");
    assert!(client.at_end());
}

/// C6: clients of each API know the event.
#[test]
fn death_in_the_middle_of_a_stream_is_told_in_the_words_of_its_api() {
    let worker = Worker::start(|seen, stream| {
        stream.write_all(STREAM_HEAD).unwrap();
        let begun = if seen.head.contains("half") { "data: {\"x" } else { "data: x\n\n" };
        stream.write_all(format!("{:x}\r\n{begun}\r\n", begun.len()).as_bytes()).unwrap();
        false
    });
    let router = router(config(&[&worker]));
    let body = br#"{"model":"m","messages":[{"role":"user","content":"a"}],"input":"a","max_tokens":9,"stream":true}"#;
    for (path, start, data) in [
        ("/v1/chat/completions", "", "{\"error\":{\"message\":\"The worker failed"),
        (
            "/v1/messages",
            "event: error\n",
            "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"The",
        ),
        (
            "/v1/responses",
            "event: error\n",
            "{\"type\":\"error\",\"code\":\"upstream-failed\",\"message\":\"The",
        ),
    ] {
        // Half of an event is no event.
        for (query, begun) in [("", "data: x\n\n"), ("?half", "")] {
            let mut client = Client::connect(router.listen);
            client.send(&post(&format!("{path}{query}"), body));
            let reply = client.reply();
            let text = reply.text();
            assert!(!reply.complete, "no clean end");
            assert!(text.starts_with(&format!("{begun}{start}data: {data}")), "{path}: {text}");
            assert!(text.ends_with("}\n\n"), "{text}");
        }
    }
}

#[test]
fn death_in_the_middle_of_a_plain_answer_is_a_short_body() {
    let worker = Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort").unwrap();
        false
    });
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    let reply = client.reply();
    assert_eq!((reply.complete, reply.text()), (false, "short".into()));
}

#[test]
fn an_answer_that_is_not_http_is_a_502() {
    let worker = Worker::start(|_, stream| {
        stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n\r\n").unwrap();
        false
    });
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    assert_eq!(client.reply().status, 502);
}

const FULL: &[u8] =
    b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\nretry-after-ms: 7000\r\ncontent-length: 2\r\n\r\n{}";

/// I2: how long an engine asks for is for the client. The rank is tried again after milliseconds.
#[test]
fn the_client_of_a_full_engine_waits_as_long_as_the_engine_asks() {
    let worker = Worker::start(|_, stream| stream.write_all(FULL).is_ok());
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    let reply = client.reply();
    let reason = reply.field("x-forebay-reason").unwrap_or("");
    assert_eq!((reply.status, reason), (429, "rejected-busy"));
    // And up to half more by chance.
    let after: u64 = reply.field("retry-after").unwrap().parse().unwrap();
    assert!((7..=11).contains(&after), "{after}");
    assert!(worker.seen.try_iter().count() > 1, "asked again meanwhile");
}

/// I2, F1: a worker that limits one caller serves the others at once, and the caller gets the
/// worker's own answer.
#[test]
fn a_worker_that_limits_one_caller_serves_the_others() {
    const LIMITED: &str = r#"{"error":{"message":"Rate limit reached for key A"}}"#;
    for engine in [EngineKind::Openai, EngineKind::Vllm] {
        for mode in [QueueMode::Pool, QueueMode::Off] {
            let worker = Worker::start(|seen, stream| {
                if !seen.head.contains("Bearer A") {
                    let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    return stream.write_all(ok).is_ok();
                }
                let length = LIMITED.len();
                let head = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 60\r\ncontent-type: a/b";
                // The router dropped these fields, and sent no name of the worker.
                let more =
                    "retry-after-ms: 59001\r\nx-should-retry: false\r\ncontent-encoding: gzip";
                write!(stream, "{head}\r\n{more}\r\ncontent-length: {length}\r\n\r\n{LIMITED}")
                    .is_ok()
            });
            let mut config = config(&[&worker]);
            config.workers[0].engine = Some(engine);
            config.flow.queue.mode = mode;
            let router = router(config);
            let mut client = Client::connect(router.listen);
            let mut asked = |key: &str| {
                let head = format!("POST /v1/completions?{key} HTTP/1.1\r\nhost: router");
                let fields =
                    format!("authorization: Bearer {key}\r\ncontent-length: {}", ASK.len());
                client.send(&[format!("{head}\r\n{fields}\r\n\r\n").as_bytes(), ASK].concat());
                client.reply()
            };
            for _ in 0..2 {
                let limited = asked("A");
                assert_eq!((limited.status, limited.text()), (429, LIMITED.into()));
                let fields = [limited.field("retry-after"), limited.field("content-type")];
                assert_eq!(fields, [Some("60"), Some("a/b")]);
                let fields = ["retry-after-ms", "x-should-retry", "content-encoding"];
                let fields = fields.map(|name| limited.field(name));
                assert_eq!(fields, [Some("59001"), Some("false"), Some("gzip")]);
                assert!(limited.field("x-forebay-worker").is_some(), "{}", limited.head);
                assert_eq!([(); 3].map(|()| asked("B").status), [200; 3], "{engine:?} {mode:?}");
            }
        }
    }
}

/// I2: what a worker refuses of one model says nothing of another.
#[test]
fn a_model_without_room_leaves_the_others_of_its_worker_alone() {
    let worker = Worker::start(|seen, stream| {
        let is_loading = String::from_utf8_lossy(&seen.body).contains("\"loading\"");
        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(if is_loading { FULL } else { ok }).is_ok()
    });
    let mut config = config(&[&worker]);
    config.workers[0].models = vec!["loading".into(), "m".into()];
    config.flow.queue.mode = QueueMode::Off;
    let router = router(config);
    let mut client = Client::connect(router.listen);
    let mut asked = |body: &str| {
        client.send(&post("/v1/completions", body.as_bytes()));
        let reply = client.reply();
        (reply.status, reply.text())
    };
    for _ in 0..20 {
        assert_eq!(asked(r#"{"model":"loading","prompt":"a"}"#).0, 429);
        assert_eq!(asked(r#"{"model":"m","prompt":"a"}"#), (200, "{}".into()));
    }
}

/// I2: nor does what waits for the refused model bar the queue that both models share.
#[test]
fn requests_that_wait_for_a_refused_model_bar_no_other_model() {
    let worker = Worker::start(|seen, stream| {
        let is_loading = String::from_utf8_lossy(&seen.body).contains("\"loading\"");
        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(if is_loading { FULL } else { ok }).is_ok()
    });
    let mut config = config(&[&worker]);
    config.workers[0].models = vec!["loading".into(), "m".into()];
    let router = router(config);
    let mut waits = Client::connect(router.listen);
    waits.send(&post("/v1/completions", br#"{"model":"loading","prompt":"a"}"#));
    until("it is refused, and waits", || metric(&router, "forebay_engine_refusals_total") >= 3.0);
    let mut client = Client::connect(router.listen);
    for _ in 0..20 {
        client.send(&post("/v1/completions", ASK));
        assert_eq!(client.reply().status, 200);
    }
    let refusals = metric(&router, "forebay_engine_refusals_total");
    assert!(refusals < 8.0, "{refusals}: the others were served while it waited");
}

/// C9: vLLM refuses for all ranks of a server.
#[test]
fn a_server_without_room_is_left_alone_with_all_its_ranks() {
    for (engine, asked) in [(EngineKind::Vllm, 1), (EngineKind::Sglang, 4)] {
        let full = Worker::start(|_, stream| stream.write_all(FULL).is_ok());
        let good = Worker::json("{}");
        let mut config = config(&[&full, &good]);
        config.workers[0].engine = Some(engine);
        config.workers[0].ranks = Some(4);
        let router = router(config);
        let mut client = Client::connect(router.listen);
        let held = || {
            let workers: Value = serde_json::from_slice(&admin(&router, "/workers").body).unwrap();
            let ranks = workers["workers"][0]["ranks"].as_array().unwrap().clone();
            ranks.iter().filter(|rank| rank["busy_ms"] != 0).count()
        };
        let mut seen = 0;
        let mut most = 0;
        until("the full server is asked", || {
            client.send(&post("/v1/completions", ASK));
            assert_eq!(client.reply().status, 200);
            seen += full.seen.try_iter().count();
            most = most.max(held());
            seen >= asked
        });
        assert!(engine != EngineKind::Vllm || most == 4, "{most} ranks are held");
    }
}

/// A server with a limit of its own: it answers before the body has come, and closes. The kernel
/// then resets the connection.
#[test]
fn an_early_answer_to_a_large_body_reaches_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut worker = Worker::json("{}");
    worker.address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _head = stream.read(&mut [0; 1_024]);
            let _sent = stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}");
        }
    });
    let router = router(config(&[&worker]));
    for size in [20_000, 100_000, 1_000_000] {
        let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(size));
        for _ in 0..15 {
            let mut client = Client::connect(router.listen);
            client.send(&post("/v1/completions", body.as_bytes()));
            let status = client.reply().status;
            // The reset may overtake the connection, but never an answer that has come.
            assert!(status == 413 || status == 502, "{size} bytes: {status}");
        }
    }
    assert_eq!(metric(&router, "forebay_tasks_panicked_total"), 0.0);
}
