//! Faults on demand of the simulated engine, seen from a plain socket: where the bytes end, and
//! that one fault is for one request.

#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "helpers of tests may stop the test and look at the clock"
)]

use crate::rig::{DEADLINE, client};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText, EngineWire};
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn start(wire: EngineWire) -> EngineHandle {
    static TEXT: OnceLock<EngineText> = OnceLock::new();
    let text = TEXT.get_or_init(|| EngineText::load(None).expect("loads"));
    let listen = "127.0.0.1:0".parse().expect("address");
    let config = EngineConfig { listen, wire, itl_ms: 1.0, ..EngineConfig::default() };
    Engine::start_with(config, text.clone()).expect("engine starts")
}

async fn plan(engine: &EngineHandle, order: Value) {
    let url = format!("{}/debug/fault", engine.url());
    let answer = client().post(url).json(&order).send().await.expect("answers");
    assert_eq!(answer.status(), 200, "{order}");
}

/// All that comes back for a completion until the connection ends or `Connection: close` is obeyed.
async fn raw(engine: &EngineHandle, stream: bool) -> Vec<u8> {
    let mut socket = TcpStream::connect(engine.addr()).await.expect("connects");
    let body = json!({ "prompt": "one two", "max_tokens": 3, "stream": stream }).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + &body).as_bytes()).await.expect("writes");
    let mut answer = Vec::new();
    let mut part = [0; 4_096];
    let reading = async {
        // A reset is an end too.
        while let Ok(count) = socket.read(&mut part).await {
            if count == 0 {
                break;
            }
            answer.extend_from_slice(part.get(..count).expect("in range"));
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.expect("ends");
    answer
}

fn body_of(answer: &[u8]) -> Option<&[u8]> {
    let at = answer.windows(4).position(|end| end == b"\r\n\r\n")?;
    answer.get(at + 4..)
}

#[tokio::test]
async fn connections_end_at_the_phase_that_was_asked_for() {
    for (wire, stream) in
        [(EngineWire::Vllm, false), (EngineWire::Vllm, true), (EngineWire::Sglang, true)]
    {
        let engine = start(wire);
        let cut = |at: &str| json!({ "at": at, "body_bytes": 7 });
        plan(&engine, cut("before_head")).await;
        assert_eq!(raw(&engine, stream).await, b"");
        plan(&engine, cut("in_head")).await;
        assert_eq!(raw(&engine, stream).await, b"HTTP/1.1 200");
        plan(&engine, cut("after_head")).await;
        let answer = raw(&engine, stream).await;
        assert_eq!(body_of(&answer), Some(&b""[..]), "{answer:?}");
        plan(&engine, cut("mid_body")).await;
        let answer = raw(&engine, stream).await;
        assert_eq!(body_of(&answer).map(<[u8]>::len), Some(7), "{answer:?}");
        let whole = raw(&engine, stream).await;
        assert!(body_of(&whole).is_some_and(|body| body.len() > 100), "one fault, one request");
        let until = Instant::now() + DEADLINE;
        while engine.stats().iter().any(|rank| rank.requests.running + rank.requests.waiting > 0) {
            assert!(Instant::now() < until, "what died holds no place");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn engines_answer_with_an_error_refuse_or_hang() {
    for wire in [EngineWire::Vllm, EngineWire::Sglang] {
        let engine = start(wire);
        let ask = || {
            let url = format!("{}/v1/completions", engine.url());
            client().post(url).json(&json!({ "prompt": "one", "max_tokens": 2 })).send()
        };
        for (at, status) in [("error", 500), ("refuse", 503)] {
            plan(&engine, json!({ "at": at, "count": 2 })).await;
            for wanted in [status, status, 200] {
                let answer = ask().await.expect("answers");
                assert_eq!(answer.status(), wanted);
                let body: Value = answer.json().await.expect("JSON");
                assert_eq!(body.get("error").is_some(), wanted != 200, "{body}");
            }
        }
        plan(&engine, json!({ "at": "hang" })).await;
        let silent = tokio::time::timeout(Duration::from_millis(100), ask()).await;
        assert!(silent.is_err());
        assert_eq!(ask().await.expect("answers").status(), 200);
        let told = client().get(format!("{}/debug/fault", engine.url())).send().await;
        let told: Value = told.expect("answers").json().await.expect("JSON");
        assert_eq!((&told["met"], &told["count"]), (&json!(5), &json!(0)));
        let wrong = client().post(format!("{}/debug/fault", engine.url()));
        let wrong = wrong.json(&json!({ "at": "sometime" })).send().await.expect("answers");
        assert_eq!(wrong.status(), 400);
    }
}

#[tokio::test]
async fn a_deaf_engine_is_not_connected_to_until_it_listens_again() {
    let engine = start(EngineWire::Vllm);
    plan(&engine, json!({ "at": "connect", "ms": 500 })).await;
    let deaf = Instant::now();
    let until = deaf + DEADLINE;
    let mut refused = 0;
    loop {
        match TcpStream::connect(engine.addr()).await {
            Ok(_) if refused > 0 => break,
            Ok(_) => {}
            Err(_) => refused += 1,
        }
        assert!(Instant::now() < until, "{refused}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(deaf.elapsed() >= Duration::from_millis(490), "{:?}", deaf.elapsed());
    assert!(body_of(&raw(&engine, false).await).is_some());
}
