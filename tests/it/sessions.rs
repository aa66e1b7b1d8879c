//! O8: requests of one session go to one rank, at every router alike.

use crate::rig::{Client, Gate, Worker, admin_post, config, metric, post, router, until};
use forebay::config::{Policy, QueueMode};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const SESSIONS: usize = 10_000;

/// A router on two shards in front of these workers, in this order.
fn session_router(workers: &[&Worker]) -> ServerHandle {
    let mut config = config(workers);
    config.policy = Policy::Session;
    config.cores = vec![0, 0];
    let count = f64::from(u32::try_from(workers.len()).unwrap());
    let router = router(config);
    until("all are up", || (metric(&router, "forebay_worker_up") - count).abs() < 0.5);
    router
}

fn completion(fields: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: r\r\n{fields}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn prompt() -> Value {
    json!({"model": "m", "prompt": "hi"})
}

fn worker_of(client: &mut Client, request: &[u8]) -> String {
    client.send(request);
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.field("x-forebay-worker").expect("named").to_owned()
}

/// Where each of the sessions goes.
fn anchors(router: &ServerHandle) -> Vec<String> {
    let mut client = Client::connect(router.listen);
    let field = |session| format!("X-Session-ID: user-{session}\r\n");
    (0..SESSIONS)
        .map(|session| worker_of(&mut client, &completion(&field(session), &prompt())))
        .collect()
}

#[test]
fn two_routers_send_ten_thousand_sessions_to_the_same_ranks() {
    let workers = [(); 4].map(|()| Worker::json("{}"));
    let [a, b, c, d] = &workers;
    let one = session_router(&[a, b, c, d]);
    let other = session_router(&[d, b, a, c]);
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| anchors(&other));
        (anchors(&one), theirs.join().unwrap())
    });
    assert!(ours == theirs, "each router has a mind of its own");
    let mut counts = BTreeMap::<&str, usize>::new();
    for anchor in &ours {
        *counts.entry(anchor).or_default() += 1;
    }
    assert!(counts.values().all(|count| (2_200..2_800).contains(count)), "{counts:?}");
    let kept = metric(&one, "forebay_decisions_total{reason=\"session_kept\"}");
    assert!((kept - 10_000.0).abs() < 0.5, "{kept}");
}

#[test]
fn a_session_is_named_by_a_field_or_by_the_body() {
    let workers = [(); 8].map(|()| Worker::json("{}"));
    let router = session_router(&workers.each_ref());
    let mut client = Client::connect(router.listen);
    for name in ["ann", "bob", "eve"] {
        let mut body = prompt();
        body["prompt_cache_key"] = name.into();
        let by_body = worker_of(&mut client, &completion("", &body));
        for field in ["x-session-id", "x-smg-routing-key", "x-dynamo-session-id"] {
            let fields = format!("{field}: {name}\r\n");
            assert_eq!(worker_of(&mut client, &completion(&fields, &prompt())), by_body);
        }
        body = prompt();
        body["session_id"] = name.into();
        assert_eq!(worker_of(&mut client, &completion("", &body)), by_body);
    }
}

#[test]
fn a_draining_anchor_moves_its_own_sessions_alone() {
    let workers = [(); 4].map(|()| Worker::json("{}"));
    let router = session_router(&workers.each_ref());
    let mut client = Client::connect(router.listen);
    let mut of_all = || {
        (0..200)
            .map(|session| {
                let fields = format!("x-session-id: {session}\r\n");
                worker_of(&mut client, &completion(&fields, &prompt()))
            })
            .collect::<Vec<_>>()
    };
    let before = of_all();
    let gone = workers[1].address.to_string();
    let mut admin = Client::connect(router.admin);
    admin.send(&admin_post(&format!("/workers/{gone}/drain"), b""));
    assert_eq!(admin.reply().status, 200);
    let after = of_all();
    let mut moved = 0;
    for (before, after) in before.iter().zip(&after) {
        assert_ne!(*after, gone);
        match *before == gone {
            true => moved += 1,
            false => assert_eq!(after, before),
        }
    }
    assert!(moved > 20, "{moved}");
}

#[test]
fn a_session_moves_where_the_wait_costs_more_than_its_prompt_elsewhere() {
    let gates = [Gate::start(), Gate::start()];
    let mut config = config(&[&gates[0].worker, &gates[1].worker]);
    config.policy = Policy::Session;
    config.flow.queue.mode = QueueMode::Off;
    let router = router(config);
    until("both are up", || (metric(&router, "forebay_worker_up") - 2.0).abs() < 0.5);
    let mut open = Vec::new();
    let mut ask = |words: usize| {
        let mut client = Client::connect(router.listen);
        let body = json!({"model": "m", "prompt": "word ".repeat(words)});
        client.send(&completion("x-session-id: one\r\n", &body));
        open.push(client);
    };
    let reasons = || {
        ["session_kept", "session_moved"].map(|reason| {
            metric(&router, &format!("forebay_decisions_total{{reason=\"{reason}\"}}"))
        })
    };
    // None of these is answered: each is work ahead of the next.
    ask(4_000);
    until("the first is kept", || reasons() == [1.0, 0.0]);
    // Computing so little elsewhere costs less than the wait.
    ask(40);
    until("the short one is moved", || reasons() == [1.0, 1.0]);
    // A long prompt is worth the wait.
    ask(40_000);
    until("the long one is kept", || reasons() == [2.0, 1.0]);
}

#[test]
fn without_a_session_the_load_decides() {
    let workers = [Worker::json("{}"), Worker::json("{}")];
    let router = session_router(&workers.each_ref());
    let mut client = Client::connect(router.listen);
    let mut counts = BTreeMap::<String, usize>::new();
    for _ in 0..100 {
        *counts
            .entry(worker_of(&mut client, &post("/v1/completions", br#"{"prompt":"hi"}"#)))
            .or_default() += 1;
    }
    assert!(counts.len() == 2 && counts.values().all(|&count| count > 20), "{counts:?}");
}
