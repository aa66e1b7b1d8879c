//! Two simulated vLLM engines as prefill and decode: pulled, pushed and by Mooncake's registry;
//! what is held until when.

#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "helpers of tests may stop the test and look at the clock"
)]

use crate::rig::{DEADLINE, client};
use forebay::engine::{
    Engine, EngineConfig, EngineHandle, EngineRole, EngineText, KvConnector, TransferSettings,
    VllmTransfer,
};
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn start(role: EngineRole, transfer: TransferSettings) -> EngineHandle {
    static TEXT: OnceLock<EngineText> = OnceLock::new();
    let text = TEXT.get_or_init(|| EngineText::load(None).expect("loads"));
    let config = EngineConfig {
        listen: "127.0.0.1:0".parse().expect("address"),
        role,
        kv_blocks: 512,
        prefill_tokens_per_s: 1e6,
        itl_ms: 1.0,
        transfer,
        ..EngineConfig::default()
    };
    Engine::start_with(config, text.clone()).expect("engine starts")
}

fn connector(connector: KvConnector) -> TransferSettings {
    halves(VllmTransfer { connector, engine_id: Some("E".into()), ..VllmTransfer::default() })
}

fn halves(vllm: VllmTransfer) -> TransferSettings {
    TransferSettings { vllm, ..TransferSettings::default() }
}

type Answered = tokio::task::JoinHandle<(u16, String)>;

fn send(engine: &EngineHandle, body: &Value, id: &str) -> Answered {
    let request = client().post(format!("{}/v1/completions", engine.url()));
    let request = request.header("x-request-id", id).json(body);
    tokio::spawn(async move {
        let response = request.send().await.expect("answers");
        (response.status().as_u16(), response.text().await.expect("body"))
    })
}

async fn post(engine: &EngineHandle, body: &Value, id: &str) -> (u16, Value) {
    let (status, text) = send(engine, body, id).await.expect("task");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// The client's request, and what a router makes of it for a prefill engine.
fn request() -> (Value, Value) {
    let whole = json!({ "prompt": "how does a lake become a forest, and when", "max_tokens": 6 });
    let mut prefill = whole.clone();
    prefill["max_tokens"] = 1.into();
    prefill["kv_transfer_params"] = json!({ "do_remote_decode": true, "do_remote_prefill": false });
    (whole, prefill)
}

fn with_params(body: &Value, params: Value) -> Value {
    let mut body = body.clone();
    body["kv_transfer_params"] = params;
    body
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

async fn until_idle(engine: &EngineHandle) {
    for name in ["open", "in_flight", "kv_held", "rooms_waiting", "questions_early"] {
        until_metric(engine, &format!("forebay_engine_{name}"), 0.0).await;
    }
    assert_eq!(engine.stats()[0].used_blocks, 0);
}

async fn whole_answer(engine: &EngineHandle) -> Value {
    let (whole, _) = request();
    post(engine, &whole, "plain").await.1["choices"][0]["text"].clone()
}

#[tokio::test]
async fn a_decode_pulls_what_the_prefill_told() {
    let prefill = start(EngineRole::Prefill, connector(KvConnector::Nixl));
    let decode = start(EngineRole::Decode, connector(KvConnector::Nixl));
    let (whole, first) = request();
    let (status, answer) = post(&prefill, &first, "pd-1").await;
    assert_eq!(status, 200, "{answer}");
    let params = answer["kv_transfer_params"].clone();
    let captured: Value =
        serde_json::from_str(include_str!("../data/kv_transfer/vllm-0.32.answer")).expect("JSON");
    let names = |value: &Value| -> Vec<String> {
        value.as_object().expect("object").keys().cloned().collect()
    };
    assert_eq!(names(&params), names(&captured["kv_transfer_params"]), "as vLLM writes them");
    let tokens = answer["usage"]["prompt_tokens"].as_u64().expect("number");
    assert_eq!(params["remote_num_tokens"], tokens);
    let blocks = params["remote_block_ids"][0].as_array().expect("list").len() as u64;
    assert_eq!(blocks, tokens.div_ceil(16));
    assert_eq!(metric(&prefill, "forebay_engine_kv_held").await, 1.0);
    assert_eq!(metric(&prefill, "forebay_engine_in_flight").await, 0.0);

    let (status, answer) = post(&decode, &with_params(&whole, params.clone()), "pd-1").await;
    assert_eq!(status, 200, "{answer}");
    until_idle(&prefill).await;
    assert_eq!(metric(&decode, "vllm:external_prefix_cache_hits_total").await, tokens as f64);
    assert_eq!(decode.stats()[0].tokens.queried, 0);
    // What was pulled is cached: a plain request on the same engine finds it, and its answer is the
    // same.
    assert_eq!(answer["choices"][0]["text"], whole_answer(&decode).await);
    assert!(decode.stats()[0].tokens.hit > 0);

    // It is gone once it was taken.
    let begun = Instant::now();
    let (status, answer) = post(&decode, &with_params(&whole, params), "pd-1").await;
    assert_eq!((status, &answer["error"]["message"]), (500, &json!("Internal server error")));
    assert!(begun.elapsed() >= Duration::from_millis(990), "{:?}", begun.elapsed());
    until_idle(&decode).await;
}

#[tokio::test]
async fn a_lease_ends_and_a_dead_prefill_is_an_error() {
    let lease = halves(VllmTransfer {
        kv_lease: Duration::from_millis(100),
        kv_load_timeout: Duration::from_millis(100),
        ..connector(KvConnector::Nixl).vllm
    });
    let prefill = start(EngineRole::Prefill, lease.clone());
    let decode = start(EngineRole::Decode, lease);
    let (whole, first) = request();
    let (_, answer) = post(&prefill, &first, "pd-2").await;
    until_metric(&prefill, "forebay_engine_kv_expired_total", 1.0).await;
    until_idle(&prefill).await;
    let mut late = with_params(&whole, answer["kv_transfer_params"].clone());
    assert_eq!(post(&decode, &late, "pd-2").await.0, 500);
    prefill.stop();
    assert_eq!(post(&decode, &late, "pd-2").await.0, 500);
    late["stream"] = true.into();
    let (status, stream) = send(&decode, &late, "pd-2").await.expect("task");
    assert_eq!(status, 200, "a stream has begun");
    assert!(stream.starts_with(r#"data: {"error":{"message":"Internal server error""#), "{stream}");
    assert!(stream.ends_with("data: [DONE]\n\n"));
    assert_eq!(metric(&decode, "forebay_engine_failed_total").await, 3.0);
    assert_eq!(post(&decode, &whole, "plain").await.0, 200, "plain requests are served");
}

#[tokio::test]
async fn push_and_mooncake_meet_in_either_order() {
    for kind in [KvConnector::NixlPush, KvConnector::Mooncake] {
        let prefill = start(EngineRole::Prefill, connector(kind));
        let decode = start(EngineRole::Decode, connector(kind));
        let port = prefill.registry_port();
        let (whole, mut first) = request();
        let expected = whole_answer(&prefill).await;
        for decode_first in [false, true] {
            let id = format!("both-{decode_first}");
            let params = if kind == KvConnector::NixlPush {
                json!({
                    "do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": "E",
                    "remote_host": "127.0.0.1", "remote_port": port, "tp_size": 1, "pp_size": 1,
                    "remote_request_id": id,
                })
            } else {
                first["kv_transfer_params"]["transfer_id"] = format!("xfer-{id}").into();
                json!({
                    "do_remote_decode": false, "do_remote_prefill": true, "remote_engine_id": "E",
                    "remote_bootstrap_addr": format!("http://127.0.0.1:{port}"),
                    "transfer_id": format!("xfer-{id}"),
                })
            };
            let mut second = with_params(&whole, params);
            second["stream"] = decode_first.into();
            let (p, d) = if decode_first {
                let d = send(&decode, &second, &id);
                until_metric(&prefill, "forebay_engine_questions_early", 1.0).await;
                (send(&prefill, &first, &id).await, d.await)
            } else {
                (send(&prefill, &first, &id).await, send(&decode, &second, &id).await)
            };
            let p = p.expect("task");
            let d = d.expect("task");
            assert_eq!((p.0, d.0), (200, 200), "{p:?} {d:?}");
            let told: Value = serde_json::from_str(&p.1).expect("JSON");
            assert_eq!(told["kv_transfer_params"].is_null(), kind == KvConnector::Mooncake);
            let text: String = if decode_first {
                let events = d.1.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
                let parsed = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
                parsed
                    .filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned))
                    .collect()
            } else {
                let answer: Value = serde_json::from_str(&d.1).expect("JSON");
                answer["choices"][0]["text"].as_str().expect("text").to_owned()
            };
            assert_eq!(expected, text.as_str());
            until_idle(&prefill).await;
            until_idle(&decode).await;
        }
        let registry = client().get(format!("http://127.0.0.1:{port}/query")).send().await;
        let registry: Value = registry.expect("answers").json().await.expect("JSON");
        assert_eq!(registry["0"]["engine_id"], "E");
    }
}

#[tokio::test]
async fn another_engines_id_and_an_aborted_prefill_fail_the_decode() {
    let prefill = start(EngineRole::Prefill, connector(KvConnector::Mooncake));
    let decode = start(EngineRole::Decode, connector(KvConnector::Mooncake));
    let (whole, mut first) = request();
    first["kv_transfer_params"]["transfer_id"] = "xfer-1".into();
    let params = |engine_id: &str| {
        json!({
            "do_remote_decode": false, "do_remote_prefill": true, "remote_engine_id": engine_id,
            "remote_bootstrap_addr": format!("http://127.0.0.1:{}", prefill.registry_port()),
            "transfer_id": "xfer-1",
        })
    };
    assert_eq!(post(&decode, &with_params(&whole, params("ghost")), "a").await.0, 500);
    let stall = format!("{}/debug/stall?ms=60000", prefill.url());
    assert_eq!(client().post(stall).send().await.expect("answers").status(), 200);
    let p = send(&prefill, &first, "a");
    until_metric(&prefill, "forebay_engine_rooms_waiting", 1.0).await;
    let d = send(&decode, &with_params(&whole, params("E")), "a");
    until_metric(&decode, "forebay_engine_rooms_waiting", 1.0).await;
    p.abort();
    let (status, answer) = d.await.expect("task");
    assert_eq!(status, 500, "{answer}");
    until_idle(&decode).await;
    until_metric(&prefill, "forebay_engine_open", 0.0).await;
}
