//! Two simulated engines as prefill and decode: who waits for whom, what is held until when, what
//! fails how.

#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "helpers of tests may stop the test and look at the clock"
)]

use crate::rig::{DEADLINE, client, start};
use forebay::engine::{
    EngineConfig, EngineHandle, EngineRole, EngineWire, SglangTransfer, TransferSettings,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn config(role: EngineRole) -> EngineConfig {
    EngineConfig {
        listen: "127.0.0.1:0".parse().expect("address"),
        wire: EngineWire::Sglang,
        role,
        kv_blocks: 512,
        prefill_tokens_per_s: 1e6,
        itl_ms: 1.0,
        ..EngineConfig::default()
    }
}

fn waits(sglang: SglangTransfer) -> TransferSettings {
    TransferSettings { sglang, ..TransferSettings::default() }
}

fn with(role: EngineRole, transfer: TransferSettings) -> EngineHandle {
    start(EngineConfig { transfer, ..config(role) })
}

fn pair() -> (EngineHandle, EngineHandle) {
    (start(config(EngineRole::Prefill)), start(config(EngineRole::Decode)))
}

type Answered = tokio::task::JoinHandle<(u16, String)>;

/// Sends a request in the background.
fn send(engine: &EngineHandle, path: &str, body: &Value) -> Answered {
    let request = client().post(format!("{}{path}", engine.url())).json(body);
    tokio::spawn(async move {
        let response = request.send().await.expect("answers");
        (response.status().as_u16(), response.text().await.expect("body"))
    })
}

async fn post(engine: &EngineHandle, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = send(engine, path, body).await.expect("task");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// A request for 5 tokens that both halves get.
fn meeting(prefill: &EngineHandle, room: i64) -> Value {
    json!({
        "text": "how does a lake become a forest", "sampling_params": { "max_new_tokens": 5 },
        "rid": format!("fb-{room:016x}"), "bootstrap_host": "127.0.0.1",
        "bootstrap_port": prefill.registry_port(), "bootstrap_room": room,
    })
}

async fn metric(engine: &EngineHandle, name: &str) -> f64 {
    let page = client().get(format!("{}/metrics", engine.url())).send().await.expect("answers");
    let page = page.text().await.expect("body");
    let named = |line: &&str| line.split(['{', ' ']).next() == Some(name);
    let values = page.lines().filter(named).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().expect("number")).sum()
}

async fn until_metric(engine: &EngineHandle, name: &str, wanted: f64) {
    let until = Instant::now() + DEADLINE;
    loop {
        let now = metric(engine, name).await;
        if now == wanted {
            return;
        }
        assert!(Instant::now() < until, "{name} stays {now}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Nothing is left of any request.
async fn until_idle(engine: &EngineHandle) {
    for name in ["open", "in_flight", "kv_held", "rooms_waiting", "questions_early"] {
        until_metric(engine, &format!("forebay_engine_{name}"), 0.0).await;
    }
    assert_eq!(engine.stats()[0].used_blocks, 0);
}

#[tokio::test]
async fn a_pair_answers_what_a_whole_engine_answers() {
    let (prefill, decode) = pair();
    let whole = start(config(EngineRole::Both));
    let (_, expected) = post(&whole, "/generate", &meeting(&prefill, 7)).await;
    for (room, decode_first) in [(7, false), (8, true)] {
        let body = meeting(&prefill, room);
        let (p, d) = if decode_first {
            let d = send(&decode, "/generate", &body);
            until_metric(&decode, "forebay_engine_rooms_waiting", 1.0).await;
            (send(&prefill, "/generate", &body), d)
        } else {
            let p = send(&prefill, "/generate", &body);
            until_metric(&prefill, "forebay_engine_rooms_waiting", 1.0).await;
            assert!(!p.is_finished(), "prefill does not answer before its KV is taken");
            (p, send(&decode, "/generate", &body))
        };
        let parse = |(status, text): (u16, String)| {
            assert_eq!(status, 200, "{text}");
            serde_json::from_str::<Value>(&text).expect("JSON")
        };
        let p = parse(p.await.expect("task"));
        let d = parse(d.await.expect("task"));
        assert_eq!((&d["text"], &d["output_ids"]), (&expected["text"], &expected["output_ids"]));
        assert_eq!(p["output_ids"], json!([d["output_ids"][0]]), "one token from the prefill");
        assert_eq!(d["meta_info"]["id"], format!("fb-{room:016x}"));
        assert_eq!(
            d["meta_info"]["cached_tokens"], p["meta_info"]["cached_tokens"],
            "what the prefill found in its cache is told by the decode"
        );
    }
    until_idle(&prefill).await;
    until_idle(&decode).await;
    assert_eq!(decode.stats()[0].tokens.queried, 0, "nothing was prefilled there");
}

#[tokio::test]
async fn chats_and_completions_stream_from_the_decode() {
    let (prefill, decode) = pair();
    let whole = start(config(EngineRole::Both));
    let bodies = [
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 4 }),
        ),
        ("/v1/completions", json!({ "prompt": "hi there", "max_tokens": 4 })),
    ];
    for (room, (path, mut body)) in (1..).zip(bodies) {
        body["stream"] = true.into();
        let (_, expected) = send(&whole, path, &body).await.expect("task");
        for (name, value) in meeting(&prefill, room).as_object().expect("object") {
            if name.starts_with("bootstrap") || name == "rid" {
                body[name] = value.clone();
            }
        }
        let p = send(&prefill, path, &body);
        let (status, streamed) = send(&decode, path, &body).await.expect("task");
        assert_eq!((status, p.await.expect("task").0), (200, 200));
        assert_eq!(texts(&streamed), texts(&expected));
        assert!(streamed.ends_with("data: [DONE]\n\n"));
    }
}

/// Text of every event of a stream.
fn texts(stream: &str) -> Vec<String> {
    let events = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let text = |event: &str| -> Option<String> {
        let event: Value = serde_json::from_str(event).ok()?;
        let choice = &event["choices"][0];
        let text = choice.get("text").or_else(|| choice["delta"].get("content"))?;
        text.as_str().map(str::to_owned)
    };
    events.filter_map(text).collect()
}

#[tokio::test]
async fn batches_meet_room_by_room() {
    let (prefill, decode) = pair();
    let port = prefill.registry_port();
    let list = json!({
        "input_ids": [[5, 6, 7], [8, 9, 10]], "sampling_params": { "max_new_tokens": 2 },
        "bootstrap_host": ["127.0.0.1", "127.0.0.1"], "bootstrap_port": [port, port],
        "bootstrap_room": [7, 9],
    });
    let mut row = list.clone();
    for (name, value) in meeting(&prefill, 100).as_object().expect("object") {
        if name.starts_with("bootstrap") {
            row[name] = value.clone();
        }
    }
    let several = json!({
        "prompt": "hi", "n": 3, "max_tokens": 2, "bootstrap_host": "127.0.0.1",
        "bootstrap_port": port, "bootstrap_room": 200,
    });
    let cases = [("/generate", list), ("/generate", row), ("/v1/completions", several)];
    for (path, body) in cases {
        let p = send(&prefill, path, &body);
        let (status, answer) = post(&decode, path, &body).await;
        assert_eq!((status, p.await.expect("task").0), (200, 200), "{answer}");
    }
    until_idle(&prefill).await;
    // The second answer to each prompt of a list uses its room again: a conflict, as in SGLang.
    let twice = json!({
        "prompt": ["a", "b"], "n": 2, "max_tokens": 1, "bootstrap_host": ["127.0.0.1", "127.0.0.1"],
        "bootstrap_port": [port, port], "bootstrap_room": [7, 9],
    });
    let (status, answer) = post(&prefill, "/v1/completions", &twice).await;
    assert_eq!(status, 500, "{answer}");
    let message = answer["error"]["message"].as_str().expect("text");
    assert!(message.contains("Duplicate or cancelled bootstrap room"), "{message}");
}

#[tokio::test]
async fn plain_requests_and_broken_rooms_are_refused() {
    let (prefill, decode) = pair();
    for engine in [&prefill, &decode] {
        let plain = json!({ "text": "hi", "rid": "abc" });
        let (status, answer) = post(engine, "/generate", &plain).await;
        assert_eq!(status, 400);
        let message = answer["error"]["message"].as_str().expect("text");
        assert!(message.contains("without bootstrap room id. req.rid='abc'"), "{message}");
        let chat = json!({ "messages": [{ "role": "user", "content": "x" }] });
        assert_eq!(post(engine, "/v1/chat/completions", &chat).await.0, 400);
        for (room, message) in [
            (json!(u64::MAX), "integer out of range"),
            (json!("12"), "expected a value or an array of values for OptionalInt64OrList"),
        ] {
            let mut body = meeting(&prefill, 1);
            body["bootstrap_room"] = room;
            let (status, answer) = post(engine, "/generate", &body).await;
            assert_eq!(status, 400);
            assert!(answer["error"]["message"].as_str().expect("text").contains(message));
        }
        let fake = json!({
            "text": "hi", "sampling_params": { "max_new_tokens": 1 },
            "bootstrap_host": "2.2.2.2", "bootstrap_room": 5,
        });
        assert_eq!(post(engine, "/generate", &fake).await.0, 200, "health checks meet nobody");
    }
}

#[tokio::test]
async fn the_registry_tells_when_the_engine_is_ready() {
    let own_port = EngineConfig {
        transfer: TransferSettings {
            register_after: Duration::from_millis(300),
            bootstrap_port: Some(0),
            ..TransferSettings::default()
        },
        ..config(EngineRole::Prefill)
    };
    let prefill = start(own_port);
    assert_ne!(prefill.registry_port(), prefill.addr().port());
    let base = format!("http://127.0.0.1:{}", prefill.registry_port());
    let query = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";
    let get = |path: String| client().get(format!("{base}{path}")).send();
    assert_eq!(get("/health".into()).await.expect("answers").text().await.expect("text"), "OK");
    let early = get(format!("/route?{query}")).await.expect("answers");
    assert_eq!(early.status(), 503);
    assert_eq!(
        early.text().await.expect("text"),
        "Prefill server not fully registered yet (0 workers registered)."
    );
    let until = Instant::now() + DEADLINE;
    let told: Value = loop {
        let answer = get(format!("/route?{query}")).await.expect("answers");
        if answer.status() == 200 {
            break answer.json().await.expect("JSON");
        }
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((&told["dp_size"], &told["follow_bootstrap_room"]), (&json!(1), &json!(true)));
    assert_eq!(get("/route".into()).await.expect("answers").status(), 400);
    let info = client().get(format!("{}/server_info", prefill.url())).send().await;
    let info: Value = info.expect("answers").json().await.expect("JSON");
    assert_eq!(info["disaggregation_bootstrap_port"], prefill.registry_port());
    assert_eq!(info["disaggregation_mode"], "prefill");

    let told = |path: &str, body: Value| client().post(format!("{base}{path}")).json(&body).send();
    let one = json!({ "bootstrap_room": 42, "dp_rank": 0 });
    assert_eq!(told("/register_dp_rank", one).await.expect("answers").status(), 200);
    let rooms = told("/query_dp_ranks", json!({ "bootstrap_rooms": [42, 43] })).await;
    let rooms: Value = rooms.expect("answers").json().await.expect("JSON");
    assert_eq!(rooms, json!({ "42": 0 }));
}

#[tokio::test]
async fn a_room_follows_its_rank() {
    let two = |role| start(EngineConfig { ranks: 2, ..config(role) });
    let prefill = two(EngineRole::Prefill);
    let decode = two(EngineRole::Decode);
    // Room 6 is rank 0's; rank 1 refuses it, unless both halves are told.
    let mut body = meeting(&prefill, 6);
    body["routed_dp_rank"] = 1.into();
    let (status, answer) = post(&prefill, "/generate", &body).await;
    assert_eq!(status, 500);
    let message = answer["error"]["message"].as_str().expect("text");
    assert!(
        message.contains("follow_bootstrap_room conflict: dispatched to dp_rank 1"),
        "{message}"
    );
    for (room, hint) in [(6, Some(1)), (7, None)] {
        let mut body = meeting(&prefill, room);
        if let Some(hint) = hint {
            body["disagg_prefill_dp_rank"] = hint.into();
            body["routed_dp_rank"] = hint.into();
        }
        let p = send(&prefill, "/generate", &body);
        body["routed_dp_rank"] = 0.into();
        let (status, answer) = post(&decode, "/generate", &body).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["meta_info"]["dp_rank"], 0);
        let p: Value = serde_json::from_str(&p.await.expect("task").1).expect("JSON");
        assert_eq!(p["meta_info"]["dp_rank"], 1);
    }
    body["routed_dp_rank"] = 2.into();
    assert_eq!(post(&decode, "/generate", &body).await.0, 400);
}

#[tokio::test]
async fn an_aborted_prefill_fails_its_decode() {
    let slow = EngineConfig { prefill_tokens_per_s: 1.0, ..config(EngineRole::Prefill) };
    let prefill = start(slow);
    let decode = start(config(EngineRole::Decode));
    for stream in [false, true] {
        let mut body = meeting(&prefill, 40 + i64::from(stream));
        body["stream"] = stream.into();
        let d = send(&decode, "/generate", &body);
        let p = send(&prefill, "/generate", &body);
        until_metric(&prefill, "forebay_engine_in_flight", 1.0).await;
        let rid = body["rid"].as_str().expect("text");
        // The beginning of an id is enough.
        let abort = json!({ "rid": &rid[..rid.len() - 1] });
        assert_eq!(post(&prefill, "/abort_request", &abort).await.0, 200);
        let (status, answer) = p.await.expect("task");
        assert_eq!(status, 200);
        assert!(answer.contains(r#""type":"abort""#), "{answer}");
        let (status, answer) = d.await.expect("task");
        assert_eq!(status, if stream { 200 } else { 500 }, "{answer}");
        let error = answer.split("\n\n").next().expect("event");
        let error: Value =
            serde_json::from_str(error.strip_prefix("data: ").unwrap_or(error)).expect("JSON");
        let message = error["error"]["message"].as_str().expect("text");
        assert!(message.contains("Decode transfer failed"), "{message}");
        assert_eq!(answer.ends_with("data: [DONE]\n\n"), stream);
    }
    until_idle(&prefill).await;
    until_idle(&decode).await;
    assert_eq!(metric(&prefill, "forebay_engine_ended_early_total").await, 2.0);
    assert_eq!(metric(&decode, "forebay_engine_failed_total").await, 2.0);
}

#[tokio::test]
async fn waits_end_in_time_on_either_side() {
    let short = waits(SglangTransfer {
        bootstrap_timeout: Duration::from_millis(100),
        waiting_timeout: Duration::from_millis(100),
        prefill_lost_after: Some(Duration::from_millis(100)),
        ..SglangTransfer::default()
    });
    let prefill = with(EngineRole::Prefill, short.clone());
    let decode = with(EngineRole::Decode, short);
    let message = |answer: &Value| answer["error"]["message"].as_str().expect("text").to_owned();
    let (status, answer) = post(&prefill, "/generate", &meeting(&prefill, 1)).await;
    assert_eq!(status, 500);
    assert!(message(&answer).contains("Prefill bootstrap failed"), "{answer}");
    let (status, answer) = post(&decode, "/generate", &meeting(&prefill, 1)).await;
    assert_eq!(status, 500);
    assert!(message(&answer).contains("timed out"), "{answer}");
    let patient = waits(SglangTransfer {
        prefill_lost_after: Some(Duration::from_millis(100)),
        ..SglangTransfer::default()
    });
    let decode = with(EngineRole::Decode, patient);
    let body = meeting(&prefill, 2);
    until_metric(&prefill, "forebay_engine_questions_early", 0.0).await;
    let d = send(&decode, "/generate", &body);
    until_metric(&prefill, "forebay_engine_questions_early", 1.0).await;
    prefill.stop();
    let (status, answer) = d.await.expect("task");
    assert_eq!(status, 500);
    assert!(answer.contains("Lost connection with prefill instance"), "{answer}");
    let (status, answer) = post(&decode, "/generate", &body).await;
    assert_eq!(status, 500);
    assert!(message(&answer).contains("Could not fetch prefill parallel info"), "{answer}");
    until_idle(&decode).await;
}

#[tokio::test]
async fn a_decode_engine_has_one_table_of_rooms_for_all_prefill_engines() {
    let (prefill, decode) = pair();
    let other = start(config(EngineRole::Prefill));
    let first = send(&decode, "/generate", &meeting(&prefill, 4));
    until_metric(&decode, "forebay_engine_rooms_waiting", 1.0).await;
    let (status, answer) = post(&decode, "/generate", &meeting(&other, 4)).await;
    assert_eq!(status, 500);
    let message = answer["error"]["message"].as_str().expect("text");
    assert!(message.contains("Duplicate decode bootstrap room"), "{message}");
    assert_eq!(metric(&decode, "forebay_engine_room_conflicts_total").await, 1.0);
    let p = post(&prefill, "/generate", &meeting(&prefill, 4)).await;
    assert_eq!((p.0, first.await.expect("task").0), (200, 200), "the first is not disturbed");
}

#[tokio::test]
async fn kv_of_another_prompt_is_not_taken() {
    let (prefill, decode) = pair();
    let body = meeting(&prefill, 3);
    let p = send(&prefill, "/generate", &body);
    let mut other = body.clone();
    other["text"] = "how does a forest become a lake".into();
    let (status, answer) = post(&decode, "/generate", &other).await;
    assert_eq!(status, 500, "{answer}");
    assert_eq!(p.await.expect("task").0, 200);
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_late_and_an_abort_at_once() {
    let late = waits(SglangTransfer {
        abort_on_close_after: Some(Duration::from_millis(400)),
        ..SglangTransfer::default()
    });
    let prefill = with(EngineRole::Prefill, late.clone());
    let decode = with(EngineRole::Decode, late);
    for engine in [&prefill, &decode] {
        let gone = send(engine, "/generate", &meeting(&prefill, 9));
        until_metric(engine, "forebay_engine_open", 1.0).await;
        let left = Instant::now();
        gone.abort();
        until_metric(engine, "forebay_engine_open", 0.0).await;
        assert!(left.elapsed() > Duration::from_millis(350), "{:?}", left.elapsed());
        let gone = send(engine, "/generate", &meeting(&prefill, 9));
        until_metric(engine, "forebay_engine_open", 1.0).await;
        gone.abort();
        let left = Instant::now();
        post(engine, "/abort_request", &json!({ "rid": "fb-" })).await;
        until_metric(engine, "forebay_engine_open", 0.0).await;
        assert!(left.elapsed() < Duration::from_millis(350), "{:?}", left.elapsed());
        until_idle(engine).await;
    }
}

#[tokio::test]
async fn the_file_of_times_makes_one_timeline_of_both_halves() {
    let folder = tempfile::tempdir().expect("folder");
    let log = |name: &str| Some(folder.path().join(name));
    let logged = |role, name| start(EngineConfig { log_times: log(name), ..config(role) });
    let prefill = logged(EngineRole::Prefill, "p");
    let decode = logged(EngineRole::Decode, "d");
    let body = meeting(&prefill, 11);
    let p = send(&prefill, "/generate", &body);
    let d = send(&decode, "/generate", &body);
    assert_eq!((p.await.expect("task").0, d.await.expect("task").0), (200, 200));
    let mut lines = Vec::new();
    for name in ["p", "d"] {
        let file = log(name).expect("path");
        let until = Instant::now() + DEADLINE;
        let line = loop {
            let text = std::fs::read_to_string(&file).expect("file");
            if let Some((line, "")) = text.split_once('\n') {
                break line.to_owned();
            }
            assert!(Instant::now() < until, "{text}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        assert_eq!(words.len(), 6, "{line}");
        lines.push(words);
    }
    let number = |half: usize, word: usize| lines[half][word].parse::<u64>().expect("nanoseconds");
    for (half, role) in ["prefill", "decode"].into_iter().enumerate() {
        assert_eq!(
            (&*lines[half][2], &*lines[half][4], &*lines[half][5]),
            ("finished", role, "11")
        );
        assert!(number(half, 0) < number(half, 3), "received before the first byte");
    }
    assert!(number(1, 0) < number(0, 1), "both were there at the same time");
}
