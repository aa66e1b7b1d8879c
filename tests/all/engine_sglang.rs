//! The simulated engine's SGLang wire against bytes that SGLang 0.5.23's Rust server sent: names,
//! order and kinds of fields of its answers, its errors word for word. And what discovery reads of
//! it.

#![expect(clippy::expect_used, reason = "helpers of tests may stop the test")]

use crate::rig::{client, start};
use forebay::engine::{EngineConfig, EngineHandle, EngineWire};
use serde_json::{Map, Value, json};
use std::path::Path;

fn config() -> EngineConfig {
    EngineConfig {
        listen: "127.0.0.1:0".parse().expect("address"),
        wire: EngineWire::Sglang,
        prefill_tokens_per_s: 1e6,
        itl_ms: 1.0,
        ..EngineConfig::default()
    }
}

/// Status, content type and body without chunk sizes.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    kind: String,
    body: String,
}

fn captured(name: &str) -> Answer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engine/sglang-0.5.23");
    let bytes = std::fs::read(folder.join(format!("{name}.resp"))).expect("captured");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").expect("head");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("status");
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: "));
    let is_data = |line: &&str| line.starts_with("data: ");
    let body = if head.contains("chunked") {
        body.lines().filter(is_data).map(|line| format!("{line}\n\n")).collect()
    } else {
        body.to_owned()
    };
    Answer { status, kind: kind.unwrap_or_default().to_owned(), body }
}

async fn answered(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.expect("answers");
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().expect("text"));
    let status = response.status().as_u16();
    let kind = kind.unwrap_or_default().to_owned();
    Answer { status, kind, body: response.text().await.expect("body") }
}

async fn post(engine: &EngineHandle, path: &str, body: &Value) -> Answer {
    answered(client().post(format!("{}{path}", engine.url())).json(body)).await
}

/// The value with its names and kinds only. Of the details of a prompt the captured server says
/// nothing, unlike this one.
fn shape(value: &Value) -> Value {
    let of_field = |(name, field): (&String, &Value)| {
        let is_own = name == "prompt_tokens_details";
        (name.clone(), if is_own { Value::Null } else { shape(field) })
    };
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "text".into(),
        Value::Array(list) => list.iter().map(shape).collect(),
        Value::Object(object) => Value::Object(object.iter().map(of_field).collect::<Map<_, _>>()),
    }
}

/// Shapes of the events of a stream, or of the one body.
fn shapes(body: &str) -> Vec<String> {
    let events = body.split("\n\n").map(|event| event.strip_prefix("data: ").unwrap_or(event));
    let events = events.filter(|event| !event.is_empty());
    let parsed = events.map(|event| serde_json::from_str(event).unwrap_or_else(|_| event.into()));
    let mut shapes: Vec<String> = parsed.map(|event: Value| shape(&event).to_string()).collect();
    // Two tokens may have made one chunk there.
    shapes.dedup();
    shapes
}

#[tokio::test]
async fn answers_have_the_names_and_kinds_that_sglang_sends() {
    let engine = start(config());
    let messages = json!([{ "role": "user", "content": "hello fox" }]);
    let chat = json!({ "model": "tiny", "messages": messages, "max_tokens": 3 });
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({ "include_usage": true });
    let three = json!({ "max_new_tokens": 3 });
    let chats = "/v1/chat/completions";
    let completions = "/v1/completions";
    let cases = [
        ("chat", chats, chat),
        ("chat_stream_usage", chats, streamed),
        ("gen_text", "/generate", json!({ "text": "hello fox", "sampling_params": three })),
        (
            "gen_stream",
            "/generate",
            json!({ "text": "hello fox", "stream": true, "sampling_params": three }),
        ),
        (
            "gen_batch",
            "/generate",
            json!({ "input_ids": [[5, 6, 7], [8, 9, 10]],
                "sampling_params": { "max_new_tokens": 2 } }),
        ),
        ("tokenize", "/tokenize", json!({ "prompt": "hello fox" })),
    ];
    for (name, path, body) in cases {
        let wanted = captured(name);
        let answer = post(&engine, path, &body).await;
        assert_eq!((answer.status, &answer.kind), (wanted.status, &wanted.kind), "{name}");
        let known = |shapes: Vec<String>| -> Vec<String> {
            // Lists of ids are as long as the answer.
            shapes.into_iter().map(|shape| shape.replace(r#","number""#, "")).collect()
        };
        let mut ours = known(shapes(&answer.body));
        let mut theirs = known(shapes(&wanted.body));
        ours.dedup();
        theirs.dedup();
        assert_eq!(ours, theirs, "{name}");
    }
    for (name, prompt) in [("compl_ids", json!([5, 6, 7])), ("compl_list", json!(["a", "b"]))] {
        let body = json!({ "prompt": prompt, "max_tokens": 2 });
        let answer = post(&engine, completions, &body).await;
        let mut ours: Value = serde_json::from_str(&answer.body).expect("JSON");
        let usage = ours["usage"].as_object_mut().expect("object");
        assert!(usage.remove("prompt_tokens_details").is_some(), "told without a flag");
        let wanted: Value = serde_json::from_str(&captured(name).body).expect("JSON");
        assert_eq!(shape(&ours).to_string(), shape(&wanted).to_string(), "{name}");
        assert!(ours["id"].as_str().expect("text").starts_with("cmpl-"));
    }
}

#[tokio::test]
async fn errors_are_sglangs_word_for_word() {
    let engine = start(EngineConfig { header_overrides: true, ..config() });
    let generate = |room: &str| {
        let body = format!(
            r#"{{"input_ids":[5],"sampling_params":{{"max_new_tokens":1}},"bootstrap_room":{room}}}"#
        );
        client().post(format!("{}/generate", engine.url())).body(body)
    };
    let chat = |body: &'static str| {
        client().post(format!("{}/v1/chat/completions", engine.url())).body(body)
    };
    let header = generate("1").header("x-override-bootstrap-room", "abc");
    for (name, request) in [
        ("err_bad_json", chat("{nope")),
        ("err_no_messages", chat(r#"{"model":"tiny"}"#)),
        ("gen_room_64bit", generate("18446744073709551615")),
        ("gen_room_string", generate("\"12\"")),
        ("gen_hdr_override_bad", header),
    ] {
        assert_eq!(answered(request).await, captured(name), "{name}");
    }
    let missing = answered(client().get(format!("{}/version", engine.url()))).await;
    assert_eq!((missing.status, missing.body.as_str()), (404, ""));
}

#[tokio::test]
async fn it_tells_what_it_is_as_sglang_does() {
    let engine = start(config());
    for (name, path) in
        [("models", "/v1/models"), ("model_info", "/model_info"), ("server_info", "/server_info")]
    {
        let told = answered(client().get(format!("{}{path}", engine.url()))).await;
        let told: Value = serde_json::from_str(&told.body).expect("JSON");
        let wanted: Value = serde_json::from_str(&captured(name).body).expect("JSON");
        for (field, value) in wanted.as_object().expect("object") {
            assert!(told.get(field).is_some(), "{name}: {field} is missing");
            for same in
                ["object", "frontend", "version", "disaggregation_mode", "status", "dp_size"]
            {
                assert!(field != same || told[field] == *value, "{name}: {field}");
            }
        }
    }
    let two = start(EngineConfig { ranks: 2, kv_events: Some("tcp://*:0".into()), ..config() });
    let info = answered(client().get(format!("{}/server_info", two.url()))).await;
    let info: Value = serde_json::from_str(&info.body).expect("JSON");
    assert_eq!((&info["dp_size"], info.get("frontend")), (&json!(2), None));
    let base = info["kv_events"]["endpoint_port_base"].as_u64().expect("ports in a row");
    assert_eq!(two.kv_sources()[1].endpoint, format!("tcp://*:{}", base + 1));
    let loads = answered(client().get(format!("{}/v1/loads?include=core", two.url()))).await;
    let loads: Value = serde_json::from_str(&loads.body).expect("JSON");
    assert_eq!(loads["loads"].as_array().expect("list").len(), 2);
    assert_eq!(loads["loads"][1]["max_running_requests"], 64);
}

#[tokio::test]
async fn ranks_are_pinned_by_body_and_header() {
    let engine = start(EngineConfig { ranks: 2, ..config() });
    let body = |rank: i64| json!({ "text": "hi", "routed_dp_rank": rank, "sampling_params": { "max_new_tokens": 1 } });
    for rank in [1, 0, 1] {
        let answer = post(&engine, "/generate", &body(rank)).await;
        let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(answer["meta_info"]["dp_rank"], rank);
    }
    assert_eq!(post(&engine, "/generate", &body(2)).await.status, 400);
    // There no header is read.
    let request = client().post(format!("{}/generate", engine.url())).json(&body(0));
    let request = request.header("x-data-parallel-rank", "1");
    let answer = answered(request.header("x-override-routed-dp-rank", "1")).await;
    let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(answer["meta_info"]["dp_rank"], 0);
    let chat = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1 });
    for (rank, status) in [("1", 200), ("2", 400), ("x", 400)] {
        let request = client().post(format!("{}/v1/chat/completions", engine.url())).json(&chat);
        let answer = answered(request.header("x-data-parallel-rank", rank)).await;
        assert_eq!(answer.status, status, "{rank}");
    }
    let finished: Vec<_> = engine.stats().iter().map(|rank| rank.requests.finished).collect();
    assert_eq!(finished, [2, 3]);
}
