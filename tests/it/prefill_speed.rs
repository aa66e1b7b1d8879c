//! How fast ranks compute prompts, as first tokens tell: decision 0104.

use crate::rig::pairs::{self, ready_pair};
use crate::rig::stub::Stub;
use crate::rig::stub_pages::Pages;
use crate::rig::token_engine::{CHAT, Engine, ask, body, continued, keeping};
use crate::rig::{ASK, Client, Worker, config, metric, post, router};
use forebay::server::ServerHandle;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Of the rank of a worker; 0: not known.
fn speed(handle: &ServerHandle, worker: &str) -> f64 {
    metric(handle, &format!(r#"forebay_prefill_tokens_per_second{{worker="{worker}""#))
}

#[test]
fn the_end_of_a_prefill_leg_tells_the_speed_of_its_rank() {
    let (prefill, decode) =
        (Stub::start(Pages::sglang("prefill")), Stub::start(Pages::sglang("decode")));
    let handle = ready_pair(&prefill, &decode, |_| {});
    let name = |stub: &Stub| stub.address.to_string();
    assert_eq!(pairs::ask(&handle, CHAT, &body(CHAT, "")).reply().status, 200);
    pairs::idle(&handle);
    assert!(speed(&handle, &name(&prefill)) > 0.0);
    assert_eq!(speed(&handle, &name(&decode)), 0.0, "it computes nothing");
}

#[test]
fn the_first_token_of_a_stream_that_may_move_tells_it_too() {
    let first = Engine::start([700]);
    let handle = router(keeping(&[&first, &Engine::sharing(&first.cuts)]));
    assert!(ask(&handle, CHAT, &body(CHAT, "")).complete);
    assert_eq!(continued(&handle), 1.0);
    for worker in ["w0", "w1"] {
        assert!(speed(&handle, worker) > 0.0, "{worker}");
    }
}

#[test]
fn an_answer_with_an_error_tells_nothing() {
    let is_refused = AtomicBool::new(true);
    let worker = Worker::start(move |_, stream| {
        let status = match is_refused.swap(false, Ordering::Relaxed) {
            true => "400 Bad Request",
            false => "200 OK",
        };
        std::thread::sleep(Duration::from_millis(5));
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}").is_ok()
    });
    let handle = router(config(&[&worker]));
    let mut client = Client::connect(handle.listen);
    for (status, tells) in [(400, false), (200, true)] {
        client.send(&post("/v1/completions", ASK));
        assert_eq!(client.reply().status, status);
        pairs::idle(&handle);
        assert_eq!(speed(&handle, &worker.address.to_string()) > 0.0, tells, "{status}");
    }
}
