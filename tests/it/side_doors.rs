//! What a client may not reach past the router: the index, the flow between pairs, and a class that is not its own.

use crate::rig::{Client, Worker, config, post, router};
use serde_json::Value;

/// Every path with a body that the router forwards.
const PATHS: [&str; 13] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/rerank",
    "/v2/rerank",
    "/v1/score",
    "/score",
    "/generate",
    "/tokenize",
    "/detokenize",
];

/// Review of the field, 0.1 and 0.2: vLLM puts `vllm_xargs` where it looks for its own arguments.
#[test]
fn no_endpoint_passes_what_only_the_router_may_say() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    for (member, key) in [
        (r#""vllm_xargs":{"kv_cache_report_mode":"full"}"#, "vllm_xargs.kv_cache_report_mode"),
        (
            r#""vllm_xargs":{"kv_cache_report_mode":"full"},"vllm_xargs":{}"#,
            "vllm_xargs.kv_cache_report_mode",
        ),
        (
            r#""vllm\u005fxargs":{"kv\u005fcache_report_mode":"full"}"#,
            "vllm_xargs.kv_cache_report_mode",
        ),
        (r#""vllm_xargs":{"kv_transfer_params":"x"}"#, "vllm_xargs.kv_transfer_params"),
        (r#""vllm_xargs":{"ec_transfer_params":"x"}"#, "vllm_xargs.ec_transfer_params"),
        (r#""ec_transfer_params":{}"#, "ec_transfer_params"),
        (r#""kv_transfer_params":"x""#, "kv_transfer_params"),
        (
            r#""kv_transfer_params":{"do_remote_prefill":true}"#,
            "kv_transfer_params.do_remote_prefill",
        ),
        (r#""bootstrap_room":7"#, "bootstrap_room"),
    ] {
        for path in PATHS {
            let body = format!(r#"{{"model":"m","prompt":"hi",{member}}}"#);
            client.send(&post(path, body.as_bytes()));
            let reply = client.reply();
            assert_eq!(reply.status, 400, "{path} {member}");
            let error: Value = serde_json::from_slice(&reply.body).expect("JSON");
            let message = error["error"]["message"].as_str().expect("a message");
            assert!(message.contains(&format!("`{key}`")), "{path} {member}: {message}");
        }
    }
    let harmless = br#"{"model":"m","prompt":"hi","vllm_xargs":{"session_id":"s"},"kv_transfer_params":{"prompt_token_ids":[1]}}"#;
    client.send(&post("/v1/completions", harmless));
    assert_eq!(client.reply().status, 200);
    assert_eq!(worker.next().body, harmless, "the first that the worker saw");
}
