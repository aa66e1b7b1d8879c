//! How fast ranks compute prompts, as first tokens tell: decision 0104.

use crate::rig::pairs::{self, ready_pair};
use crate::rig::stub::Stub;
use crate::rig::stub_pages::Pages;
use crate::rig::token_engine::{CHAT, Engine, ask, body, continued, keeping};
use crate::rig::{ASK, Client, Gate, Worker, admin, config, metric, post, router, until};
use forebay::config::{Config, Policy};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Its only token is the first.
const ASK_STREAM: &[u8] = br#"{"model":"m","prompt":"hi","stream":true}"#;
const ASK_ONE: &[u8] = br#"{"model":"m","prompt":"hi","max_tokens":1}"#;

/// Of the rank of a worker; 0: not known.
fn speed(handle: &ServerHandle, worker: &str) -> f64 {
    metric(handle, &format!(r#"forebay_prefill_tokens_per_second{{worker="{worker}""#))
}

#[test]
fn the_end_of_a_prefill_leg_tells_the_speed_of_its_rank() {
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
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
        client.send(&post("/v1/completions", ASK_ONE));
        assert_eq!(client.reply().status, status);
        pairs::idle(&handle);
        assert_eq!(speed(&handle, &worker.address.to_string()) > 0.0, tells, "{status}");
    }
}

/// An engine answers it with an event at once, and computes the prompt then.
#[test]
fn the_first_event_of_a_stream_of_responses_is_no_first_token() {
    let worker = Worker::start(|_, stream| {
        std::thread::sleep(Duration::from_millis(5));
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9";
        write!(stream, "{head}\r\n\r\ndata: 1\n\n").is_ok()
    });
    let handle = router(config(&[&worker]));
    let mut client = Client::connect(handle.listen);
    let streams: [(_, &[u8], _); 2] = [
        ("/v1/responses", br#"{"model":"m","input":"hi","stream":true}"#, false),
        ("/v1/completions", br#"{"model":"m","prompt":"hi","stream":true}"#, true),
    ];
    for (path, body, tells) in streams {
        client.send(&post(path, body));
        assert_eq!(client.reply().status, 200);
        pairs::idle(&handle);
        assert_eq!(speed(&handle, &worker.address.to_string()) > 0.0, tells, "{path}");
    }
}

#[test]
fn the_prompt_of_an_answer_that_comes_whole_waits_as_long_as_it_should_take() {
    let gate = Gate::start();
    let handle = router(config(&[&gate.worker]));
    let address = gate.worker.address.to_string();
    let waiting = || metric(&handle, "forebay_prefill_tokens{");
    let mut client = Client::connect(handle.listen);
    let mut ask = |body: &[u8], meanwhile: &dyn Fn()| {
        client.send(&post("/v1/completions", body));
        gate.holds(1);
        meanwhile();
        gate.open();
        assert_eq!(client.reply().status, 200);
        pairs::idle(&handle);
    };
    // The speed is not known: until the answer comes.
    ask(ASK, &|| {
        std::thread::sleep(Duration::from_millis(50));
        assert!(waiting() > 0.0);
    });
    assert_eq!(speed(&handle, &address), 0.0, "nobody knows when the prompt was computed");
    // One of 16 first tokens has to show.
    (0..30).for_each(|_| ask(ASK_STREAM, &|| ()));
    let known = speed(&handle, &address);
    assert!(known > 0.0);
    ask(ASK, &|| {
        until("the prompt counts as computed", || waiting() == 0.0);
        gate.holds(1);
    });
    assert_eq!(speed(&handle, &address), known);
}

/// Decision 0107.
#[test]
fn a_slow_rank_gets_none_while_a_fast_one_is_free() {
    let served = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let [fast, slow] = [(0, 1), (1, 30)].map(|(number, millis): (usize, _)| {
        let served = Arc::clone(&served[number]);
        Worker::start(move |_, stream| {
            std::thread::sleep(Duration::from_millis(millis));
            served.fetch_add(1, Ordering::Relaxed);
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{{}}").is_ok()
        })
    });
    let handle = router(Config { policy: Policy::Kv, ..config(&[&fast, &slow]) });
    let mut client = Client::connect(handle.listen);
    // Long prompts tell a speed, and no cache has their beginning.
    let mut number = 0;
    let words = "word ".repeat(8_000);
    let mut ask = |times| {
        for _ in 0..times {
            number += 1;
            let prompt = format!("{number} {words}");
            let body = format!(r#"{{"model":"m","prompt":"{prompt}","max_tokens":1}}"#);
            client.send(&post("/v1/completions", body.as_bytes()));
            assert_eq!(client.reply().status, 200);
        }
        served.each_ref().map(|served| served.load(Ordering::Relaxed))
    };
    let explained = || {
        let explained = admin(&handle, "/debug/overlap?model=m&prompt=hi");
        let explained: Value = serde_json::from_slice(&explained.body).unwrap();
        [0, 1].map(|at| explained["ranks"][at].clone())
    };
    let speeds = |ranks: &[Value; 2]| ranks.each_ref().map(|r| r["wait_tokens_per_s"].as_u64());
    assert_eq!(speeds(&explained()), [None, None]);
    let [_, before] = ask(120);
    assert!(before >= 8, "{before}: until enough is known, it is one of two");
    let [_, after] = ask(40);
    assert!(after <= before + 3, "{before} {after}: one now and then");
    let shown = |worker: &Worker| {
        let name = format!(r#"forebay_wait_tokens_per_second{{worker="{}""#, worker.address);
        metric(&handle, &name)
    };
    until("the slow rank costs more", || {
        // Its speed may be half forgotten.
        ask(1);
        let ranks = explained();
        let slower = ranks.each_ref().map(|rank| rank["cost_parts"]["slower_tokens"].as_i64());
        let [Some(fast_speed), Some(slow_speed)] = speeds(&ranks) else { return false };
        let are_shown = shown(&fast) > shown(&slow) && shown(&slow) > 0.0;
        slower[1].unwrap() > slower[0].unwrap() && fast_speed > slow_speed && are_shown
    });
}
