//! Streams of pairs whose first events come before the prompt is computed: as long as there is no
//! token, prefill may still fail.

use crate::rig::pairs::{ask, idle, pair_config, ready, ready_pair, reason};
use crate::rig::stub::{STREAM_HEAD, Step, Stub, chunk, stream_of};
use crate::rig::stub_pages::Pages;
use crate::rig::until;
use std::time::Duration;

const RESPONSES: (&str, &str) = ("/v1/responses", r#"{"model":"m","input":"hi","stream":true}"#);
const CREATED: &str = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n\
                       event: response.in_progress\ndata: {\"type\":\"response.in_progress\"}\n\n";
const DELTA: &str = "event: response.output_text.delta\ndata: {\"delta\":\"a\"}\n\n";

fn begins(early: &str) -> Step {
    Step::Send([STREAM_HEAD, &chunk(early.as_bytes())].concat())
}

#[test]
fn a_stream_without_a_token_ends_with_its_prefill_leg() {
    let messages =
        r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    let prompt = r#"{"model":"m","prompt":"hi","stream":true}"#;
    let start =
        "event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: ping\ndata: {}\n\n";
    // As long as the instructions and tools that it repeats.
    let long = CREATED.replace("\"}\n", &format!("\",\"tools\":\"{}\"}}\n", "t".repeat(60_000)));
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    let router = ready_pair(&prefill, &decode, |_| {});
    for ((path, body), early) in [
        (RESPONSES, CREATED),
        (RESPONSES, &long),
        (("/v1/messages", messages), start),
        (("/v1/completions", prompt), ": ping\n\n"),
    ] {
        prefill.forget();
        decode.forget();
        prefill.always(vec![Step::Word, Step::Close]);
        decode.always(vec![begins(early), Step::Word]);
        let mut client = ask(&router, path, body);
        decode.arrival(0);
        prefill.arrival(0);
        // What decode sends is with the router, most likely.
        std::thread::sleep(Duration::from_millis(30));
        prefill.let_go();
        let reply = client.reply();
        assert_eq!((reply.status, reason(&reply)), (502, "upstream-failed"), "{path}");
        decode.closed(0);
        idle(&router);
    }
}

#[test]
fn another_pair_answers_from_the_beginning() {
    let many = |mode| [0, 1].map(|_| Stub::start(Pages::sglang(mode)));
    let prefill = many("prefill");
    let decode = many("decode");
    let stubs = || prefill.iter().chain(&decode);
    let workers: Vec<_> = stubs().map(|stub| (stub, "")).collect();
    let mut config = pair_config(&workers, "");
    config.retry.budget_percent = 100;
    let router = ready(config, &workers);
    prefill[0].always(vec![Step::Pause(Duration::from_millis(50)), Step::Close]);
    prefill[1].always(vec![Step::Send(stream_of(&["data: {}\n\n"]))]);
    let rest = [chunk(DELTA.as_bytes()), chunk(b"")].concat();
    for stub in &decode {
        stub.always(vec![begins(CREATED), Step::Word, Step::Send(rest.clone())]);
    }
    until("the prefill worker that breaks is asked", || {
        stubs().for_each(Stub::forget);
        let (path, body) = RESPONSES;
        let mut client = ask(&router, path, body);
        prefill[1].arrival(0);
        // One for a request that the router has closed and that has not noticed.
        decode.iter().chain(&decode).for_each(Stub::let_go);
        let reply = client.reply();
        let text = reply.text();
        assert_eq!((reply.status, reply.complete), (200, true), "{}{text}", reply.head);
        assert_eq!(text, [CREATED, DELTA].concat(), "the first pair's beginning is not seen");
        idle(&router);
        !prefill[0].arrivals().is_empty()
    });
}

/// An engine that only shows that its connection is alive does not answer.
#[test]
fn comments_do_not_put_off_the_end_of_the_wait() {
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    let router = ready_pair(&prefill, &decode, |config| {
        config.timeouts.first_byte = Duration::from_millis(700);
        config.flow.disaggregation.prefill_timeout = Some(Duration::from_secs(60));
    });
    prefill.always(vec![Step::Word]);
    let comment = || [Step::Pause(Duration::from_millis(200)), Step::Send(chunk(b": ping\n\n"))];
    let mut steps = vec![Step::Send(STREAM_HEAD.to_vec())];
    (0..100).for_each(|_| steps.extend(comment()));
    decode.always(steps);
    let mut client =
        ask(&router, "/v1/completions", r#"{"model":"m","prompt":"hi","stream":true}"#);
    let reply = client.reply();
    assert_eq!((reply.status, reason(&reply)), (504, "upstream-timeout"), "{}", reply.text());
    idle(&router);
}
