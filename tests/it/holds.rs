//! What one request costs the shard that serves it: no work is done twice, and none that is long.

use crate::rig::{
    Client, PATIENCE, RouterProcess, Worker, admin, admin_post, config, metric, post, router,
    truth, until,
};
use forebay::config::{Config, EngineKind, Policy};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A router that renders prompts for this worker.
fn matching(worker: &Worker, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config(&[worker]);
    config.policy = Policy::Kv;
    config.model_dir = Some("tests/data/tokenizer".into());
    config.workers[0].engine = Some(EngineKind::Openai);
    change(&mut config);
    config
}

/// A tokenizer with a published template, which renders the prompts: of a model without an encoder
/// of its own.
fn model_with(template: &str) -> PathBuf {
    let dir = tempfile::tempdir().expect("a directory").keep();
    let copy = |from: &str, to: &str| std::fs::copy(from, dir.join(to)).expect("copied");
    copy("tests/data/tokenizer/tokenizer.json", "tokenizer.json");
    copy(&format!("tests/data/chat_templates/{template}.jinja"), "chat_template.jinja");
    std::fs::write(dir.join("config.json"), r#"{"model_type": "other"}"#).expect("written");
    dir
}

/// The same router with this template.
fn with_template(worker: &Worker, template: &str) -> ServerHandle {
    let dir = model_with(template);
    let router = router(matching(worker, |config| config.model_dir = Some(dir.clone())));
    until("the model is known", || admin(&router, "/readyz").status == 200);
    std::fs::remove_dir_all(dir).expect("removed");
    router
}

const CHAT: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
const TOOLS: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]}"#;

/// So many calls of a tool and their results.
fn session(calls: usize) -> Vec<u8> {
    let call = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let result = json!({"role": "tool", "tool_call_id": "1", "content": "k"});
    let mut messages = vec![json!({"role": "user", "content": "h"})];
    messages.extend((0..calls).flat_map(|_| [call.clone(), result.clone()]));
    json!({"model": "m", "messages": messages}).to_string().into_bytes()
}

/// An engine without room is asked again and again: 18 renders of one request before.
#[test]
fn a_prompt_is_rendered_and_matched_once_however_often_its_request_is_sent() {
    let worker = Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}").is_ok()
    });
    let router = router(matching(&worker, |_| {}));
    let count = |name| metric(&router, name);
    for (requests, body) in [(1.0, CHAT), (2.0, TOOLS)] {
        let mut client = Client::connect(router.listen);
        client.send(&post("/v1/chat/completions", body));
        assert_eq!(client.reply().status, 429);
        assert!(worker.seen.try_iter().count() > 3, "asked again and again");
        let rendered = count("forebay_rendered_plan_total") + count("forebay_rendered_full_total");
        assert_eq!(rendered, requests);
    }
}

/// The template looks through all messages for each message: 7 s of the shard before. Its 2,000,000
/// steps take over 100 ms of CPU time.
#[test]
fn a_template_that_never_ends_holds_no_shard() {
    let worker = Worker::json("{}");
    let dir = model_with("gpt-oss");
    let text = format!(
        "cores = [0]\npolicy = \"kv\"\nmodel_dir = \"{}\"\n[health]\nenabled = false\n\
         [[worker]]\nurl = \"{}\"\nengine = \"openai\"\nmodels = [\"m\"]\n",
        dir.display(),
        worker.url()
    );
    let router = RouterProcess::watched(&text, 50_000);
    until("the model is known", || truth::get(router.admin, "/readyz").status == 200);
    std::fs::remove_dir_all(dir).expect("removed");
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/chat/completions", &session(4_095)));
    assert_eq!(client.reply().status, 200, "routed without a match");
    assert_eq!(truth::metric(router.admin, "forebay_renders_given_up_total"), 1.0);
    assert_eq!(router.logged("held"), 0, "{}", router.log());
}

#[test]
fn an_honest_session_of_300_tool_calls_is_matched() {
    let worker = Worker::json("{}");
    for template in ["gpt-oss", "Qwen3"] {
        let router = with_template(&worker, template);
        let mut client = Client::connect(router.listen);
        client.send(&post("/v1/chat/completions", &session(300)));
        assert_eq!(client.reply().status, 200);
        assert_eq!(metric(&router, "forebay_rendered_full_total"), 1.0, "{template}");
        assert_eq!(metric(&router, "forebay_renders_given_up_total"), 0.0);
    }
}

/// Has something come, without waiting for it?
fn has_come(client: &Client) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    let has_come = client.stream.peek(&mut [0]).is_ok();
    client.stream.set_nonblocking(false).unwrap();
    has_come
}

/// Health checks, feeds and scrapes stood still while a prompt was explained.
#[test]
fn the_control_plane_goes_on_while_a_prompt_is_explained() {
    let worker = Worker::json("{}");
    let router = with_template(&worker, "gpt-oss");
    let mut asking = Client::connect(router.admin);
    asking.send(&admin_post("/debug/overlap", &session(4_095)));
    let start = Instant::now();
    let mut answered = 0;
    let explained = loop {
        assert!(start.elapsed() < PATIENCE);
        assert_eq!(admin(&router, "/readyz").status, 200);
        answered += 1;
        // A thread that asks without a pause takes its core from the thread that explains.
        std::thread::sleep(Duration::from_millis(1));
        if has_come(&asking) {
            break asking.reply();
        }
    };
    assert_eq!(explained.status, 200, "{}", explained.text());
    let explained: Value = serde_json::from_slice(&explained.body).expect("JSON");
    let why = explained["prompt"]["not_matched"].as_str().unwrap_or_default();
    assert!(why.contains("too many steps"), "{explained}");
    assert!(answered > 2, "{answered} answers meanwhile");
}

/// The client sees the same bytes at the worker, whichever thread looked at them.
#[test]
fn large_bodies_arrive_as_they_were_sent() {
    let worker = Worker::json("{}");
    let router = router(matching(&worker, |_| {}));
    let mut client = Client::connect(router.listen);
    for kilobytes in [31, 50, 55, 300, 9_000] {
        let body =
            json!({"model": "m", "prompt": "x\n\u{308} ".repeat(kilobytes * 256)}).to_string();
        client.send(&post("/v1/completions", body.as_bytes()));
        assert_eq!(client.reply().status, 200);
        assert!(worker.next().body == body.as_bytes(), "{kilobytes} KiB");
    }
    client.send(&post("/v1/completions", &[b"{".as_slice(), &b" ".repeat(100_000)].concat()));
    let reply = client.reply();
    assert_eq!(reply.status, 400, "{}", reply.text());
}
