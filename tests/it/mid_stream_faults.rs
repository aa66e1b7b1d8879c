//! O7, `retry.mid_stream`: what workers may answer in the middle of a stream, first and last.

use crate::rig::token_engine::{
    CHAT, Engine, HEAD, Paced, TEXT, USAGE, WHOLE, ask, body, continued, ends_with_error, events,
    keeping, not_continued, uncut, write_cut,
};
use crate::rig::{Client, PATIENCE, Worker, admin_post, metric, post, router, until, usable};
use forebay::config::{EngineKind, Policy, QueueMode, WorkerRole};
use forebay::server::ServerHandle;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Three workers. Whichever is asked first breaks off in its answer, the next one answers like
/// this, and the last one lives. Checks of health are answered by all.
fn in_turn(
    second: impl Fn(&mut TcpStream) -> bool + Send + Sync + 'static,
) -> ([Engine; 3], Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let second = Arc::new(second);
    let engines = [(); 3].map(|()| {
        let asked = Arc::clone(&asked);
        let second = Arc::clone(&second);
        let worker = Worker::start(move |seen, stream| {
            if seen.head.starts_with("POST ") {
                let all = || events(&seen.head, &seen.body);
                return match asked.fetch_add(1, Ordering::SeqCst) {
                    0 => write_cut(stream, &all(), 900),
                    1 => second(stream),
                    _ => write_cut(stream, &all(), WHOLE),
                };
            }
            let body = r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + body).as_bytes()).is_ok()
        });
        Engine { worker, cuts: Arc::default() }
    });
    (engines, asked)
}

/// A worker that refuses the rest, or dies of it, is no end if attempts are left.
#[test]
fn the_rest_is_tried_again() {
    for answer in [
        "",
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    ] {
        let (engines, asked) = in_turn(move |stream| {
            !answer.is_empty() && stream.write_all(answer.as_bytes()).is_ok()
        });
        let mut config = keeping(&[&engines[0], &engines[1], &engines[2]]);
        config.retry.attempts_max = 3;
        let handle = router(config);
        let body = body(CHAT, "");
        assert_eq!(ask(&handle, CHAT, &body).text(), uncut(CHAT, &body), "{answer}");
        assert_eq!((continued(&handle), asked.load(Ordering::SeqCst)), (1.0, 3), "{answer}");
    }
}

/// A rank that takes the rest and stands still loses it, though its server answers the checks, and
/// whether it has sent the head of an answer or not.
#[test]
fn the_rest_leaves_a_rank_that_stands_still() {
    for head in ["", HEAD] {
        let (engines, asked) = in_turn(move |stream| {
            stream.write_all(head.as_bytes()).is_ok() && stream.read(&mut [0]).is_err()
        });
        let mut config = keeping(&[&engines[0], &engines[1], &engines[2]]);
        config.retry.attempts_max = 3;
        config.health.enabled = true;
        config.health.interval = Duration::from_millis(50);
        config.health.stall_timeout = Duration::from_millis(800);
        let handle = router(config);
        until("all are up", || usable(&handle) == 3);
        let body = body(TEXT, USAGE);
        let start = Instant::now();
        assert_eq!(ask(&handle, TEXT, &body).text(), uncut(TEXT, &body));
        assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
        assert_eq!((continued(&handle), asked.load(Ordering::SeqCst)), (1.0, 3), "{head}");
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
        if bad == EngineKind::Vllm {
            let seen = engines[1].worker.next();
            assert!(seen.head.starts_with(&format!("POST {CHAT} ")), "{}", seen.head);
            assert_eq!(reply.text(), uncut(CHAT, &body));
        } else {
            assert!(ends_with_error(&reply), "{}", reply.text());
            assert!(engines[1].worker.seen.try_recv().is_err());
        }
    }
}

/// Only an answer without a length can be changed.
#[test]
fn an_answer_with_a_length_is_no_rest() {
    let bad = Worker::start(move |seen, stream| {
        let body = events(&seen.head, &seen.body).concat();
        let length = format!("content-length: {}", body.len());
        let head = HEAD.replacen("transfer-encoding: chunked", &length, 1);
        stream.write_all((head + &body).as_bytes()).is_ok()
    });
    let engines = [Engine::start([900]), Engine { worker: bad, cuts: Arc::default() }];
    let handle = router(keeping(&[&engines[0], &engines[1]]));
    let reply = ask(&handle, CHAT, &body(CHAT, ""));
    assert!(ends_with_error(&reply), "{}", reply.text());
    assert!(!reply.text().contains("text_completion"));
    engines[1].worker.next();
    assert_eq!(not_continued(&handle, "no-worker"), 1.0);
}

/// Only vLLM says in ids what the router has to turn into events of the stream: no attempt goes to
/// another engine of the pool, whatever the policy would choose.
#[test]
fn the_rest_is_for_vllm_alone() {
    let policies = [Policy::RoundRobin, Policy::LeastLoaded, Policy::Random];
    for (policy, is_queued) in policies.into_iter().flat_map(|one| [(one, true), (one, false)]) {
        // Of no text yet, and in the middle: the request again, and the rest.
        for event_count in [1, 4] {
            let first = Paced::start();
            let last = Engine::start([]);
            let others = [(); 3].map(|()| Engine::start([]));
            let mut config = keeping(&[&first.engine, &others[0], &others[1], &others[2], &last]);
            let kinds = config.workers[1..4].iter_mut().map(|worker| &mut worker.engine);
            kinds.for_each(|kind| *kind = Some(EngineKind::Openai));
            config.policy = policy;
            config.flow.queue.mode = if is_queued { QueueMode::Pool } else { QueueMode::Off };
            let handle = router(config);
            (1..5).for_each(|number| tell(&handle, &format!("/workers/w{number}/drain")));
            let body = body(CHAT, "");
            let mut client = Client::connect(handle.listen);
            client.send(&post(CHAT, body.as_bytes()));
            first.write(event_count);
            client.until_seen(if event_count == 1 { b"assistant" } else { b"w2" });
            (1..5).for_each(|number| tell(&handle, &format!("/workers/w{number}/undrain")));
            until("all are up", || usable(&handle) == 5);
            first.cut();
            let reply = client.reply();
            assert_eq!(reply.text(), uncut(CHAT, &body), "{policy:?} {event_count}");
            let asked = others.iter().map(|other| other.worker.seen.try_iter().count());
            assert_eq!(asked.sum::<usize>(), 0, "{policy:?} {event_count}");
        }
    }
    // None is left: no attempt.
    let engines = [Engine::start([900]), Engine::start([])];
    let mut config = keeping(&[&engines[0], &engines[1]]);
    config.workers[1].engine = Some(EngineKind::Openai);
    let handle = router(config);
    let reply = ask(&handle, CHAT, &body(CHAT, ""));
    assert!(ends_with_error(&reply), "{}", reply.text());
    assert!(engines[1].worker.seen.try_recv().is_err());
    assert_eq!(not_continued(&handle, "no-worker"), 1.0);
}

fn tell(handle: &ServerHandle, path: &str) {
    let mut admin = Client::connect(handle.admin);
    admin.send(&admin_post(path, b""));
    assert_eq!(admin.reply().status, 200, "{path}");
}

/// A prefill worker has come up since the request was sent whole.
#[test]
fn the_rest_is_never_split() {
    let (open, opened) = channel::<()>();
    let cuts = Arc::new(Mutex::new(VecDeque::from([900])));
    let opened = Arc::new(Mutex::new(opened));
    let decode = || {
        let planned = Arc::clone(&cuts);
        let opened = Arc::clone(&opened);
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
    tell(&handle, "/workers/w0/drain");
    let body = body(CHAT, "");
    let mut client = Client::connect(handle.listen);
    client.send(&post(CHAT, body.as_bytes()));
    client.peek("w0");
    tell(&handle, "/workers/w0/undrain");
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

/// vLLM that is told to stop (SIGTERM) aborts its streams, and ends them properly.
#[test]
fn an_abort_is_a_cut() {
    const ABORT: &str = "data: {\"id\":\"chatcmpl-7\",\"object\":\"chat.completion.chunk\",\
        \"created\":170,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\
        \"logprobs\":null,\"finish_reason\":\"abort\",\"stop_reason\":null,\"token_ids\":[]}]}\n\n";
    let body = body(CHAT, USAGE);
    for event_count in [0, 1, 2, 6] {
        let stopping = || {
            let worker = Worker::start(move |seen, stream| {
                let all = events(&seen.head, &seen.body);
                let mut sent = all[..event_count].to_vec();
                sent.push(ABORT.to_owned());
                sent.extend_from_slice(&all[all.len() - 2..]);
                write_cut(stream, &sent, WHOLE)
            });
            Engine { worker, cuts: Arc::default() }
        };
        let engines = [stopping(), Engine::start([])];
        let handle = router(keeping(&[&engines[0], &engines[1]]));
        let reply = ask(&handle, CHAT, &body);
        assert!(reply.complete);
        assert_eq!(reply.text(), uncut(CHAT, &body), "{event_count}");
        assert_eq!(continued(&handle), 1.0);
        // Without another worker the client hears of it as without the key.
        let engine = stopping();
        let handle = router(keeping(&[&engine]));
        let reply = ask(&handle, CHAT, &body);
        assert!(reply.complete, "{}", reply.text());
        let text = reply.text();
        let end = ABORT.replace("\"token_ids\":[]", "\"token_ids\":null");
        let usage = &text[text.find(&end).expect("what it said") + end.len()..];
        assert_eq!(usage.matches("\"usage\":{").count(), usize::from(event_count > 0), "{usage}");
        assert!(usage.ends_with("data: [DONE]\n\n"), "{usage}");
        assert_eq!(not_continued(&handle, "no-worker"), 1.0);
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
