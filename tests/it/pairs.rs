//! Prefill and decode on two workers: the exact bytes of both legs, when they leave, and what the
//! client gets.

use crate::rig::pairs::{ask, ask_with, idle, pair_config, ready, ready_pair, room, spliced, text};
use crate::rig::stub::{Arrival, Step, Stub, answer, reply_bytes, stream_of};
use crate::rig::stub_pages::Pages;
use crate::rig::{metric, router, until, usable};
use forebay::config::Forwarded;
use std::collections::HashSet;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
/// As clients write it: unknown members, blanks, numbers and escapes that must come through as they
/// are.
const BODY: &str = r#"{"model": "m","messages":[{"role":"user","content":"h\u00e9 {}"}], "temperature":0.10,"max_tokens":7,"unknown":{"a":[1e3]}}"#;
const TOKENS: &[&str] = &["data: {\"a\":1}\n\n", ": comment\n\n", "data: [DONE]\n\n"];

fn sglang_pair() -> (Stub, Stub) {
    (Stub::start(Pages::sglang("prefill")), Stub::start(Pages::sglang("decode")))
}

/// The members that a prefill worker with one rank has in both legs.
fn meeting(prefill: &Stub, leg: &Arrival) -> String {
    let body = leg.text();
    let rid = text(body, "rid").expect("a rid");
    assert!(
        rid.len() == 19
            && rid.starts_with("fb-")
            && rid[3..].bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')),
        "{rid}"
    );
    let port = prefill.address.port();
    format!(
        r#""bootstrap_host":"127.0.0.1","bootstrap_port":{port},"bootstrap_room":{},"rid":"{rid}""#,
        room(body)
    )
}

#[test]
fn both_legs_of_sglang_get_the_request_and_where_they_meet() {
    let (prefill, decode) = sglang_pair();
    let router = ready_pair(&prefill, &decode, |_| {});
    // Odd ends: nothing but the members is added, and nothing is moved.
    for (path, body) in [
        (CHAT, BODY.to_owned()),
        ("/v1/completions", r#"{"model":"m","prompt":"hi"}"#.to_owned()),
        ("/v1/completions", r#"{"model":"m","prompt":[1,2,3],"stream":false}"#.to_owned()),
        ("/generate", r#"{"text":"hi","sampling_params":{"max_new_tokens":4}}"#.to_owned()),
    ] {
        prefill.forget();
        decode.forget();
        let reply = ask(&router, path, &body).reply();
        assert_eq!(reply.status, 200, "{path} {}", reply.text());
        let legs = [prefill.arrival(0), decode.arrival(0)];
        let members = meeting(&prefill, &legs[0]);
        for leg in &legs {
            assert_eq!(leg.text(), spliced(&body, &members));
            assert_eq!(leg.path, path);
            assert_eq!(leg.fields("content-length"), [leg.body.len().to_string()]);
            assert_eq!(leg.fields("content-type"), ["application/json"]);
            assert!(leg.fields("x-data-parallel-rank").is_empty(), "{}", leg.head);
        }
        let room = room(legs[0].text());
        assert!((1..1 << 63).contains(&room));
        idle(&router);
    }
}

#[test]
fn decode_leaves_while_prefill_is_silent_and_the_client_hears_decode_alone() {
    let (prefill, decode) = sglang_pair();
    let router = ready_pair(&prefill, &decode, |_| {});
    for stream in [false, true] {
        prefill.forget();
        decode.forget();
        let body = BODY.replace("\"unknown\"", &format!("\"stream\":{stream},\"unknown\""));
        prefill.always([vec![Step::Word], answer(br#"{"prefill":1}"#)].concat());
        decode.always(vec![
            Step::Word,
            Step::Send(match stream {
                true => stream_of(TOKENS),
                false => reply_bytes(200, "x-engine: 7\r\n", br#"{"decode": 1}"#),
            }),
        ]);
        let mut client = ask_with(&router, CHAT, "x-request-id: mine-1\r\n", &body);
        let legs = [prefill.arrival(0), decode.arrival(0)];
        // Only now does prefill answer: as if KV had been handed over.
        prefill.let_go();
        decode.let_go();
        let reply = client.reply();
        assert!(reply.complete && reply.status == 200);
        match stream {
            true => assert_eq!(reply.text(), TOKENS.concat()),
            false => {
                assert_eq!(reply.text(), r#"{"decode": 1}"#);
                assert_eq!(reply.field("x-engine"), Some("7"));
            }
        }
        let name = |stub: &Stub| stub.address.to_string();
        assert_eq!(reply.field("x-forebay-worker"), Some(&*name(&decode)));
        assert_eq!(reply.field("x-forebay-prefill-worker"), Some(&*name(&prefill)));
        assert_eq!(reply.field("x-request-id"), Some("mine-1"));
        for leg in &legs {
            assert_eq!(leg.fields("x-request-id"), ["mine-1"]);
        }
        idle(&router);
    }
}

#[test]
fn neither_leg_believes_what_a_stranger_says_of_the_client() {
    let (prefill, decode) = sglang_pair();
    let router =
        ready_pair(&prefill, &decode, |config| config.client.forwarded = Forwarded::Replace);
    let claims = "x-forwarded-for: 1.1.1.1\r\nX-Real-IP: 1.1.1.1\r\nforwarded: for=1.1.1.1\r\n";
    assert_eq!(ask_with(&router, CHAT, claims, BODY).reply().status, 200);
    for leg in [prefill.arrival(0), decode.arrival(0)] {
        assert_eq!(leg.fields("x-forwarded-for"), ["127.0.0.1"], "{}", leg.head);
        assert_eq!(leg.fields("forwarded"), ["for=127.0.0.1"], "{}", leg.head);
        assert!(!leg.head.contains("1.1.1.1"), "{}", leg.head);
    }
    idle(&router);
}

#[test]
fn the_clients_own_rid_is_kept() {
    let (prefill, decode) = sglang_pair();
    let router = ready_pair(&prefill, &decode, |_| {});
    let body = BODY.replace("\"unknown\"", "\"rid\":\"of the client\",\"unknown\"");
    assert_eq!(ask(&router, CHAT, &body).reply().status, 200);
    for leg in [prefill.arrival(0), decode.arrival(0)] {
        assert_eq!(leg.text().matches("\"rid\"").count(), 1, "{}", leg.text());
        assert_eq!(leg.json()["rid"], "of the client");
    }
}

/// The header counts more than the body: an abort by the name in the body would end nothing.
#[test]
fn names_in_a_header_do_not_travel() {
    let (prefill, decode) = sglang_pair();
    let router = ready_pair(&prefill, &decode, |_| {});
    let reply = ask_with(&router, CHAT, "X-Override-Rid: abc\r\n", BODY).reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    for leg in [prefill.arrival(0), decode.arrival(0)] {
        assert!(leg.fields("x-override-rid").is_empty(), "{}", leg.head);
        assert!(text(leg.text(), "rid").is_some_and(|rid| rid.starts_with("fb-")));
    }
}

/// Both answers are read here before the client has them, and what is compressed cannot be.
#[test]
fn both_legs_are_asked_for_plain_answers() {
    let (prefill, decode) = sglang_pair();
    let router = ready_pair(&prefill, &decode, |_| {});
    let body = BODY.replace("\"unknown\"", "\"stream\":true,\"unknown\"");
    let reply = ask_with(&router, CHAT, "accept-encoding: gzip, br\r\n", &body).reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    for leg in [prefill.arrival(0), decode.arrival(0)] {
        assert_eq!(leg.fields("accept-encoding"), ["identity"], "{}", leg.head);
    }
}

#[test]
fn every_request_has_a_room_of_its_own() {
    let (prefill, decode) = sglang_pair();
    let router = ready_pair(&prefill, &decode, |config| config.cores = vec![0, 1]);
    for _ in 0..60 {
        assert_eq!(
            ask(&router, "/v1/completions", r#"{"model":"m","prompt":"x"}"#).reply().status,
            200
        );
    }
    idle(&router);
    let rooms =
        |stub: &Stub| -> Vec<u64> { stub.arrivals().iter().map(|leg| room(leg.text())).collect() };
    let of_prefill = rooms(&prefill);
    let of_decode = rooms(&decode);
    assert_eq!(of_prefill.iter().collect::<HashSet<_>>().len(), 60, "{of_prefill:?}");
    assert_eq!(of_prefill.iter().collect::<HashSet<_>>(), of_decode.iter().collect::<HashSet<_>>());
}

#[test]
fn batches_have_a_room_for_each_prompt() {
    let (prefill, decode) = sglang_pair();
    let router = ready_pair(&prefill, &decode, |_| {});
    let body = r#"{"model":"m","prompt":["a","b","c"]}"#;
    assert_eq!(ask(&router, "/v1/completions", body).reply().status, 200);
    let legs = [prefill.arrival(0), decode.arrival(0)].map(|leg| leg.json());
    let port = prefill.address.port();
    for leg in &legs {
        assert_eq!(
            leg["bootstrap_host"],
            serde_json::json!(["127.0.0.1", "127.0.0.1", "127.0.0.1"])
        );
        assert_eq!(leg["bootstrap_port"], serde_json::json!([port, port, port]));
        let rooms: HashSet<u64> = leg["bootstrap_room"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_u64().unwrap())
            .collect();
        assert_eq!(rooms.len(), 3, "{leg}");
    }
    assert_eq!(legs[0]["bootstrap_room"], legs[1]["bootstrap_room"]);
}

#[test]
fn several_samples_are_refused_since_their_rooms_would_collide() {
    let (prefill, decode) = sglang_pair();
    let router = ready_pair(&prefill, &decode, |_| {});
    for (path, body) in [
        ("/v1/completions", r#"{"model":"m","prompt":"a","n":3}"#),
        ("/generate", r#"{"text":"a","sampling_params":{"n":2}}"#),
    ] {
        let reply = ask(&router, path, body).reply();
        assert!(matches!(reply.status, 400 | 503), "{}", reply.text());
        assert!(reply.text().contains("`n`"), "{}", reply.text());
    }
    assert!(prefill.arrivals().is_empty() && decode.arrivals().is_empty());
}

#[test]
fn legs_reuse_connections_and_replace_those_that_died_meanwhile() {
    let (prefill, decode) = sglang_pair();
    let router = ready_pair(&prefill, &decode, |_| {});
    for round in 0..6 {
        assert_eq!(ask(&router, CHAT, BODY).reply().status, 200, "{round}");
        idle(&router);
        if round % 2 == 1 {
            prefill.cut_all();
            decode.cut_all();
        }
    }
    assert_eq!((prefill.arrivals().len(), decode.arrivals().len()), (6, 6));
    assert!(metric(&router, "forebay_upstream_reused_total") >= 6.0);
    assert_eq!(metric(&router, "forebay_retries_total"), 0.0);
}

// vLLM
// ------------------------------------------------------------------------------------------

const HANDED: &str = r#"{"do_remote_prefill":true, "remote_block_ids":[[1,2]],"remote_engine_id":"e-1","remote_port":5600,"x":1e2}"#;

fn vllm_pair() -> (Stub, Stub) {
    (Stub::start(Pages::vllm()), Stub::start(Pages::vllm()))
}

const PREFILLS: &str = "role = \"prefill\"";
const DECODES: &str = "role = \"decode\"";

/// What a prefill worker answers whose KV is fetched.
fn handing() -> Vec<u8> {
    let body = format!(
        r#"{{"id":"cmpl-1","choices":[{{"text":"x"}}],"kv_transfer_params":{HANDED},"usage":{{}}}}"#
    );
    reply_bytes(200, "", body.as_bytes())
}

#[test]
fn vllm_decodes_with_what_prefill_has_answered() {
    let (prefill, decode) = vllm_pair();
    let workers = [(&prefill, PREFILLS), (&decode, DECODES)];
    let router = ready(pair_config(&workers, ""), &workers);
    for stream in [false, true] {
        prefill.forget();
        decode.forget();
        let options = if stream { r#""stream_options":{"include_usage":true},"# } else { "" };
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"stream":{stream},{options}"min_tokens":2,"max_tokens":70,"seed":1}}"#
        );
        prefill.always(vec![
            Step::Word,
            Step::Pause(Duration::from_millis(30)),
            Step::Send(handing()),
        ]);
        decode.always(vec![Step::Send(match stream {
            true => stream_of(TOKENS),
            false => reply_bytes(200, "", b"{\"decode\":1}"),
        })]);
        let mut client = ask(&router, CHAT, &body);
        let first = prefill.arrival(0);
        assert!(decode.arrivals().is_empty(), "decode waits for prefill's answer");
        prefill.let_go();
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.text(), if stream { TOKENS.concat() } else { "{\"decode\":1}".into() });
        let second = decode.arrival(0);
        let answered = prefill.arrival(0).answered.expect("prefill has answered");
        assert!(second.at >= answered - Duration::from_millis(1), "{:?}", answered - second.at);
        // One token and no stream, with the rest as it was.
        assert_eq!(
            first.text(),
            r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false,"min_tokens":1,"max_tokens":1,"seed":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}}"#
        );
        assert_eq!(second.text(), spliced(&body, &format!(r#""kv_transfer_params":{HANDED}"#)));
        let ids = first.fields("x-request-id");
        assert_eq!(ids.len(), 1);
        assert_eq!(ids, second.fields("x-request-id"));
        assert_eq!(reply.field("x-request-id"), Some(ids[0]));
        let prefill_name = prefill.address.to_string();
        assert_eq!(reply.field("x-forebay-prefill-worker"), Some(&*prefill_name));
        idle(&router);
    }
}

#[test]
fn a_prefill_leg_that_asks_for_no_length_is_told_one_token() {
    let (prefill, decode) = vllm_pair();
    let workers = [(&prefill, PREFILLS), (&decode, DECODES)];
    let router = ready(pair_config(&workers, ""), &workers);
    prefill.always(vec![Step::Send(handing())]);
    let body = r#"{"model":"m","messages":[],"max_completion_tokens":9}"#;
    assert_eq!(ask(&router, CHAT, body).reply().status, 200);
    let asked = prefill.arrival(0).json();
    for limit in ["max_tokens", "max_completion_tokens", "min_tokens"] {
        assert_eq!(asked[limit], 1, "{limit}");
    }
    assert_eq!(
        decode.arrival(0).text(),
        spliced(body, &format!(r#""kv_transfer_params":{HANDED}"#))
    );
}

/// Older engines hand over nothing where the first token ends the answer. Such a prompt is answered
/// all the same.
#[test]
fn an_answer_that_ends_with_its_first_token_is_computed_by_decode() {
    let (prefill, decode) = vllm_pair();
    let workers = [(&prefill, PREFILLS), (&decode, DECODES)];
    let router = ready(pair_config(&workers, ""), &workers);
    let cases = [
        (CHAT, r#"{"choices":[{"finish_reason":"stop"}],"kv_transfer_params":null}"#),
        ("/v1/messages", r#"{"stop_reason":"end_turn","content":[]}"#),
        ("/v1/responses", r#"{"status":"completed","output":[]}"#),
    ];
    for (path, ended) in cases {
        prefill.forget();
        decode.forget();
        prefill.always(answer(ended.as_bytes()));
        decode.always(answer(b"{\"decode\":1}"));
        let body = match path {
            "/v1/responses" => r#"{"model":"m","input":"hi","max_output_tokens":9}"#,
            _ => r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":9}"#,
        };
        let reply = ask(&router, path, body).reply();
        assert_eq!((reply.status, &*reply.text()), (200, "{\"decode\":1}"), "{path}");
        assert_eq!(decode.arrival(0).text(), body, "{path}: whole, for nothing was handed over");
        assert_eq!((prefill.arrivals().len(), decode.arrivals().len()), (1, 1), "{path}");
        idle(&router);
        // An answer that was cut off by the limit should have had something for decode.
        prefill.always(answer(br#"{"choices":[{"finish_reason":"length"}]}"#));
        assert_eq!(ask(&router, path, body).reply().status, 502, "{path}");
        idle(&router);
    }
}

#[test]
fn pushed_kv_needs_no_answer_of_prefill() {
    let (prefill, decode) = vllm_pair();
    let push = "role = \"prefill\"\nkv_flow = \"push\"\nkv_engine_id = \"e-9\"\nkv_host = \"10.0.0.9\"\n\
                kv_port = 5601\nkv_tp_size = 2\nkv_pp_size = 3";
    let workers = [(&prefill, push), (&decode, DECODES)];
    let router = ready(pair_config(&workers, ""), &workers);
    prefill.always([vec![Step::Word], answer(b"{}")].concat());
    let body = r#"{"model":"m","prompt":"hi","max_tokens":70}"#;
    let reply = ask_with(&router, "/v1/completions", "x-request-id: mine\r\n", body).reply();
    assert_eq!(reply.status, 200, "prefill has not answered, and need not: {}", reply.text());
    assert_eq!(reply.field("x-request-id"), Some("mine"));
    let first = prefill.arrival(0);
    let second = decode.arrival(0);
    prefill.let_go();
    let id = first.fields("x-request-id")[0];
    assert!(id.len() == 19 && id.starts_with("fb-"), "{id}");
    assert_eq!(second.fields("x-request-id"), [id]);
    assert_eq!(first.json()["max_tokens"], 1);
    assert_eq!(
        first.json()["kv_transfer_params"],
        serde_json::json!({ "do_remote_decode": true, "do_remote_prefill": false })
    );
    let params = serde_json::json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": "e-9",
        "remote_host": "10.0.0.9", "remote_port": 5601, "tp_size": 2, "pp_size": 3,
        "remote_request_id": id,
    });
    assert_eq!(second.json()["kv_transfer_params"], params);
    assert_eq!(second.json()["max_tokens"], 70);
    idle(&router);
}

/// vLLM pairs the legs of a push by their id: two requests under one would get each other's KV, and
/// a second attempt would meet what is left of the first.
#[test]
fn pushes_never_share_an_id_whatever_clients_call_them() {
    let (prefill, decode) = vllm_pair();
    let broken = Stub::start(Pages::vllm());
    let push = "role = \"prefill\"\nkv_flow = \"push\"\nkv_engine_id = \"e-9\"";
    let body = r#"{"model":"m","prompt":"hi","max_tokens":70}"#;
    let same = "x-request-id: same\r\n";
    let mut met = HashSet::new();
    let mut meet = |prefills: Vec<Arrival>, decodes: Vec<Arrival>| {
        let id = |leg: &Arrival| leg.fields("x-request-id").concat();
        let ids: HashSet<String> = decodes.iter().map(id).collect();
        for leg in &decodes {
            assert_eq!(text(leg.text(), "remote_request_id"), Some(&*id(leg)), "{}", leg.text());
        }
        assert_eq!((ids.len(), decodes.len()), (2, 2), "{ids:?}");
        assert_eq!(prefills.iter().map(id).collect::<HashSet<_>>(), ids);
        ids.into_iter().for_each(|id| assert!(met.insert(id)));
    };
    // At the same time.
    let workers = [(&prefill, push), (&decode, DECODES)];
    let router = ready(pair_config(&workers, ""), &workers);
    decode.always([vec![Step::Word], answer(b"{}")].concat());
    let mut clients = [0, 1].map(|_| ask_with(&router, "/v1/completions", same, body));
    until("all legs have come", || decode.arrivals().len() == 2 && prefill.arrivals().len() == 2);
    for client in &mut clients {
        decode.let_go();
        decode.let_go();
        let reply = client.reply();
        assert_eq!((reply.status, reply.field("x-request-id")), (200, Some("same")));
    }
    meet(prefill.arrivals(), decode.arrivals());
    drop(router);
    // One after the other, for the same request.
    let workers = [(&prefill, push), (&decode, DECODES), (&broken, DECODES)];
    let router = ready(pair_config(&workers, ""), &workers);
    broken.always(vec![Step::Close]);
    until("a request has been tried twice", || {
        [&prefill, &decode, &broken].into_iter().for_each(Stub::forget);
        let reply = ask_with(&router, "/v1/completions", same, body).reply();
        assert_eq!((reply.status, reply.field("x-request-id")), (200, Some("same")));
        idle(&router);
        !broken.arrivals().is_empty()
    });
    meet(prefill.arrivals(), [decode.arrivals(), broken.arrivals()].concat());
}

#[test]
fn mooncake_legs_meet_under_a_transfer_id() {
    let (prefill, decode) = vllm_pair();
    let port = prefill.address.port();
    let mooncake = format!("role = \"prefill\"\nkv_flow = \"mooncake\"\nbootstrap_port = {port}");
    let workers = [(&prefill, &*mooncake), (&decode, DECODES)];
    let router = ready(pair_config(&workers, ""), &workers);
    prefill.always([vec![Step::Word], answer(b"{}")].concat());
    let body = r#"{"model":"m","prompt":"hi","max_tokens":70}"#;
    let mut transfers = HashSet::new();
    for _ in 0..3 {
        prefill.forget();
        decode.forget();
        let reply = ask(&router, "/v1/completions", body).reply();
        assert_eq!(reply.status, 200, "prefill has not answered, and need not: {}", reply.text());
        let first = prefill.arrival(0);
        let second = decode.arrival(0);
        prefill.let_go();
        let transfer = text(first.text(), "transfer_id").expect("an id").to_owned();
        assert!(transfer.starts_with("xfer-"), "{transfer}");
        let expected = |params: &str| {
            let limits = match params.starts_with("\"do_remote_decode\":true") {
                true => r#"1,"min_tokens":1"#,
                false => "70",
            };
            let body = body.replace("70", limits);
            let params = format!(r#""kv_transfer_params":{{{params},"transfer_id":"{transfer}"}}"#);
            spliced(&body, &params)
        };
        assert_eq!(first.text(), expected(r#""do_remote_decode":true,"do_remote_prefill":false"#));
        let source = format!(
            r#""remote_bootstrap_addr":"http://127.0.0.1:{port}","remote_engine_id":"of rank 0""#
        );
        let told = format!(r#""do_remote_decode":false,"do_remote_prefill":true,{source}"#);
        assert_eq!(second.text(), expected(&told));
        transfers.insert(transfer);
        idle(&router);
    }
    assert_eq!(transfers.len(), 3);
}

#[test]
fn straight_requests_of_vllm_have_one_leg() {
    let (prefill, decode) = vllm_pair();
    let workers = [(&prefill, PREFILLS), (&decode, DECODES)];
    let router = ready(pair_config(&workers, ""), &workers);
    for body in [
        r#"{"model":"m","prompt":"a","n":2}"#,
        r#"{"model":"m","prompt":["a","b"]}"#,
        r#"{"model":"m","prompt":[[1],[2]]}"#,
        r#"{"model":"m","prompt":"a","kv_transfer_params":{"mine":1}}"#,
    ] {
        decode.forget();
        let reply = ask(&router, "/v1/completions", body).reply();
        assert_eq!(reply.status, 200, "{body} {}", reply.text());
        assert_eq!(decode.arrival(0).text(), body);
        assert_eq!(reply.field("x-forebay-prefill-worker"), None, "{body}");
    }
    let reply = ask(&router, "/v1/embeddings", r#"{"model":"m","input":"a"}"#).reply();
    assert_eq!((reply.status, decode.arrival(1).path.as_str()), (200, "/v1/embeddings"));
    assert!(prefill.arrivals().is_empty(), "no plain request goes to a prefill worker");
    idle(&router);
}

#[test]
fn short_prompts_are_not_worth_two_legs() {
    let (prefill, decode) = vllm_pair();
    let workers = [(&prefill, PREFILLS), (&decode, DECODES)];
    let router = router(pair_config(&workers, "uncached_tokens_min = 100"));
    until("both are known", || usable(&router) == 2);
    prefill.always(vec![Step::Send(handing())]);
    let ask_of = |bytes: usize| {
        let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(bytes));
        let reply = ask(&router, "/v1/completions", &body).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.field("x-forebay-prefill-worker").is_some()
    };
    assert!(!ask_of(200), "50 tokens");
    assert!(ask_of(4_000), "1,000 tokens");
    assert_eq!((prefill.arrivals().len(), decode.arrivals().len()), (1, 2));
}
