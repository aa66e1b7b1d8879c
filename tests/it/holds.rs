//! What one request costs the shard that serves it: no work is done twice, and none that is long.

use crate::rig::{Client, Worker, config, metric, post, router};
use forebay::config::{Config, EngineKind, Policy};
use std::io::Write;

/// A router that renders prompts for this worker.
fn matching(worker: &Worker, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config(&[worker]);
    config.policy = Policy::Kv;
    config.model_dir = Some("tests/data/tokenizer".into());
    config.workers[0].engine = Some(EngineKind::Openai);
    change(&mut config);
    config
}

const CHAT: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
const TOOLS: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]}"#;

/// An engine without room is asked again and again: 18 renders of one request before.
#[test]
fn a_prompt_is_rendered_and_matched_once_however_often_its_request_is_sent() {
    let worker = Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}").is_ok()
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
