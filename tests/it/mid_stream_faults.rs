//! O7, `retry.mid_stream`: what workers may answer in the middle of a stream, first and last.

use crate::rig::token_engine::{
    CHAT, Engine, HEAD, USAGE, WHOLE, ask, body, continued, ends_with_error, events, keeping,
    not_continued, uncut, write_cut,
};
use crate::rig::{Client, PATIENCE, Worker, admin_post, metric, post, router, until, usable};
use forebay::config::{EngineKind, WorkerRole};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// A worker that refuses the rest, or dies of it, is no end if attempts are left.
#[test]
fn the_rest_is_tried_again() {
    for answer in [
        "",
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    ] {
        let engines = [Engine::start([900]), Engine::start([])];
        let bad = Engine {
            worker: Worker::start(move |_, stream| {
                !answer.is_empty() && stream.write_all(answer.as_bytes()).is_ok()
            }),
            cuts: Arc::default(),
        };
        let mut config = keeping(&[&engines[0], &bad, &engines[1]]);
        config.retry.attempts_max = 3;
        let handle = router(config);
        let body = body(CHAT, "");
        assert_eq!(ask(&handle, CHAT, &body).text(), uncut(CHAT, &body), "{answer}");
        assert_eq!(continued(&handle), 1.0);
    }
}

/// Its first tokens may be those of a parser, so the next worker gets the chat itself.
#[test]
fn a_chat_without_text_is_sent_again() {
    let body = body(CHAT, USAGE);
    for bad in [EngineKind::Vllm, EngineKind::Openai] {
        let engines = [Engine::start([300]), Engine::start([])];
        let mut config = keeping(&[&engines[0], &engines[1]]);
        config.workers[1].engine = Some(bad);
        let handle = router(config);
        let reply = ask(&handle, CHAT, &body);
        let seen = engines[1].worker.next();
        assert!(seen.head.starts_with(&format!("POST {CHAT} ")), "{}", seen.head);
        match bad {
            EngineKind::Vllm => assert_eq!(reply.text(), uncut(CHAT, &body)),
            _ => assert!(ends_with_error(&reply), "{}", reply.text()),
        }
    }
}

/// Only vLLM says in ids what the router has to turn into events of the stream, and only an answer
/// without a length can be changed.
#[test]
fn the_rest_is_for_vllm_alone() {
    for is_other_engine in [true, false] {
        let bad = Worker::start(move |seen, stream| {
            let body = events(&seen.head, &seen.body).concat();
            let mut head = HEAD.to_owned();
            if !is_other_engine {
                let length = format!("content-length: {}", body.len());
                head = head.replacen("transfer-encoding: chunked", &length, 1);
                return stream.write_all((head + &body).as_bytes()).is_ok();
            }
            write_cut(stream, &[body], WHOLE)
        });
        let engines = [Engine::start([900]), Engine { worker: bad, cuts: Arc::default() }];
        let mut config = keeping(&[&engines[0], &engines[1]]);
        if is_other_engine {
            config.workers[1].engine = Some(EngineKind::Openai);
        }
        let handle = router(config);
        let reply = ask(&handle, CHAT, &body(CHAT, ""));
        assert!(ends_with_error(&reply), "{is_other_engine}: {}", reply.text());
        assert!(!reply.text().contains("text_completion"));
        engines[1].worker.next();
        assert_eq!(not_continued(&handle, "no-worker"), 1.0);
    }
}

/// A prefill worker has come up since the request was sent whole.
#[test]
fn the_rest_is_never_split() {
    let (open, opened) = channel::<()>();
    let (cuts, opened) =
        (Arc::new(Mutex::new(VecDeque::from([900]))), Arc::new(Mutex::new(opened)));
    let decode = || {
        let (planned, opened) = (Arc::clone(&cuts), Arc::clone(&opened));
        let worker = Worker::start(move |seen, stream| {
            let cut = planned.lock().unwrap().pop_front().unwrap_or(WHOLE);
            let is_whole = write_cut(stream, &events(&seen.head, &seen.body), cut);
            if !is_whole {
                let _ = opened.lock().unwrap().recv_timeout(PATIENCE);
            }
            is_whole
        });
        Engine { worker, cuts: Arc::default() }
    };
    let engines = [Engine::start([]), decode(), decode()];
    let mut config = keeping(&[&engines[0], &engines[1], &engines[2]]);
    let roles = [WorkerRole::Prefill, WorkerRole::Decode, WorkerRole::Decode];
    for (worker, role) in config.workers.iter_mut().zip(roles) {
        worker.role = role;
    }
    let handle = router(config);
    let tell = |path: &str| {
        let mut admin = Client::connect(handle.admin);
        admin.send(&admin_post(path, b""));
        assert_eq!(admin.reply().status, 200, "{path}");
    };
    tell("/workers/w0/drain");
    let body = body(CHAT, "");
    let mut client = Client::connect(handle.listen);
    client.send(&post(CHAT, body.as_bytes()));
    client.peek("w0");
    tell("/workers/w0/undrain");
    until("it is up", || usable(&handle) == 3);
    open.send(()).unwrap();
    assert_eq!(client.reply().text(), uncut(CHAT, &body));
    assert_eq!(continued(&handle), 1.0);
    assert!(engines[0].worker.seen.try_recv().is_err(), "no prefill");
}

/// The engine process dies, and vLLM's server says so in the stream.
#[test]
fn a_failure_in_an_event_is_a_cut() {
    const SAID: &str = "data: {\"error\":{\"message\":\"dead\",\"type\":\"InternalServerError\",\
        \"param\":null,\"code\":500}}\n\n";
    for events_left in [3, 7, 99] {
        let dying = Worker::start(move |seen, stream| {
            let mut all = events(&seen.head, &seen.body);
            all.truncate(all.len().saturating_sub(events_left));
            all.extend([SAID.to_owned(), "data: [DONE]\n\n".to_owned()]);
            write_cut(stream, &all, WHOLE)
        });
        let engines = [Engine { worker: dying, cuts: Arc::default() }, Engine::start([])];
        let body = body(CHAT, USAGE);
        let handle = router(keeping(&[&engines[0], &engines[1]]));
        let reply = ask(&handle, CHAT, &body);
        assert!(reply.complete);
        assert_eq!(reply.text(), uncut(CHAT, &body), "{events_left}");
        assert_eq!(continued(&handle), 1.0);
        // Where it does not go on, the client hears what the engine has said.
        for (attempts_max, more) in [(1, ""), (2, ""), (2, r#","tools":[{}]"#)] {
            let mut config = keeping(&[&engines[0]]);
            config.retry.attempts_max = attempts_max;
            let handle = router(config);
            let body = body.replacen(USAGE, &format!("{USAGE}{more}"), 1);
            let mut client = Client::connect(handle.listen);
            for _ in 0..2 {
                client.send(&post(CHAT, body.as_bytes()));
                let reply = client.reply();
                assert!(reply.complete, "{}", reply.text());
                assert!(reply.text().ends_with(&format!("{SAID}data: [DONE]\n\n")), "{more}");
            }
            assert_eq!(metric(&handle, "forebay_cut_mid_stream_total"), 0.0);
        }
    }
}

/// An answer that ends as HTTP wants it, and not as a stream does, is cut too.
#[test]
fn a_proper_end_in_the_middle_is_a_cut() {
    for is_chunked in [true, false] {
        for events_left in [2, 7] {
            let short = Worker::start(move |seen, stream| {
                let mut all = events(&seen.head, &seen.body);
                all.truncate(all.len() - events_left);
                if is_chunked {
                    return write_cut(stream, &all, WHOLE);
                }
                let head = HEAD.replacen("transfer-encoding: chunked\r\n", "", 1);
                let _ = stream.write_all((head + &all.concat()).as_bytes());
                false
            });
            let engines = [Engine { worker: short, cuts: Arc::default() }, Engine::start([])];
            let handle = router(keeping(&[&engines[0], &engines[1]]));
            let body = body(CHAT, "");
            let reply = ask(&handle, CHAT, &body);
            assert!(reply.complete);
            assert_eq!(reply.text(), uncut(CHAT, &body), "{is_chunked} {events_left}");
            assert_eq!(continued(&handle), 1.0);
        }
    }
}
