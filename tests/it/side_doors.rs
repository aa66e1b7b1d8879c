//! What a client may not reach past the router: the index, the flow between pairs, and a class that
//! is not its own.

use crate::rig::{ASK, Client, Worker, config, metric, post, router, until};
use forebay::config::TenantConfig;
use forebay::parse::ENGINE_CALLS;
use serde_json::Value;

/// Every path with a body that the router forwards.
const PATHS: [&str; 19] = [
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
    "/v1/messages/count_tokens",
    "/classify",
    "/v1/classify",
    "/pooling",
    "/invocations",
    "/v1/audio/speech",
];

#[test]
fn a_path_that_nobody_knows_goes_on_by_model_or_not_at_all() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/audio/speech?voice=a", ASK));
    assert_eq!(client.reply().status, 200);
    let seen = worker.next();
    assert!(seen.head.starts_with("POST /v1/audio/speech?voice=a HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.body, ASK);
    for (path, body, status) in [
        ("/v1/audio/speech", &br#"{"input":"hi"}"#[..], 404),
        ("/v1/audio/speech", br#"{"model":7}"#, 404),
        ("/v1/audio/speech", b"no JSON", 400),
        ("/v1/load_lora_adapter", ASK, 404),
        ("/v1/Load_Lora_Adapter", ASK, 404),
        ("/flush_cache", ASK, 404),
        ("/v1/../flush_cache", ASK, 404),
        ("/update_weights_from_disk", ASK, 404),
    ] {
        client.send(&post(path, body));
        let reply = client.reply();
        assert_eq!(reply.status, status, "{path} {}", reply.text());
    }
    client.send(&post("/v1/messages/count_tokens", ASK));
    assert_eq!(client.reply().status, 200);
    assert!(worker.next().head.starts_with("POST /v1/messages/count_tokens "), "and nothing else");
}

#[test]
fn each_path_goes_to_a_worker_of_its_model() {
    let workers = [Worker::json("{}"), Worker::json("{}")];
    let mut config = config(&workers.each_ref());
    for (worker, model) in config.workers.iter_mut().zip(["a", "b"]) {
        worker.models = vec![model.to_owned()];
    }
    let router = router(config);
    until("both are up", || (metric(&router, "forebay_worker_up") - 2.0).abs() < 0.5);
    let mut client = Client::connect(router.listen);
    for path in PATHS {
        for (model, worker) in ["a", "b", "a"].into_iter().zip([0, 1, 0]) {
            let body = format!(r#"{{"input":"hi","model":"{model}"}}"#);
            client.send(&post(path, body.as_bytes()));
            let reply = client.reply();
            assert_eq!(reply.status, 200, "{path} {}", reply.text());
            let seen = workers[worker].next();
            assert!(seen.head.starts_with(&format!("POST {path} ")), "{}", seen.head);
            assert_eq!(seen.body, body.as_bytes());
        }
        client.send(&post(path, br#"{"input":"hi","model":"c"}"#));
        assert_eq!(client.reply().status, 404, "{path}");
    }
}

#[test]
fn no_call_of_the_engines_own_is_on_the_client_port() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    for call in ENGINE_CALLS.iter().filter(|call| !["health", "ping"].contains(*call)) {
        for path in [format!("/{call}"), format!("/v1/{call}"), format!("/v1/{call}/m")] {
            client.send(&post(&path, br#"{"model":"m","rid":"x","abort_all":true}"#));
            assert_eq!(client.reply().status, 404, "{path}");
            client.send(format!("GET {path} HTTP/1.1\r\nhost: r\r\n\r\n").as_bytes());
            assert_eq!(client.reply().status, 404, "{path}");
        }
    }
    assert!(worker.seen.try_recv().is_err(), "nothing reaches a worker");
}

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

/// Review of the field, 0.6: vLLM's field counts before the body, so it went past the class of the
/// tenant.
#[test]
fn the_engine_hears_the_priority_that_was_granted() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.flow.tenants = vec![TenantConfig { name: "gold".to_owned(), ..TenantConfig::default() }];
    config.flow.queue.tenant_header = "x-team".to_owned();
    let router = router(config);
    let mut client = Client::connect(router.listen);
    let early = br#"{"model":"m","prompt":"hi","priority":-5}"#;
    let mut told = |fields: &str, body: &[u8]| {
        let request = String::from_utf8(post("/v1/completions", body)).unwrap();
        let request = request.replacen("host:", &format!("{fields}host:"), 1);
        client.send(request.as_bytes());
        assert_eq!(client.reply().status, 200);
        let seen = worker.next();
        assert_eq!(seen.body, body, "the body is the client's");
        let lines = seen.head.lines().map(str::to_ascii_lowercase);
        let priorities = lines.filter(|line| line.contains("priority") && line.contains("vllm"));
        priorities.collect::<Vec<_>>().join(", ")
    };
    for (fields, body, wanted) in [
        ("", ASK, ""),
        ("X-Vllm-Priority: -5\r\n", ASK, ""),
        ("X-Vllm-Priority: 4\r\nx-vllm-priority: -5\r\n", ASK, "x-vllm-priority: 4"),
        ("X-VLLM-PRIORITY: not a number\r\n", ASK, ""),
        ("", early, "x-vllm-priority: 0"),
        ("x-team: made-up\r\n", early, "x-vllm-priority: 0"),
        ("Authorization: Bearer gold\r\n", early, "x-vllm-priority: 0"),
        ("x-team: gold\r\n", early, ""),
        ("x-team: gold\r\nX-Vllm-Priority: -9\r\n", ASK, "x-vllm-priority: -9"),
    ] {
        assert_eq!(told(fields, body), wanted, "{fields:?}");
    }
}
