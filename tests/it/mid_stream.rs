//! O7: a stream that loses its worker goes on at another one, with `retry.mid_stream`.

use crate::rig::token_engine::{
    CHAT, Engine, PROMPT, TEXT, USAGE, WHOLE, ask, body, continued, ends_with_error, events,
    keeping, not_continued, uncut, write_cut,
};
use crate::rig::{Client, PATIENCE, Worker, metric, post, router, until};
use forebay::config::EngineKind;
use serde_json::Value;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

#[test]
fn a_stream_that_lives_is_as_without_the_key() {
    let engine = Engine::start([]);
    let handle = router(keeping(&[&engine]));
    for path in [CHAT, TEXT] {
        for more in ["", USAGE] {
            let body = body(path, more);
            let reply = ask(&handle, path, &body);
            assert!(reply.complete);
            assert_eq!(reply.text(), uncut(path, &body));
            let seen: Value = serde_json::from_slice(&engine.worker.next().body).unwrap();
            assert_eq!(seen["return_token_ids"], true);
        }
    }
    assert_eq!(continued(&handle), 0.0);
}

/// Byte for byte, wherever the first worker dies.
#[test]
fn a_cut_stream_goes_on_elsewhere() {
    for path in [CHAT, TEXT] {
        for more in ["", USAGE] {
            let body = body(path, more);
            let whole = uncut(path, &body);
            // The ids and the framing make the cut stream longer.
            let places: Vec<_> = (0..whole.len() + 100).step_by(53).collect();
            let first = Engine::start(places.iter().flat_map(|cut| [*cut, WHOLE]));
            let mut config = keeping(&[&first, &Engine::sharing(&first.cuts)]);
            config.retry.budget_percent = 100;
            let handle = router(config);
            for cut in places {
                let reply = ask(&handle, path, &body);
                assert!(reply.complete, "{path} at {cut}: {}", reply.text());
                assert_eq!(reply.text(), whole, "{path} at {cut}");
            }
            assert!(continued(&handle) > 30.0);
        }
    }
}

/// The answer has come, but for its end: no other worker is asked.
#[test]
fn at_the_very_end_nothing_is_left_to_ask_for() {
    for path in [CHAT, TEXT] {
        for (more, events_left) in [("", 1), (USAGE, 1), (USAGE, 2)] {
            let body = body(path, more);
            let asked = body.replacen('{', r#"{"return_token_ids":true,"#, 1);
            let all = events(&format!("POST {path} "), asked.as_bytes());
            let framed = |event: &String| event.len() + format!("{:x}", event.len()).len() + 4;
            let cut = all[..all.len() - events_left].iter().map(framed).sum();
            let engines = [Engine::start([cut]), Engine::start([])];
            let handle = router(keeping(&[&engines[0], &engines[1]]));
            let mut client = Client::connect(handle.listen);
            client.send(&post(path, body.as_bytes()));
            let reply = client.reply();
            assert!(reply.complete);
            assert_eq!(reply.text(), uncut(path, &body));
            assert_eq!(continued(&handle), 0.0);
            assert!(engines[1].worker.seen.try_recv().is_err());
            // The connection goes on.
            client.send(&post(path, body.as_bytes()));
            assert_eq!(client.reply().text(), uncut(path, &body));
        }
    }
}

#[test]
fn two_cuts_need_three_attempts() {
    let body = body(CHAT, USAGE);
    for attempts_max in [2, 3] {
        let first = Engine::start([1_200, 700]);
        let others = [(); 2].map(|()| Engine::sharing(&first.cuts));
        let mut config = keeping(&[&first, &others[0], &others[1]]);
        config.retry.attempts_max = attempts_max;
        let handle = router(config);
        let reply = ask(&handle, CHAT, &body);
        let last = (attempts_max - 1) as f64;
        assert_eq!(continued(&handle), last);
        if attempts_max == 3 {
            assert_eq!(reply.text(), uncut(CHAT, &body));
            for other in &others {
                let rest: Value = serde_json::from_slice(&other.worker.next().body).unwrap();
                let count = rest["prompt"].as_array().unwrap().len();
                assert_eq!(rest["max_tokens"], 20 + PROMPT.len() - count);
            }
        } else {
            assert!(ends_with_error(&reply), "{}", reply.text());
            assert_eq!(not_continued(&handle, "no-worker"), 1.0);
            assert_eq!(
                others.iter().map(|other| other.worker.seen.try_iter().count()).sum::<usize>(),
                1
            );
        }
        until("the cut is counted", || {
            metric(&handle, "forebay_cut_mid_stream_total") == f64::from(attempts_max == 2)
        });
    }
}

#[test]
fn without_another_worker_it_ends_as_before() {
    for path in [CHAT, TEXT] {
        let engine = Engine::start([900]);
        let handle = router(keeping(&[&engine]));
        let body = body(path, "");
        let reply = ask(&handle, path, &body);
        assert!(ends_with_error(&reply), "{}", reply.text());
        let begun = reply.text();
        let begun = &begun[..begun.rfind("data: {\"error\"").unwrap()];
        assert!(uncut(path, &body).starts_with(begun) && !begun.is_empty());
        assert_eq!(not_continued(&handle, "no-worker"), 1.0);
    }
}

#[test]
fn a_spent_budget_ends_it() {
    let engines = [Engine::start([900]), Engine::start([])];
    let mut config = keeping(&[&engines[0], &engines[1]]);
    config.retry.budget_percent = 0;
    let handle = router(config);
    assert!(ends_with_error(&ask(&handle, TEXT, &body(TEXT, ""))));
    assert_eq!(not_continued(&handle, "no-worker"), 1.0);
}

#[test]
fn what_is_not_eligible_passes_unchanged() {
    for (path, more) in [
        (CHAT, r#","n":2"#),
        (CHAT, r#","tools":[{"type":"function"}]"#),
        (CHAT, r#","logprobs":true"#),
        (CHAT, r#","return_token_ids":true"#),
        (TEXT, r#","stop":["x"]"#),
        (TEXT, r#","echo":true"#),
        (TEXT, r#","seed":1"#),
    ] {
        let engines = [Engine::start([900]), Engine::start([])];
        let handle = router(keeping(&[&engines[0], &engines[1]]));
        let body = body(path, more);
        assert!(ends_with_error(&ask(&handle, path, &body)), "{more}");
        assert_eq!(engines[0].worker.next().body, body.as_bytes());
        assert_eq!(not_continued(&handle, "request"), 1.0);
        assert_eq!(ask(&handle, path, &body).text(), uncut(path, &body));
    }
}

#[test]
fn other_engines_are_not_asked_for_ids() {
    let engines = [Engine::start([900]), Engine::start([])];
    let mut config = keeping(&[&engines[0], &engines[1]]);
    config.workers.iter_mut().for_each(|worker| worker.engine = Some(EngineKind::Openai));
    let handle = router(config);
    let body = body(CHAT, "");
    assert!(ends_with_error(&ask(&handle, CHAT, &body)));
    assert_eq!(engines[0].worker.next().body, body.as_bytes());
    assert_eq!(not_continued(&handle, "engine"), 1.0);
}

#[test]
fn without_the_key_nothing_changes() {
    let engines = [Engine::start([900]), Engine::start([])];
    let mut config = keeping(&[&engines[0], &engines[1]]);
    config.retry.mid_stream = false;
    let handle = router(config);
    let body = body(CHAT, "");
    assert!(ends_with_error(&ask(&handle, CHAT, &body)));
    assert_eq!(engines[0].worker.next().body, body.as_bytes());
    assert_eq!(metric(&handle, "forebay_streams_not_continued_total"), 0.0);
    assert!(engines[1].worker.seen.try_recv().is_err());
}

/// The rest waits for a place as any request does; no comment stands in the middle of the stream.
#[test]
fn the_rest_waits_in_the_queue() {
    let (open, opened) = channel::<()>();
    let opened = Mutex::new(opened);
    let worker = Worker::start(move |seen, stream| {
        if String::from_utf8_lossy(&seen.body).contains("busy") {
            let _ = opened.lock().unwrap().recv_timeout(PATIENCE);
        }
        write_cut(stream, &events(&seen.head, &seen.body), WHOLE)
    });
    let engines = [Engine { worker, cuts: Arc::default() }, Engine::start([900])];
    let mut config = keeping(&[&engines[0], &engines[1]]);
    config.flow.rank_concurrency_max = Some(1);
    config.flow.queue.wait_max = PATIENCE;
    config.flow.queue.sse_comments = true;
    let handle = router(config);
    let mut busy = Client::connect(handle.listen);
    busy.send(&post(TEXT, br#"{"model":"m","prompt":"busy","stream":true}"#));
    engines[0].worker.next();
    let body = body(CHAT, USAGE);
    let mut client = Client::connect(handle.listen);
    client.send(&post(CHAT, body.as_bytes()));
    until("the rest waits", || metric(&handle, "forebay_queue_depth") == 1.0);
    open.send(()).unwrap();
    assert_eq!(client.reply().text(), uncut(CHAT, &body));
    assert_eq!(continued(&handle), 1.0);
    assert!(busy.reply().complete);
}

#[test]
fn a_client_that_leaves_ends_the_rest() {
    let held = Worker::start(|_, stream| {
        let _ = std::io::Read::read(stream, &mut [0]);
        false
    });
    let engines = [Engine::start([900]), Engine { worker: held, cuts: Arc::default() }];
    let handle = router(keeping(&[&engines[0], &engines[1]]));
    let mut client = Client::connect(handle.listen);
    client.send(&post(CHAT, body(CHAT, "").as_bytes()));
    engines[1].worker.next();
    drop(client);
    until("it is counted", || metric(&handle, "forebay_client_gone_total") == 1.0);
    assert_eq!(metric(&handle, "forebay_in_flight{"), 0.0);
    assert_eq!(metric(&handle, "forebay_requests_total{"), 1.0);
}

/// HTTP/1.0 has no chunks: the end of the connection is the end of the stream.
#[test]
fn an_old_client_reads_to_the_end() {
    let engines = [Engine::start([900]), Engine::start([])];
    let handle = router(keeping(&[&engines[0], &engines[1]]));
    let body = body(TEXT, "");
    let request = post(TEXT, body.as_bytes());
    let request = String::from_utf8(request).unwrap().replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut client = Client::connect(handle.listen);
    client.send(request.as_bytes());
    assert_eq!(client.reply().text(), uncut(TEXT, &body));
}
