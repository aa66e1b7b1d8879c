//! O7: a stream that loses its worker goes on at another one, with `retry.mid_stream`.

use crate::rig::{
    Client, PATIENCE, Reply, Worker, admin_post, config, metric, post, router, until, usable,
};
use forebay::config::{Config, EngineKind, WorkerRole};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// A vLLM whose answer is the same words whatever the prompt; so many, then it stops by itself.
struct Engine {
    worker: Worker,
    /// For the next requests: after so many bytes of the body the connection is reset.
    cuts: Arc<Mutex<VecDeque<usize>>>,
}

const WHOLE: usize = usize::MAX;
const WORDS: usize = 12;
const PROMPT: [u64; 3] = [11, 12, 13];
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
    transfer-encoding: chunked\r\n\r\n";

impl Engine {
    fn start(cuts: impl IntoIterator<Item = usize>) -> Self {
        Self::sharing(&Arc::new(Mutex::new(cuts.into_iter().collect())))
    }

    fn sharing(cuts: &Arc<Mutex<VecDeque<usize>>>) -> Self {
        let cuts = Arc::clone(cuts);
        let planned = Arc::clone(&cuts);
        let worker = Worker::start(move |seen, stream| {
            let cut = planned.lock().unwrap().pop_front().unwrap_or(WHOLE);
            write_cut(stream, &events(&seen.head, &seen.body), cut)
        });
        Self { worker, cuts }
    }
}

/// Writes one event after the other, each as a chunk; false if the answer broke off.
fn write_cut(stream: &mut TcpStream, events: &[String], cut: usize) -> bool {
    if stream.write_all(HEAD.as_bytes()).is_err() {
        return false;
    }
    let mut left = cut;
    for event in events {
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        let part = chunk.len().min(left);
        if stream.write_all(&chunk.as_bytes()[..part]).is_err() || part < chunk.len() {
            return false;
        }
        left -= part;
    }
    left >= 5 && stream.write_all(b"0\r\n\r\n").is_ok()
}

/// As vLLM 0.32 writes them.
fn events(head: &str, body: &[u8]) -> Vec<String> {
    let body: Value = serde_json::from_slice(body).unwrap();
    let (is_chat, has_ids) = (head.contains("/v1/chat/"), body["return_token_ids"] == true);
    let prompt = match body["prompt"].as_array() {
        Some(ids) => ids.iter().map(|id| id.as_u64().unwrap()).collect(),
        None => PROMPT.to_vec(),
    };
    let max = usize::try_from(body["max_tokens"].as_u64().unwrap_or(16)).unwrap();
    let from = prompt.len() - PROMPT.len();
    let (until, finish) = if from + max < WORDS { (from + max, "length") } else { (WORDS, "stop") };
    let shown = |ids: Value| if has_ids { ids } else { Value::Null };
    let (name, object) = match is_chat {
        true => ("chatcmpl-7", "chat.completion.chunk"),
        false => ("cmpl-7", "text_completion"),
    };
    let event = |choices: Value, more: Value| {
        let mut event = json!({
            "id": name, "object": object, "created": 170 + from, "model": "m", "choices": choices,
        });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("data: {event}\n\n")
    };
    let mut out = Vec::new();
    if is_chat {
        let delta = json!({ "role": "assistant", "content": "" });
        let role = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null });
        let more = json!({ "prompt_token_ids": shown(json!(prompt)), "prompt_text": null });
        out.push(event(json!([role]), more));
    }
    for at in from..until {
        let (is_last, text) = (at + 1 == until, format!(" \"w{at}\u{e9}"));
        let mut choice = match is_chat {
            true => json!({ "index": 0, "delta": { "content": text } }),
            false => json!({ "index": 0, "text": text }),
        };
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = if is_last { finish.into() } else { Value::Null };
        if is_last || !is_chat {
            choice["stop_reason"] = Value::Null;
        }
        if !is_chat {
            let is_first = at == from;
            choice["prompt_token_ids"] = if is_first { shown(json!(prompt)) } else { Value::Null };
        }
        choice["token_ids"] = shown(json!([100 + at]));
        out.push(event(json!([choice]), json!({})));
    }
    if body["stream_options"]["include_usage"] == true {
        let (prompt, output) = (prompt.len(), until - from);
        let usage = json!({
            "prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output,
        });
        out.push(event(json!([]), json!({ "usage": usage })));
    }
    out.push("data: [DONE]\n\n".into());
    out
}

fn keeping(engines: &[&Engine]) -> Config {
    let workers: Vec<_> = engines.iter().map(|engine| &engine.worker).collect();
    let mut config = config(&workers);
    for (number, worker) in config.workers.iter_mut().enumerate() {
        worker.engine = Some(EngineKind::Vllm);
        worker.name = Some(format!("w{number}"));
    }
    config.retry.mid_stream = true;
    config
}

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn body(path: &str, more: &str) -> String {
    let prompt = match path {
        CHAT => r#""messages":[{"role":"user","content":"hi"}]"#,
        _ => r#""prompt":"hi""#,
    };
    format!(r#"{{"model":"m",{prompt},"stream":true,"max_tokens":20{more}}}"#)
}

const USAGE: &str = r#","stream_options":{"include_usage":true}"#;

fn ask(handle: &ServerHandle, path: &str, body: &str) -> Reply {
    let mut client = Client::connect(handle.listen);
    client.send(&post(path, body.as_bytes()));
    client.reply()
}

/// What the client would see of an engine that lives, without the key.
fn uncut(path: &str, body: &str) -> String {
    events(&format!("POST {path} "), body.as_bytes()).concat()
}

fn continued(handle: &ServerHandle) -> f64 {
    metric(handle, "forebay_streams_continued_total")
}

fn not_continued(handle: &ServerHandle, reason: &str) -> f64 {
    metric(handle, &format!("forebay_streams_not_continued_total{{reason=\"{reason}\"}}"))
}

fn ends_with_error(reply: &Reply) -> bool {
    let end = "data: {\"error\":{\"message\":\"The worker failed in the middle of the answer: ";
    let text = reply.text();
    !reply.complete && text.rsplit("\n\n").nth(1).unwrap_or_default().starts_with(end)
}

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
        let bad = Engine { worker: bad, cuts: Arc::default() };
        let engines = [Engine::start([900]), Engine::start([])];
        let mut config = keeping(&[&engines[0], &bad, &engines[1]]);
        config.retry.attempts_max = 3;
        if is_other_engine {
            config.workers[1].engine = Some(EngineKind::Openai);
        }
        let handle = router(config);
        let body = body(CHAT, "");
        assert_eq!(ask(&handle, CHAT, &body).text(), uncut(CHAT, &body), "{is_other_engine}");
        assert_eq!(continued(&handle), 1.0);
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
    config.flow.queue.wait_max = Some(PATIENCE);
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
