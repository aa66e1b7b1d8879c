//! Pairs that cannot be: prefill workers that have not registered, none at all, and answers of
//! prefill without KV to transfer.

use crate::rig::pairs::{ask, idle, pair_config, ready, reason};
use crate::rig::stub::{Step, Stub, answer, reply_bytes};
use crate::rig::stub_pages::Pages;
use crate::rig::{Client, Reply, admin, admin_post, metric, router, until, usable};
use forebay::config::Config;
use forebay::server::ServerHandle;
use std::time::Duration;

const ASK: &str = r#"{"model":"m","prompt":"hi"}"#;
const PREFILLS: &str = "role = \"prefill\"";
const DECODES: &str = "role = \"decode\"";

/// Workers are looked at often, so that a change is seen soon.
fn watchful(mut config: Config) -> Config {
    config.health.interval = Duration::from_millis(50);
    config.timeouts.drain = Duration::from_secs(1);
    config
}

fn is_refused(reply: &Reply) -> bool {
    (reply.status, reason(reply)) == (503, "no-healthy-worker") && reply.complete
}

#[test]
fn a_prefill_worker_takes_no_traffic_before_it_has_registered() {
    let mut pages = Pages::sglang("prefill");
    pages.registered = false;
    let prefill = Stub::start(pages);
    let decode = Stub::start(Pages::sglang("decode"));
    let workers = [(&prefill, ""), (&decode, "")];
    let router = router(watchful(pair_config(&workers, "fallback = \"reject\"")));
    until("decode is up", || usable(&router) >= 1);
    let end = std::time::Instant::now() + Duration::from_millis(400);
    while std::time::Instant::now() < end {
        let reply = ask(&router, "/v1/completions", ASK).reply();
        assert!(is_refused(&reply), "{}{}", reply.head, reply.text());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(prefill.arrivals().is_empty() && decode.arrivals().is_empty());
    prefill.pages(|pages| pages.registered = true);
    until("it has traffic", || ask(&router, "/v1/completions", ASK).reply().status == 200);
    // Decode may have answered before prefill was reached.
    prefill.arrival(0);
    idle(&router);
}

#[test]
fn the_engines_own_pages_say_what_its_registry_is() {
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    // As decode reaches it, where that differs from how the router does.
    let lines = "bootstrap_host = \"localhost\"";
    let workers = [(&prefill, lines), (&decode, "")];
    let router = ready(pair_config(&workers, ""), &workers);
    assert_eq!(ask(&router, "/v1/completions", ASK).reply().status, 200);
    let leg = decode.arrival(0).json();
    assert_eq!(leg["bootstrap_host"], "localhost");
    assert_eq!(leg["bootstrap_port"], prefill.address.port());
    idle(&router);
}

/// A request that finds no pair: decode gets it as it is, or nobody does.
fn decodes_alone_or_refuses(router: &ServerHandle, decode: &Stub, served: bool) {
    let reply = ask(router, "/v1/completions", ASK).reply();
    if served {
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.field("x-forebay-prefill-worker"), None);
        assert_eq!(decode.arrival(0).text(), ASK);
    } else {
        assert!(is_refused(&reply), "{}{}", reply.head, reply.text());
        assert!(decode.arrivals().is_empty());
    }
    idle(router);
}

#[test]
fn without_prefill_workers_vllm_decodes_alone_unless_that_is_not_wanted() {
    for (fallback, served) in [("decode_only", true), ("reject", false)] {
        // It listens nowhere: never known.
        let prefill = Stub::start(Pages::vllm());
        let decode = Stub::start(Pages::vllm());
        prefill.vanish();
        let workers = [(&prefill, PREFILLS), (&decode, DECODES)];
        let router = router(pair_config(&workers, &format!("fallback = \"{fallback}\"")));
        until("decode is up", || usable(&router) == 1);
        decodes_alone_or_refuses(&router, &decode, served);
    }
}

/// NIXL's two modes do not mix: such a pair would fail after its prefill.
#[test]
fn workers_of_different_connectors_are_no_pair() {
    for (fallback, served) in [("decode_only", true), ("reject", false)] {
        let prefill = Stub::start(Pages::vllm());
        let decode = Stub::start(Pages::vllm());
        let pushed = format!("{DECODES}\nkv_flow = \"push\"");
        let workers = [(&prefill, PREFILLS), (&decode, &*pushed)];
        let router = router(pair_config(&workers, &format!("fallback = \"{fallback}\"")));
        until("both are up", || usable(&router) == 2);
        decodes_alone_or_refuses(&router, &decode, served);
        assert!(prefill.arrivals().is_empty());
    }
}

/// The prefill worker was started with another connector than its table says: its answer tells.
#[test]
fn kv_of_another_mode_is_refused_before_decode_gets_it() {
    let prefill = Stub::start(Pages::vllm());
    let decode = Stub::start(Pages::vllm());
    let pulls = format!("{DECODES}\nkv_flow = \"two_phase\"");
    let workers = [(&prefill, PREFILLS), (&decode, &*pulls)];
    let router = ready(pair_config(&workers, "fallback = \"reject\""), &workers);
    let handed = |mode: &str| format!(r#"{{"kv_transfer_params":{{"transfer_mode":"{mode}"}}}}"#);
    prefill.always(answer(handed("push").as_bytes()));
    let reply = ask(&router, "/v1/completions", ASK).reply();
    assert_eq!((reply.status, reason(&reply)), (502, "upstream-failed"), "{}", reply.text());
    let told = reply.text();
    for word in [prefill.address.to_string(), decode.address.to_string(), "kv_flow".to_owned()] {
        assert!(told.contains(&word), "{word}: {told}");
    }
    assert!(decode.arrivals().is_empty());
    prefill.always(answer(handed("pull").as_bytes()));
    assert_eq!(ask(&router, "/v1/completions", ASK).reply().status, 200);
    idle(&router);
}

/// Who waits for a worker that serves it whole, beside a pair that is not one yet, is not split
/// when it becomes one.
#[test]
fn what_cannot_be_split_is_not_split_by_a_prefill_worker_that_comes_later() {
    let mut pages = Pages::sglang("prefill");
    pages.registered = false;
    let prefill = Stub::start(pages);
    let decode = Stub::start(Pages::sglang("decode"));
    let whole = Stub::start(Pages::sglang("null"));
    let workers = [(&prefill, ""), (&decode, ""), (&whole, "")];
    let mut config = watchful(pair_config(&workers, "fallback = \"reject\""));
    config.flow.rank_concurrency_max = Some(1);
    config.flow.queue.wait_max = Duration::from_secs(60);
    let router = router(config);
    until("all answer", || usable(&router) == 3);
    whole.always([vec![Step::Word], answer(b"{}")].concat());
    let mut first = ask(&router, "/v1/completions", ASK);
    whole.arrival(0);
    let mut samples = ask(&router, "/v1/completions", r#"{"model":"m","prompt":"hi","n":2}"#);
    until("it waits", || metric(&router, "forebay_queue_depth") == 1.0);
    prefill.pages(|pages| pages.registered = true);
    let waits = || admin(&router, "/workers").text().contains("/route?");
    until("there is a pair", || !waits());
    let mut pair = ask(&router, "/v1/completions", ASK);
    assert_eq!(pair.reply().status, 200);
    std::thread::sleep(Duration::from_millis(100));
    for stub in [&prefill, &decode] {
        assert_eq!(stub.arrivals().len(), 1, "of the one that can be split");
    }
    whole.let_go();
    whole.let_go();
    assert_eq!(first.reply().status, 200);
    let reply = samples.reply();
    assert_eq!((reply.status, reply.field("x-forebay-prefill-worker")), (200, None));
    assert!(whole.arrival(1).text().contains("\"n\":2"));
    idle(&router);
}

#[test]
fn an_sglang_decode_worker_never_gets_a_request_without_a_room() {
    for fallback in ["decode_only", "two_phase", "reject"] {
        let decode = Stub::start(Pages::sglang("decode"));
        let workers = [(&decode, "")];
        let router = router(pair_config(&workers, &format!("fallback = \"{fallback}\"")));
        until("decode is up", || usable(&router) == 1);
        for (path, body) in [
            ("/v1/completions", ASK),
            ("/generate", r#"{"text":"hi"}"#),
            ("/v1/embeddings", r#"{"model":"m","input":"hi"}"#),
        ] {
            let reply = ask(&router, path, body).reply();
            assert!(is_refused(&reply), "{fallback} {path} {}{}", reply.head, reply.text());
        }
        assert!(decode.arrivals().is_empty());
    }
}

#[test]
fn what_has_no_legs_goes_to_who_serves_it_whole() {
    let whole = Stub::start(Pages::sglang("null"));
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    let workers = [(&prefill, ""), (&decode, "")];
    let router_without = ready(pair_config(&workers, ""), &workers);
    let embed = r#"{"model":"m","input":"hi"}"#;
    let reply = ask(&router_without, "/v1/embeddings", embed).reply();
    assert_eq!((reply.status, reason(&reply)), (400, "bad-request"), "{}", reply.text());
    assert!(reply.text().contains("cannot be split"), "{}", reply.text());
    drop(router_without);
    let workers = [(&prefill, ""), (&decode, ""), (&whole, "")];
    let router = router(pair_config(&workers, ""));
    until("all are up", || usable(&router) == 3);
    for _ in 0..4 {
        let reply = ask(&router, "/v1/embeddings", embed).reply();
        assert_eq!((reply.status, reply.field("x-forebay-prefill-worker")), (200, None));
    }
    assert_eq!(whole.arrivals().len(), 4);
    assert!(prefill.arrivals().is_empty() && decode.arrivals().is_empty());
}

#[test]
fn when_the_last_prefill_worker_dies_decode_goes_on_alone() {
    let prefill = Stub::start(Pages::vllm());
    let decode = Stub::start(Pages::vllm());
    let workers = [(&prefill, PREFILLS), (&decode, DECODES)];
    let mut config = watchful(pair_config(&workers, "fallback = \"decode_only\""));
    config.health.unhealthy_after = 2;
    let router = ready(config, &workers);
    prefill.vanish();
    until("decode is alone", || {
        let reply = ask(&router, "/v1/completions", ASK).reply();
        // Until it is known to be gone, a request may find it so.
        assert!(matches!(reply.status, 200 | 502), "{}{}", reply.head, reply.text());
        reply.status == 200 && reply.field("x-forebay-prefill-worker").is_none()
    });
    until("its death is known", || usable(&router) == 1);
    assert_eq!(ask(&router, "/v1/completions", ASK).reply().status, 200);
    idle(&router);
}

/// Answers of prefill workers that hand nothing over.
const NO_TRANSFERS: [&str; 10] = [
    r#"{"kv_transfer_params":null}"#,
    r#"{"id":"x","choices":[]}"#,
    r#"{"kv_transfer_params":7}"#,
    r#"{"kv_transfer_params":"text"}"#,
    r#"{"kv_transfer_params":[{}]}"#,
    r#"{"kv_transfer_params":{"a":}}"#,
    r#"{"kv_transfer_params":{"a":1}"#,
    r#"{"choices":[{"kv_transfer_params":{"a":1}}]}"#,
    "no JSON",
    "",
];

#[test]
fn a_transfer_that_is_none_is_a_502_in_the_words_of_the_api() {
    let prefill = Stub::start(Pages::vllm());
    let decode = Stub::start(Pages::vllm());
    let workers = [(&prefill, PREFILLS), (&decode, DECODES)];
    let router = ready(pair_config(&workers, "fallback = \"reject\""), &workers);
    let huge = format!(r#"{{"kv_transfer_params":{{"a":"{}"}}}}"#, "x".repeat(64 << 20));
    let deep = format!(
        r#"{{"kv_transfer_params":{{"a":{}{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for bad in NO_TRANSFERS.iter().copied().chain([&*huge, &*deep]) {
        prefill.always(answer(bad.as_bytes()));
        decode.forget();
        let shown = &bad[..bad.len().min(80)];
        let reply = ask(&router, "/v1/chat/completions", r#"{"model":"m","messages":[]}"#).reply();
        assert_eq!(
            (reply.status, reason(&reply)),
            (502, "upstream-failed"),
            "{shown} {}",
            reply.text()
        );
        let told: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
        assert!(told["error"]["message"].as_str().is_some_and(|text| text.len() > 20), "{told}");
        assert!(decode.arrivals().is_empty(), "{shown}");
        idle(&router);
    }
    // As Anthropic's clients read it.
    prefill.always(answer(NO_TRANSFERS[0].as_bytes()));
    let ask_anthropic =
        r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#;
    let reply = ask(&router, "/v1/messages", ask_anthropic).reply();
    assert_eq!((reply.status, reason(&reply)), (502, "upstream-failed"), "{}", reply.text());
    let told: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(
        (&told["type"], told["error"]["type"].is_string()),
        (&"error".into(), true),
        "{told}"
    );
    // A stream where one answer was asked for, and a body that never ends as it said.
    for bad in [
        vec![Step::Send(crate::rig::stub::stream_of(&["data: {}\n\n"]))],
        vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}".to_vec()), Step::Close],
        vec![Step::Send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec())],
        vec![Step::Send(reply_bytes(204, "", b""))],
    ] {
        prefill.always(bad.clone());
        let reply = ask(&router, "/v1/completions", ASK).reply();
        assert_eq!((reply.status, reason(&reply)), (502, "upstream-failed"), "{bad:?}");
    }
    assert!(decode.arrivals().is_empty());
    idle(&router);
}

/// What can be served in one piece, but by nobody at the moment, is no fault of its client.
#[test]
fn what_cannot_be_split_is_refused_for_want_of_who_serves_it_whole() {
    let prefill = Stub::start(Pages::vllm());
    let decode = Stub::start(Pages::vllm());
    let workers = [(&prefill, PREFILLS), (&decode, DECODES)];
    let router = ready(pair_config(&workers, ""), &workers);
    let several = r#"{"model":"m","prompt":["a","b"]}"#;
    let name = decode.url().trim_start_matches("http://").to_owned();
    let mut client = Client::connect(router.admin);
    client.send(&admin_post(&format!("/workers/{name}/drain"), b""));
    assert_eq!(client.reply().status, 200);
    let is_drained = || ask(&router, "/v1/completions", several).reply().status != 200;
    until("the decode worker is drained", is_drained);
    let reply = ask(&router, "/v1/completions", several).reply();
    assert!(is_refused(&reply), "{}{}", reply.head, reply.text());
}

/// Each leg has a copy of the body.
#[test]
fn bodies_of_requests_that_may_be_split_count_three_times() {
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    let workers = [(&prefill, ""), (&decode, "")];
    let mut config = pair_config(&workers, "");
    config.limits.buffered_bytes_max = 4_096;
    let router = ready(config, &workers);
    let body = |bytes: usize| format!(r#"{{"model":"m","prompt":"{}"}}"#, "p".repeat(bytes));
    assert_eq!(ask(&router, "/v1/completions", &body(1_000)).reply().status, 200);
    let reply = ask(&router, "/v1/completions", &body(2_000)).reply();
    assert_eq!((reply.status, reason(&reply)), (429, "rejected-in-flight"), "{}", reply.text());
    // Each prompt of a list gets a room, a host and a port of its own in both bodies.
    let list = |prompts: usize| {
        format!(r#"{{"model":"m","prompt":["a"{}]}}"#, r#","a""#.repeat(prompts - 1))
    };
    assert_eq!(ask(&router, "/v1/completions", &list(5)).reply().status, 200);
    let reply = ask(&router, "/v1/completions", &list(50)).reply();
    assert_eq!((reply.status, reason(&reply)), (429, "rejected-in-flight"), "{}", reply.text());
    idle(&router);
}
