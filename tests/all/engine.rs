//! The simulated engine over real sockets: HTTP answers, streams, cache hits, KV events, replay,
//! disconnects.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may stop the test"
)]

use crate::rig::{DEADLINE, client, start};
use forebay::engine::{Engine, EngineConfig, EngineError, EngineHandle};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

fn fast() -> EngineConfig {
    EngineConfig {
        listen: "127.0.0.1:0".parse().expect("address"),
        kv_blocks: 512,
        prefill_tokens_per_s: 1e6,
        itl_ms: 1.0,
        ..EngineConfig::default()
    }
}

async fn post(engine: &EngineHandle, path: &str, body: &Value) -> (u16, Value) {
    let request = client().post(format!("{}{path}", engine.url())).json(body);
    let response = request.send().await.expect("answers");
    let status = response.status().as_u16();
    let text = response.text().await.expect("body");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn get(engine: &EngineHandle, path: &str) -> String {
    let response = client().get(format!("{}{path}", engine.url())).send().await.expect("answers");
    assert_eq!(response.status(), 200, "{path}");
    response.text().await.expect("body")
}

fn chat(messages: &Value, max_tokens: u32) -> Value {
    json!({ "model": "any", "messages": messages, "max_tokens": max_tokens })
}

fn long_text(seed: u32, words: u32) -> String {
    (0..words).map(|word| format!("word{} ", (seed + 1) * word)).collect()
}

/// Data lines of a stream, parsed; `[DONE]` stays a string.
fn events(text: &str) -> Vec<Value> {
    let data = text.split("\n\n").filter(|event| !event.is_empty());
    data.map(|event| {
        let data = event.strip_prefix("data: ").expect("data line");
        serde_json::from_str(data).unwrap_or_else(|_| data.into())
    })
    .collect()
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn unary_chat_and_second_turn_hits_its_own_answer() {
    let engine = start(fast());
    let question = long_text(1, 100);
    let first = json!([{ "role": "user", "content": question }]);
    let (status, answer) = post(&engine, "/v1/chat/completions", &chat(&first, 40)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "any");
    assert!(answer["id"].as_str().expect("id").starts_with("chatcmpl-"));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let content = choice["message"]["content"].as_str().expect("text").to_owned();
    assert!(content.split(' ').count() >= 40, "{content}");
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 40);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);

    // Same prompt, same answer; everything but the last block is cached.
    let (_, again) = post(&engine, "/v1/chat/completions", &chat(&first, 40)).await;
    assert_eq!(again["choices"][0]["message"]["content"], content.as_str());
    let prompt = usage["prompt_tokens"].as_u64().expect("number");
    let cached = &again["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(*cached, (prompt - 1) / 16 * 16);

    let second = json!([
        { "role": "user", "content": question },
        { "role": "assistant", "content": content },
        { "role": "user", "content": "And then?" },
    ]);
    let (_, answer) = post(&engine, "/v1/chat/completions", &chat(&second, 4)).await;
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    // Prompt and all but the last token of the answer, in whole blocks.
    assert_eq!(cached, Some((prompt + 39) / 16 * 16));
}

#[tokio::test]
async fn stream_has_the_shape_of_the_real_one() {
    let engine = start(fast());
    let mut body = chat(&json!([{ "role": "user", "content": "hello" }]), 5);
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let url = format!("{}/v1/chat/completions", engine.url());
    let request = client().post(url).header("x-request-id", "abc").json(&body);
    let response = request.send().await.expect("answers");
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    assert_eq!(response.headers()["transfer-encoding"], "chunked");
    let streamed = events(&response.text().await.expect("body"));
    assert_eq!(streamed.len(), 1 + 5 + 1 + 1);
    assert!(streamed[..7].iter().all(|event| event["id"] == "chatcmpl-abc"));
    assert_eq!(streamed[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(streamed[4]["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(streamed[5]["choices"][0]["finish_reason"], "length");
    assert!(streamed[5].get("usage").is_none());
    assert_eq!(streamed[6]["choices"], json!([]));
    assert_eq!(streamed[6]["usage"]["completion_tokens"], 5);
    assert_eq!(streamed[7], "[DONE]");

    body.as_object_mut().expect("object").remove("stream");
    let (_, whole) = post(&engine, "/v1/chat/completions", &body).await;
    let text: String = streamed[1..6]
        .iter()
        .map(|event| event["choices"][0]["delta"]["content"].as_str().expect("text"))
        .collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text.as_str());
}

#[tokio::test]
async fn first_chunk_equals_the_bytes_of_vllm() {
    let engine = start(EngineConfig { model: Some("tiny".into()), ..fast() });
    let body = json!({ "model": "tiny", "stream": true, "max_tokens": 1,
                       "messages": [{ "role": "user", "content": "x" }] });
    let url = format!("{}/v1/chat/completions", engine.url());
    let request = client().post(url).header("x-request-id", "r").json(&body);
    let text = request.send().await.expect("answers").text().await.expect("body");
    let created = events(&text)[0]["created"].to_string();
    let text = text.replace(&created, "T");
    let role = r#"data: {"id":"chatcmpl-r","object":"chat.completion.chunk","created":T,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}"#;
    let (first, rest) = text.split_once("\n\n").expect("events");
    assert_eq!(first, role);
    let (token, end) = rest.split_once("\n\n").expect("events");
    let tail = r#""},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.33.0-simulated"}"#;
    assert!(token.ends_with(tail), "{token}");
    assert_eq!(end, "data: [DONE]\n\n");
}

#[tokio::test]
async fn completions_take_prompts_in_every_form() {
    let engine = start(fast());
    let ids: Vec<u32> = (10..80).collect();
    for (prompt, choices) in [
        (json!("some text"), 1),
        (json!(ids), 1),
        (json!(["one", "two", "three"]), 3),
        (json!([[1, 2, 3], [4, 5]]), 2),
    ] {
        let mut body = json!({ "prompt": prompt, "max_tokens": 2, "return_token_ids": true });
        let (status, answer) = post(&engine, "/v1/completions", &body).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["object"], "text_completion");
        let list = answer["choices"].as_array().expect("list").clone();
        assert_eq!(list.len(), choices);
        assert_eq!(answer["usage"]["completion_tokens"], 2 * choices);
        if prompt[0].is_u64() {
            assert_eq!(list[0]["prompt_token_ids"], json!(ids));
        }
        body["stream"] = true.into();
        let (_, streamed) = post(&engine, "/v1/completions", &body).await;
        let streamed = events(streamed.as_str().expect("text"));
        assert_eq!(streamed.len(), 2 * choices + 1);
        for (index, choice) in list.iter().enumerate() {
            let text: String = streamed
                .iter()
                .filter(|event| event["choices"][0]["index"] == index)
                .map(|event| event["choices"][0]["text"].as_str().expect("text"))
                .collect();
            assert_eq!(choice["text"], text.as_str());
        }
    }
}

#[tokio::test]
async fn several_choices_salts_and_given_ids() {
    let engine = start(fast());
    let mut body = chat(&json!([{ "role": "user", "content": long_text(2, 60) }]), 3);
    body["n"] = 2.into();
    body["return_token_ids"] = true.into();
    let (_, answer) = post(&engine, "/v1/chat/completions", &body).await;
    let choices = answer["choices"].as_array().expect("list");
    assert_eq!((choices.len(), &answer["usage"]["completion_tokens"]), (2, &json!(6)));
    assert_ne!(choices[0]["message"]["content"], choices[1]["message"]["content"]);
    let prompt = answer["prompt_token_ids"].clone();
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.as_array().expect("ids").len());

    // Another salt is another cache.
    let cached =
        |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    body["n"] = 1.into();
    assert!(cached(&post(&engine, "/v1/chat/completions", &body).await.1) > Some(0));
    body["cache_salt"] = "tenant".into();
    assert_eq!(cached(&post(&engine, "/v1/chat/completions", &body).await.1), Some(0));
    assert!(cached(&post(&engine, "/v1/chat/completions", &body).await.1) > Some(0));

    // Ids of a router that has tokenized already.
    let given = json!({ "messages": [], "max_tokens": 1, "return_token_ids": true,
                        "kv_transfer_params": { "prompt_token_ids": prompt } });
    let (_, answer) = post(&engine, "/v1/chat/completions", &given).await;
    assert_eq!(answer["prompt_token_ids"], prompt);
    assert!(cached(&answer) > Some(0));
}

#[tokio::test]
async fn errors_have_vllms_shape() {
    let engine = start(EngineConfig { model: Some("tiny".into()), kv_blocks: 8, ..fast() });
    let messages = json!([{ "role": "user", "content": "x" }]);
    let cases = [
        ("/v1/chat/completions", json!({ "model": "nope", "messages": messages }), 404, "model"),
        ("/v1/chat/completions", json!({ "model": "tiny" }), 400, "body.messages"),
        ("/v1/chat/completions", json!({ "messages": 5 }), 400, "body.messages"),
        ("/v1/completions", json!({ "prompt": "x", "max_tokens": -1 }), 400, "max_tokens"),
        ("/v1/completions", json!({ "prompt": "x", "max_tokens": "y" }), 400, "body.max_tokens"),
        ("/v1/completions", json!({ "prompt": vec![1; 128] }), 400, "input_tokens"),
        ("/v1/completions", json!({ "prompt": "x", "max_tokens": 500 }), 400, "max_tokens"),
        ("/v1/completions", json!({ "prompt": [] , "max_tokens": 5 }), 400, "prompt"),
        ("/v1/completions", json!({ "prompt": [1_000_000] }), 400, "prompt"),
        ("/v1/completions", json!({ "prompt": "x", "n": 0 }), 400, "n"),
    ];
    for (path, body, status, param) in cases {
        let (got, answer) = post(&engine, path, &body).await;
        assert_eq!(got, status, "{body} {answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
        assert_eq!(answer["error"]["code"], status);
        assert!(answer["error"]["message"].is_string() && answer["error"]["type"].is_string());
    }
    let raw = |body: &'static str, content_type: &'static str| {
        let request = client().post(format!("{}/v1/completions", engine.url()));
        request.header("content-type", content_type).body(body).send()
    };
    assert_eq!(raw("{not json", "application/json").await.expect("answers").status(), 400);
    assert_eq!(raw("{}", "text/plain").await.expect("answers").status(), 400);
    let wrong_method = client().get(format!("{}/v1/completions", engine.url())).send().await;
    assert_eq!(wrong_method.expect("answers").status(), 405);
    assert_eq!(post(&engine, "/nope", &json!({})).await, (404, json!({ "detail": "Not Found" })));
}

#[tokio::test]
async fn ranks_are_pinned_by_header_and_balanced_without() {
    let engine = start(EngineConfig { ranks: 2, ..fast() });
    let body = chat(&json!([{ "role": "user", "content": long_text(3, 60) }]), 1);
    let send = async |rank: &str| {
        let url = format!("{}/v1/chat/completions", engine.url());
        let request = client().post(url).header("X-data-parallel-rank", rank).json(&body);
        let response = request.send().await.expect("answers");
        let status = response.status().as_u16();
        let answer: Value = response.json().await.expect("json");
        (status, answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64(), answer)
    };
    assert_eq!(send("1").await.1, Some(0));
    assert!(send("1").await.1 > Some(0));
    assert_eq!(send("0").await.1, Some(0));
    assert_eq!(send("abc").await.0, 200);
    let (status, _, answer) = send("2").await;
    assert_eq!(status, 400);
    assert_eq!(answer["error"]["message"], "data_parallel_rank 2 is out of range [0, 2).");
    let metrics = get(&engine, "/metrics").await;
    for rank in [0, 1] {
        let running =
            format!("vllm:num_requests_running{{engine=\"{rank}\",model_name=\"sim\"}} 0.0");
        assert!(metrics.contains(&running), "{metrics}");
    }
    assert!(metrics.contains("forebay_engine_in_flight_peak{engine=\"1\",model_name=\"sim\"} 1.0"));
    assert!(metrics.contains("vllm:cache_config_info{block_size=\"16\","));

    // Slow requests without a header spread over both ranks.
    let slow = start(EngineConfig { ranks: 2, itl_ms: 10_000.0, ..fast() });
    let mut open = Vec::new();
    for seed in 0..4 {
        let mut body = chat(&json!([{ "role": "user", "content": long_text(seed, 5) }]), 9);
        body["stream"] = true.into();
        let url = format!("{}/v1/chat/completions", slow.url());
        open.push(client().post(url).json(&body).send().await.expect("answers"));
    }
    until("two requests a rank", || slow.stats().iter().all(|rank| rank.requests.running == 2))
        .await;
}

/// Sends a request on a connection of its own and returns the open connection.
async fn open(engine: &EngineHandle, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(engine.addr()).await.expect("connects");
    let body = body.to_string();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.expect("sends");
    stream
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_request() {
    let engine = start(EngineConfig { itl_ms: 60_000.0, concurrency: 1, ..fast() });
    for stream in [true, false] {
        let mut body = chat(&json!([{ "role": "user", "content": "hi" }]), 100);
        body["stream"] = stream.into();
        let mut running = open(&engine, &body).await;
        until("one runs", || engine.stats()[0].requests.running == 1).await;
        let waiting = open(&engine, &body).await;
        until("one waits", || engine.stats()[0].requests.waiting == 1).await;
        if stream {
            let mut first = [0; 15];
            running.read_exact(&mut first).await.expect("answers");
            assert_eq!(&first, b"HTTP/1.1 200 OK");
        }
        drop(waiting);
        until("the waiting one is gone", || engine.stats()[0].requests.waiting == 0).await;
        assert_eq!(engine.stats()[0].requests.running, 1);
        drop(running);
        until("all is free", || {
            let rank = engine.stats()[0];
            (rank.requests.running, rank.used_blocks) == (0, 0)
        })
        .await;
    }
    let rank = engine.stats()[0];
    assert_eq!(
        (rank.requests.in_flight_peak, rank.requests.aborted, rank.requests.finished),
        (2, 4, 0)
    );
}

#[tokio::test]
async fn discovery_and_tokens() {
    let engine = start(EngineConfig {
        ranks: 2,
        kv_events: Some("tcp://*:0".into()),
        replay: Some("tcp://127.0.0.1:0".into()),
        ..fast()
    });
    assert_eq!(get(&engine, "/health").await, "");
    let json =
        async |path| -> Value { serde_json::from_str(&get(&engine, path).await).expect("json") };
    let models = json("/v1/models").await;
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["owned_by"]),
        (&json!("sim"), &json!("vllm"))
    );
    assert_eq!(models["data"][0]["max_model_len"], 512 * 16);
    let sources = json("/kv_event_sources").await;
    for (rank, source) in engine.kv_sources().iter().enumerate() {
        assert_eq!(sources[rank.to_string()]["endpoint"], source.endpoint.as_str());
        assert!(source.endpoint.starts_with("tcp://*:") && !source.endpoint.ends_with(":0"));
        assert!(sources[rank.to_string()]["replay_endpoint"].is_string());
    }
    assert_eq!(json("/version").await["version"], "0.33.0");
    let (_, tokens) = post(&engine, "/tokenize", &json!({ "prompt": "hello fox" })).await;
    assert_eq!(tokens["count"], tokens["tokens"].as_array().expect("list").len());
    let ids = json!({ "tokens": tokens["tokens"] });
    assert_eq!(post(&engine, "/detokenize", &ids).await.1["prompt"], "hello fox");
    let messages = json!([{ "role": "user", "content": "hello fox" }]);
    let (_, chat_ids) = post(&engine, "/tokenize", &json!({ "messages": messages })).await;
    let (_, answer) = post(&engine, "/v1/chat/completions", &chat(&messages, 1)).await;
    assert_eq!(chat_ids["count"], answer["usage"]["prompt_tokens"]);
    let input = json!({ "input": ["a b", "c"] });
    let (_, vectors) = post(&engine, "/v1/embeddings", &input).await;
    assert_eq!(vectors["data"].as_array().expect("list").len(), 2);
    assert_eq!(vectors, post(&engine, "/v1/embeddings", &input).await.1.clone_ids(&vectors));
}

trait CloneIds {
    fn clone_ids(self, from: &Value) -> Value;
}

impl CloneIds for Value {
    /// Ids and times differ between answers.
    fn clone_ids(mut self, from: &Value) -> Value {
        for field in ["id", "created"] {
            self[field] = from[field].clone();
        }
        self
    }
}

async fn receive(socket: &mut impl SocketRecv) -> Vec<Vec<u8>> {
    let message = tokio::time::timeout(DEADLINE, socket.recv()).await.expect("in time");
    message.expect("message").into_vec().iter().map(|frame| frame.to_vec()).collect()
}

fn has(payload: &[u8], text: &str) -> bool {
    payload.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn kv_events_reach_a_subscriber_and_can_be_replayed() {
    let engine = start(EngineConfig {
        kv_events: Some("tcp://127.0.0.1:0".into()),
        replay: Some("tcp://127.0.0.1:0".into()),
        ..fast()
    });
    let mut live = SubSocket::new();
    live.connect(&engine.kv_endpoint().expect("endpoint")).await.expect("connects");
    live.subscribe("").await.expect("subscribes");
    let body = json!({ "prompt": (1..=40).collect::<Vec<u32>>(), "max_tokens": 1 });
    // The subscription travels on its own connection; send until something arrives.
    let mut first = None;
    for attempt in 0..200_u32 {
        let mut body = body.clone();
        body["prompt"][0] = (100 + attempt).into();
        post(&engine, "/v1/completions", &body).await;
        if let Ok(message) = tokio::time::timeout(Duration::from_millis(50), live.recv()).await {
            first = Some(message.expect("message").into_vec());
            break;
        }
    }
    let first = first.expect("events arrive");
    assert_eq!((first.len(), first[0].len(), first[1].len()), (3, 0, 8));
    let sequence = u64::from_be_bytes(first[1].as_ref().try_into().expect("8 bytes"));
    assert!(has(&first[2], "BlockStored") && has(&first[2], "full_attention"));

    let (_, cleared) = post(&engine, "/reset_prefix_cache", &json!({})).await;
    assert_eq!(cleared, json!({ "success": true }));
    let second = receive(&mut live).await;
    assert_eq!(second[1], (sequence + 1).to_be_bytes());
    assert!(has(&second[2], "AllBlocksCleared"));

    let mut replay = DealerSocket::new();
    let endpoint = engine.kv_sources()[0].replay_endpoint.clone().expect("endpoint");
    replay.connect(&endpoint).await.expect("connects");
    let start = sequence.to_be_bytes().to_vec();
    let frames: Vec<bytes::Bytes> = vec![bytes::Bytes::new(), start.into()];
    let request = ZmqMessage::try_from(frames).expect("frames");
    replay.send(request).await.expect("sends");
    let answers =
        [receive(&mut replay).await, receive(&mut replay).await, receive(&mut replay).await];
    assert_eq!(answers[0], [vec![], vec![], first[1].to_vec(), first[2].to_vec()]);
    assert_eq!(answers[1][2..], second[1..]);
    assert_eq!(answers[2], [vec![], vec![], vec![0xff; 8], vec![]]);
}

#[tokio::test]
async fn evictions_are_announced() {
    let engine =
        start(EngineConfig { kv_blocks: 8, kv_events: Some("tcp://127.0.0.1:0".into()), ..fast() });
    let mut live = SubSocket::new();
    live.connect(&engine.kv_endpoint().expect("endpoint")).await.expect("connects");
    live.subscribe("").await.expect("subscribes");
    let seen = async {
        loop {
            if has(&receive(&mut live).await[2], "BlockRemoved") {
                return;
            }
        }
    };
    let load = async {
        for seed in 0_u32.. {
            let prompt: Vec<u32> = (seed % 900..seed % 900 + 100).collect();
            post(&engine, "/v1/completions", &json!({ "prompt": prompt, "max_tokens": 1 })).await;
        }
    };
    tokio::select! { () = seen => {}, () = load => {} }
    until("all is free", || engine.stats()[0].used_blocks == 0).await;
}

#[test]
fn settings_and_ports_are_checked() {
    let engine = start(fast());
    let taken = Engine::start(EngineConfig { listen: engine.addr(), ..fast() });
    assert!(matches!(taken, Err(EngineError::Listen { .. })), "{taken:?}");
    let addr = engine.addr();
    engine.stop();
    // A port is free again as soon as `stop` returns.
    start(EngineConfig { listen: addr, ..fast() }).stop();
}
