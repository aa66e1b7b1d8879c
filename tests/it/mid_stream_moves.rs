//! O7, `retry.mid_stream`: streams of a worker that its operator empties go on at other workers.

use crate::rig::token_engine::{
    CHAT, Engine, PROMPT, Paced, TEXT, USAGE, ask, body, continued, ends_with_error, events,
    keeping, not_continued, uncut,
};
use crate::rig::{
    Client, Gate, RouterProcess, admin, admin_post, metric, post, router, truth, until,
};
use forebay::config::{Config, ConfigSource, EngineKind, Flags, Reloader, TenantConfig};
use forebay::server::{ServerHandle, start_reloadable};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A stream of `w0` of which the client has `count` events.
fn begun(handle: &ServerHandle, paced: &Paced, path: &str, body: &str, count: usize) -> Client {
    let mut client = Client::connect(handle.listen);
    client.send(&post(path, body.as_bytes()));
    paced.write(count);
    let last = events(&format!("POST {path} "), body.as_bytes()).swap_remove(count - 1);
    client.until_seen(last.trim_end().as_bytes());
    client
}

fn order(handle: &ServerHandle, call: &str, body: &str) -> (u16, Value) {
    let mut client = Client::connect(handle.admin);
    let request = match call.split_once(' ') {
        Some((method, path)) => {
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
        }
        None => admin_post(call, body.as_bytes()),
    };
    client.send(&request);
    let reply = client.reply();
    // Shards hear of it as soon as they turn.
    for _ in 0..3 {
        assert_eq!(truth::get(handle.listen, "/version").status, 200);
    }
    (reply.status, serde_json::from_slice(&reply.body).unwrap())
}

const DRAIN: &str = "/workers/w0/drain";
const MOVE: &str = r#"{"move_streams":true}"#;

/// No attempt is left, nor any budget: a move is no failure.
fn moving(engines: &[&Engine]) -> Config {
    let mut config = keeping(engines);
    config.retry.attempts_max = 1;
    config.retry.budget_percent = 0;
    config
}

#[test]
fn streams_leave_a_worker_that_is_emptied() {
    for (path, more) in [(CHAT, ""), (CHAT, USAGE), (TEXT, ""), (TEXT, USAGE)] {
        for count in [1, 2, 5] {
            let paced = Paced::start();
            let other = Engine::start([]);
            let handle = router(moving(&[&paced.engine, &other]));
            let body = body(path, more);
            let mut client = begun(&handle, &paced, path, &body, count);
            let (status, shown) = order(&handle, DRAIN, MOVE);
            assert_eq!((status, &shown["draining"]), (200, &Value::Bool(true)));
            assert_eq!(shown["moves_streams"], true);
            paced.write(1);
            let reply = client.reply();
            assert!(reply.complete, "{}", reply.text());
            assert_eq!(reply.text(), uncut(path, &body), "{path} {more} {count}");
            assert_eq!(continued(&handle), 1.0);
            let rest: Value = serde_json::from_slice(&other.worker.next().body).unwrap();
            // A chat of which the client has the role alone may be sent again.
            let ids = rest["prompt"].as_array().map_or(0, Vec::len);
            let sent = count + 1 - usize::from(path == CHAT);
            assert_eq!(ids, PROMPT.len() + sent, "{path} {count}");
            assert_eq!(shown_of(&handle, "w0")["ranks"][0]["failures"], 0, "nobody is blamed");
            assert_eq!(metric(&handle, "forebay_retries_total"), 0.0);
            until("it is idle", || shown_of(&handle, "w0")["in_flight"] == 0);
        }
    }
}

fn shown_of(handle: &ServerHandle, name: &str) -> Value {
    serde_json::from_slice(&admin(handle, &format!("/workers/{name}")).body).unwrap()
}

/// A chat without text is sent again, as after a failure.
#[test]
fn a_chat_that_has_said_nothing_is_sent_again() {
    let paced = Paced::start();
    let other = Engine::start([]);
    let handle = router(moving(&[&paced.engine, &other]));
    let body = body(CHAT, USAGE);
    let mut client = Client::connect(handle.listen);
    client.send(&post(CHAT, body.as_bytes()));
    paced.engine.worker.next();
    assert_eq!(order(&handle, DRAIN, MOVE).0, 200);
    paced.write(1);
    assert_eq!(client.reply().text(), uncut(CHAT, &body));
    let seen = other.worker.next();
    assert!(seen.head.starts_with("POST /v1/chat/completions "), "{}", seen.head);
}

#[test]
fn a_drain_that_does_not_ask_leaves_streams_where_they_are() {
    let paced = Paced::start();
    let other = Engine::start([]);
    let handle = router(moving(&[&paced.engine, &other]));
    let body = body(CHAT, "");
    let mut client = begun(&handle, &paced, CHAT, &body, 3);
    for asked in ["", "{}", r#"{"move_streams":false}"#] {
        assert_eq!(order(&handle, DRAIN, asked).1["moves_streams"], false);
    }
    drop(paced);
    assert_eq!(client.reply().text(), uncut(CHAT, &body));
    assert_eq!(continued(&handle), 0.0);
    assert!(other.worker.seen.try_recv().is_err());
}

/// The next order counts: the stream of a worker that is back stays.
#[test]
fn an_order_is_called_off() {
    let paced = Paced::start();
    let other = Engine::start([]);
    let handle = router(moving(&[&paced.engine, &other]));
    let body = body(TEXT, "");
    let mut client = begun(&handle, &paced, TEXT, &body, 2);
    assert_eq!(order(&handle, DRAIN, MOVE).1["moves_streams"], true);
    assert_eq!(order(&handle, "/workers/w0/undrain", "").1["moves_streams"], false);
    until("shards have heard", || ask(&handle, TEXT, &body).text() == uncut(TEXT, &body));
    drop(paced);
    assert_eq!(client.reply().text(), uncut(TEXT, &body));
    assert_eq!(continued(&handle), 0.0);
}

/// Room first: a stream never leaves for a queue, nor for an engine that cannot go on with it.
#[test]
fn without_room_elsewhere_a_stream_stays() {
    let body = body(CHAT, USAGE);
    for is_other_engine in [true, false] {
        let paced = Paced::start();
        let other = Paced::start();
        let mut config = moving(&[&paced.engine, &other.engine]);
        config.flow.rank_concurrency_max = Some(1);
        config.flow.queue.wait_max = Duration::from_millis(1);
        if is_other_engine {
            config.workers[1].engine = Some(EngineKind::Openai);
        }
        let handle = router(config);
        let mut client = begun(&handle, &paced, CHAT, &body, 3);
        let mut second = Client::connect(handle.listen);
        second.send(&post(CHAT, body.as_bytes()));
        other.engine.worker.next();
        assert_eq!(order(&handle, DRAIN, MOVE).0, 200);
        for at in 3..6 {
            paced.write(1);
            let last = events(&format!("POST {CHAT} "), body.as_bytes()).swap_remove(at);
            client.until_seen(last.trim_end().as_bytes());
            assert_eq!(continued(&handle), 0.0, "it stays");
        }
        drop(other);
        assert_eq!(second.reply().text(), uncut(CHAT, &body));
        until("there is room", || shown_of(&handle, "w1")["in_flight"] == 0);
        std::thread::sleep(Duration::from_millis(60));
        paced.write(1);
        if is_other_engine {
            drop(paced);
        }
        assert_eq!(client.reply().text(), uncut(CHAT, &body));
        assert_eq!(continued(&handle), f64::from(!is_other_engine));
    }
}

/// The time of a removal is over: what can go on elsewhere does.
#[test]
fn streams_leave_a_worker_that_is_gone() {
    let paced = Paced::start();
    let other = Engine::start([]);
    let mut config = moving(&[&paced.engine, &other]);
    config.timeouts.drain = Duration::from_millis(200);
    let handle = router(config);
    let body = body(CHAT, USAGE);
    let mut client = begun(&handle, &paced, CHAT, &body, 3);
    assert_eq!(order(&handle, "DELETE /workers/w0", "").0, 202);
    paced.write(1);
    client.until_seen(b"w2");
    until("it is gone", || admin(&handle, "/workers/w0").status == 404);
    paced.write(1);
    assert_eq!(client.reply().text(), uncut(CHAT, &body));
    assert_eq!(continued(&handle), 1.0);
    let rest: Value = serde_json::from_slice(&other.worker.next().body).unwrap();
    assert!(rest["prompt"].as_array().unwrap().len() > PROMPT.len() + 3);
}

#[test]
fn without_the_key_no_stream_can_move() {
    let paced = Paced::start();
    let other = Engine::start([]);
    let mut config = moving(&[&paced.engine, &other]);
    config.retry.mid_stream = false;
    let handle = router(config);
    let (status, why) = order(&handle, DRAIN, MOVE);
    assert_eq!(status, 409);
    assert!(why["error"].as_str().unwrap().contains("`retry.mid_stream = true`"), "{why}");
    for fault in ["x", "3", r#"{"move_streams":1}"#, r#"{"move":true}"#] {
        let (status, why) = order(&handle, DRAIN, fault);
        assert_eq!(status, 400, "{fault}");
        assert!(why["error"].as_str().unwrap().contains(r#"{"move_streams": true}"#), "{why}");
    }
    assert_eq!(shown_of(&handle, "w0")["draining"], false, "no order was taken");
    assert_eq!(order(&handle, DRAIN, "").0, 200);
}

/// A worker that takes the rest and hangs has it no longer than any request: another one goes on.
/// Where none is left, the client hears how the stream broke off.
#[test]
fn a_rest_that_hangs_goes_on_once_more() {
    for (path, has_third) in [(CHAT, true), (TEXT, true), (TEXT, false)] {
        let paced = Paced::start();
        let hung = Gate::start();
        let whole = Engine::start([]);
        let silent = Engine { worker: hung.worker, cuts: Arc::default() };
        let mut config = moving(&[&paced.engine, &silent, &whole]);
        config.workers.truncate(if has_third { 3 } else { 2 });
        config.retry.attempts_max = 2;
        config.retry.budget_percent = 100;
        config.timeouts.first_byte = Duration::from_secs(1);
        let handle = router(config);
        let body = body(path, USAGE);
        let mut client = begun(&handle, &paced, path, &body, 3);
        order(&handle, "/workers/w2/drain", "");
        assert_eq!(order(&handle, DRAIN, MOVE).0, 200);
        paced.write(1);
        silent.worker.next();
        order(&handle, "/workers/w2/undrain", "");
        let reply = client.reply();
        if has_third {
            assert_eq!(reply.text(), uncut(path, &body), "{path}");
            assert_eq!(continued(&handle), 1.0);
            assert_eq!(metric(&handle, "forebay_cut_mid_stream_total"), 0.0);
        } else {
            assert!(ends_with_error(&reply), "{}", reply.text());
            assert_eq!(not_continued(&handle, "no-worker"), 1.0);
        }
    }
}

/// A client leaves while the rest of its stream waits: in a queue, for the head of an answer, or
/// for its first event. Its tenant pays for what has come.
#[test]
fn who_leaves_while_the_rest_waits_pays_for_what_has_come() {
    let mut prompts = Vec::new();
    for place in ["queue", "head", "event"] {
        let paced = Paced::start();
        let slow = Paced::start();
        let hung = Gate::start();
        let silent = Engine { worker: hung.worker, cuts: Arc::default() };
        let other = if place == "head" { &silent } else { &slow.engine };
        let mut config = moving(&[&paced.engine, other]);
        config.retry.attempts_max = 2;
        config.retry.budget_percent = 100;
        config.flow.rank_concurrency_max = Some(1);
        config.api_keys = Some("tests/data/api_keys/two.toml".into());
        let limits =
            TenantConfig { tokens_per_minute: 1_000, in_flight_max: 5, ..TenantConfig::default() };
        config.flow.tenants = vec![TenantConfig { name: "gold".into(), ..limits }];
        let handle = router(config);
        let body = body(TEXT, "");
        let ask = |key: &str| {
            let request = String::from_utf8(post(TEXT, body.as_bytes())).unwrap();
            let mut client = Client::connect(handle.listen);
            client.send(
                request.replacen("host:", &format!("x-api-key: {key}\r\nhost:"), 1).as_bytes(),
            );
            client
        };
        let mut client = ask("gold-key");
        paced.write(4);
        client.until_seen(b"w3");
        let busy = (place == "queue").then(|| ask("some-key"));
        if busy.is_some() {
            other.worker.next();
            paced.cut();
            until("the rest waits", || metric(&handle, "forebay_queue_depth") == 1.0);
        } else {
            assert_eq!(order(&handle, DRAIN, MOVE).0, 200);
            paced.write(1);
            other.worker.next();
        }
        drop(client);
        let told = |what: &str| metric(&handle, &format!("forebay_tenant_{what}"));
        let of = |kind: &str| {
            told(&format!("tokens_total{{tenant=\"gold\",model=\"*\",kind=\"{kind}\"}}"))
        };
        let sent = if busy.is_some() { 4.0 } else { 5.0 };
        until("it is counted", || of("output") > 0.0);
        assert_eq!(of("output"), sent, "{place}");
        prompts.push(of("prompt"));
        assert!((1.0..20.0).contains(&of("prompt")), "once: {place}, {prompts:?}");
        until("its place is back", || told("in_flight{tenant=\"gold\"}") == 0.0);
    }
    assert_eq!(prompts[0], prompts[1]);
    assert_eq!(prompts[0], prompts[2]);
}

/// With the key and without it.
#[test]
fn a_worker_that_is_not_there_is_not_found_first() {
    for mid_stream in [true, false] {
        let engine = Engine::start([]);
        let mut config = moving(&[&engine]);
        config.retry.mid_stream = mid_stream;
        let handle = router(config);
        for asked in ["", MOVE] {
            assert_eq!(
                order(&handle, "/workers/nobody/drain", asked).0,
                404,
                "{mid_stream} {asked}"
            );
        }
        assert_eq!(order(&handle, "/workers/nobody/drain", "x").0, 400, "a call that says nothing");
    }
}

/// What a file says of two workers, and of moving.
fn file(engines: [&Engine; 2]) -> String {
    let of = |(number, engine): (usize, &Engine)| {
        let url = engine.worker.url();
        format!(
            "[[worker]]\nurl = \"{url}\"\nname = \"w{number}\"\nengine = \"vllm\"\n\
             models = [\"m\"]\n"
        )
    };
    let workers: String = engines.into_iter().enumerate().map(of).collect();
    format!(
        "policy = \"round_robin\"\ncores = [0]\n[retry]\nmid_stream = true\n\
         [log]\nrequests = true\n[health]\nenabled = false\n{workers}"
    )
}

/// The order stands, and counts again once the key is back.
#[test]
fn no_stream_moves_while_a_reload_has_the_key_off() {
    let paced = Paced::start();
    let other = Engine::start([]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("forebay.toml");
    let addresses = "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n";
    let on = format!("{addresses}{}", file([&paced.engine, &other]));
    std::fs::write(&path, &on).unwrap();
    let source = ConfigSource { file: Some(path.clone()), flags: Flags::default() };
    let config = source.load().unwrap().usable().unwrap();
    let handle = start_reloadable(config.clone(), false, Reloader::new(source, config)).unwrap();
    let body = body(TEXT, "");
    let mut client = begun(&handle, &paced, TEXT, &body, 1);
    let reload = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let (status, done) = order(&handle, "/admin/reload", "");
        assert_eq!((status, &done["applied"]), (200, &json!(["retry.mid_stream"])), "{done}");
    };
    reload(&on.replace("mid_stream = true", "mid_stream = false"));
    assert_eq!(order(&handle, DRAIN, MOVE).0, 409);
    reload(&on);
    assert_eq!(order(&handle, DRAIN, MOVE).1["moves_streams"], true);
    reload(&on.replace("mid_stream = true", "mid_stream = false"));
    let shown = shown_of(&handle, "w0");
    assert_eq!((&shown["moves_streams"], &shown["draining"]), (&json!(false), &json!(true)));
    for at in 1..4 {
        paced.write(1);
        let last = events(&format!("POST {TEXT} "), body.as_bytes()).swap_remove(at);
        client.until_seen(last.trim_end().as_bytes());
    }
    assert_eq!(continued(&handle), 0.0, "it stays");
    reload(&on);
    assert_eq!(shown_of(&handle, "w0")["moves_streams"], true);
    paced.write(1);
    assert_eq!(client.reply().text(), uncut(TEXT, &body));
    assert_eq!(continued(&handle), 1.0);
}

/// One record for a stream whose first worker breaks off, and one for a stream that is whole.
#[test]
fn the_record_says_how_often_another_worker_went_on() {
    let broken = Engine::start([300]);
    let whole = Engine::start([]);
    let process = RouterProcess::configured(&file([&broken, &whole]));
    until("it is ready", || truth::get(process.admin, "/readyz").status == 200);
    let body = body(CHAT, "");
    for _ in 0..2 {
        let mut client = Client::connect(process.listen);
        client.send(&post(CHAT, body.as_bytes()));
        assert_eq!(client.reply().text(), uncut(CHAT, &body));
    }
    until("a stream was continued", || process.logged("continued=1") == 1);
    until("the other was not", || process.logged("continued=0") == 1);
}
