//! Requests that wait for a rank: in what order they get one, who is taken out, and that nobody is
//! forgotten.

use crate::rig::gate::prompt;
use crate::rig::stub::{Step, Stub, answer};
use crate::rig::stub_pages::Pages;
use crate::rig::{
    Client, Gate, Reply, Worker, admin, config, metric, port_for_later, post, router, until, usable,
};
use forebay::config::{Config, QueueMode, WorkerConfig};
use forebay::server::ServerHandle;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// One place on each worker, and long waits.
fn narrow(workers: &[&Worker], mode: QueueMode) -> Config {
    let mut config = config(workers);
    config.flow.rank_concurrency_max = Some(1);
    config.flow.queue.mode = mode;
    config.flow.queue.wait_max = Duration::from_secs(60);
    config.flow.queue.stale_after = Duration::from_secs(60);
    config
}

fn ask(address: SocketAddr, prompt: &str) -> Client {
    ask_with(address, prompt, "")
}

/// `fields`: further lines of the head.
fn ask_with(address: SocketAddr, prompt: &str, fields: &str) -> Client {
    let body = format!(r#"{{"model":"m","prompt":"{prompt}"}}"#);
    let request = String::from_utf8(post("/v1/completions", body.as_bytes())).unwrap();
    let request = request.replacen("host: router\r\n", &format!("host: router\r\n{fields}"), 1);
    let mut client = Client::connect(address);
    client.send(request.as_bytes());
    client
}

fn waiting(handle: &ServerHandle, count: usize) {
    until("so many wait", || metric(handle, "forebay_queue_depth") == count as f64);
}

fn ok(client: &mut Client) {
    let reply = client.reply();
    assert_eq!((reply.status, reply.complete), (200, true), "{}", reply.text());
}

fn reason(reply: &Reply) -> &str {
    reply.field("x-forebay-reason").unwrap_or("")
}

#[test]
fn an_image_in_a_body_takes_no_more_room_than_an_image() {
    let gate = Gate::start();
    let handle = router(narrow(&[&gate.worker], QueueMode::Pool));
    let url = format!("data:image/png;base64,{}", "iVBORw0KGgo".repeat(200_000));
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#
    );
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/chat/completions", body.as_bytes()));
    gate.holds(1);
    let tokens = metric(&handle, "forebay_rank_kv_tokens");
    assert!((1_000.0..3_000.0).contains(&tokens), "{tokens} tokens of {} bytes", body.len());
    gate.open();
    ok(&mut client);
}

#[test]
fn who_came_first_is_served_first_from_both_shards() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let gate = Gate::start();
        let mut config = narrow(&[&gate.worker], mode);
        config.cores = vec![0, 1];
        let handle = router(config);
        let mut clients = vec![ask(handle.listen, "0")];
        gate.holds(1);
        for number in 1..8 {
            clients.push(ask(handle.listen, &number.to_string()));
            waiting(&handle, number);
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(gate.prompt(), number.to_string(), "{mode:?}");
            gate.open();
            ok(client);
        }
        handle.stop();
        handle.join().unwrap();
    }
}

/// Review of the attack, S12: keys that anybody can make up took turns, and were of the first class
/// for the asking.
#[test]
fn made_up_keys_are_one_tenant_of_the_usual_class() {
    let gate = Gate::start();
    let handle = router(narrow(&[&gate.worker], QueueMode::Pool));
    let mut clients = vec![ask(handle.listen, "first")];
    gate.holds(1);
    let flood = "x-api-key: flood\r\n";
    let made_up = "x-api-key: made-up\r\nx-forebay-priority: 0\r\n";
    for (fields, count) in [flood, flood, flood, made_up, ""].into_iter().zip(1..) {
        clients.push(ask_with(handle.listen, &count.to_string(), fields));
        waiting(&handle, count);
    }
    let order: Vec<String> = (0..6)
        .map(|_| {
            gate.open();
            gate.prompt()
        })
        .collect();
    assert_eq!(order, ["first", "1", "2", "3", "4", "5"], "as they came");
    clients.iter_mut().for_each(ok);
}

#[test]
fn a_better_class_is_served_first() {
    let gate = Gate::start();
    let handle = router(narrow(&[&gate.worker], QueueMode::Pool));
    let mut clients = vec![ask(handle.listen, "first")];
    gate.holds(1);
    for (count, class) in [(1, "3"), (2, "1"), (3, "2")] {
        let field = format!("x-forebay-priority: {class}\r\n");
        clients.push(ask_with(handle.listen, class, &field));
        waiting(&handle, count);
    }
    let order: Vec<String> = (0..4)
        .map(|_| {
            gate.open();
            gate.prompt()
        })
        .collect();
    assert_eq!(order, ["first", "1", "2", "3"]);
    clients.iter_mut().for_each(ok);
}

#[test]
fn a_client_that_leaves_while_it_waits_costs_the_worker_nothing() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let gate = Gate::start();
        let handle = router(narrow(&[&gate.worker], mode));
        let mut first = ask(handle.listen, "first");
        gate.holds(1);
        let gone = ask(handle.listen, "gone");
        waiting(&handle, 1);
        let mut last = ask(handle.listen, "last");
        waiting(&handle, 2);
        drop(gone);
        waiting(&handle, 1);
        let worker = gate.open_for_good();
        ok(&mut first);
        ok(&mut last);
        assert_eq!([prompt(&worker), prompt(&worker)], ["first", "last"]);
        assert!(worker.seen.try_recv().is_err(), "nothing of the other one, {mode:?}");
        handle.stop();
        handle.join().unwrap();
    }
}

/// A router whose worker holds one request while four wait, told to stop.
fn stopped(gate: &Gate, mode: QueueMode, drain: Duration) -> (ServerHandle, Client, Vec<Client>) {
    let mut config = narrow(&[&gate.worker], mode);
    config.cores = vec![0, 1];
    config.timeouts.drain = drain;
    let handle = router(config);
    let first = ask(handle.listen, "first");
    gate.holds(1);
    let mut waiters = Vec::new();
    for number in 1..5 {
        waiters.push(ask(handle.listen, &number.to_string()));
        waiting(&handle, number);
    }
    handle.stop();
    (handle, first, waiters)
}

#[test]
fn whoever_still_waits_when_the_drain_ends_is_told_so() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let gate = Gate::start();
        let (handle, _first, mut waiters) = stopped(&gate, mode, Duration::from_secs(1));
        for waiter in &mut waiters {
            let reply = waiter.reply();
            assert_eq!((reply.status, reason(&reply)), (503, "draining"), "{mode:?}");
            assert!(reply.complete);
        }
        handle.join().unwrap();
    }
}

#[test]
fn a_drain_serves_who_waits() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let gate = Gate::start();
        let (handle, mut first, mut waiters) = stopped(&gate, mode, Duration::from_secs(60));
        let _worker = gate.open_for_good();
        ok(&mut first);
        waiters.iter_mut().for_each(ok);
        handle.join().unwrap();
    }
}

#[test]
fn who_waits_too_long_is_told_so() {
    let gate = Gate::start();
    let mut config = narrow(&[&gate.worker], QueueMode::Pool);
    config.flow.queue.wait_max = Duration::from_millis(300);
    let handle = router(config);
    let mut first = ask(handle.listen, "first");
    gate.holds(1);
    let mut second = ask(handle.listen, "second");
    let reply = second.reply();
    assert_eq!((reply.status, reason(&reply)), (429, "rejected-queue-wait"));
    let mut third = ask_with(handle.listen, "third", "x-forebay-timeout-ms: 100\r\n");
    let reply = third.reply();
    assert_eq!((reply.status, reason(&reply)), (408, "request-deadline"));
    assert_eq!(reply.field("x-should-retry"), Some("false"));
    gate.open();
    ok(&mut first);
    assert_eq!(gate.prompt(), "first");
    assert!(gate.worker.seen.try_recv().is_err(), "nothing of the others");
}

#[test]
fn a_full_queue_is_no_place_to_wait() {
    let gate = Gate::start();
    let mut config = narrow(&[&gate.worker], QueueMode::Pool);
    config.flow.queue.depth_max = 2;
    let handle = router(config);
    let mut first = ask(handle.listen, "first");
    gate.holds(1);
    let mut waiters = Vec::new();
    for number in 1..3 {
        waiters.push(ask(handle.listen, &number.to_string()));
        waiting(&handle, number);
    }
    let reply = ask(handle.listen, "no").reply();
    assert_eq!((reply.status, reason(&reply)), (429, "rejected-queue-full"));
    assert_eq!(reply.field("x-should-retry"), Some("true"));
    // From now on, for a while, nobody asks whether there is room.
    let reply = ask(handle.listen, "no").reply();
    assert_eq!((reply.status, reason(&reply)), (429, "rejected-window"));
    let windows = admin(&handle, "/admin/window").text();
    assert!(windows.contains("full: `queue.depth_max` = 2"), "{windows}");
    for _ in 0..3 {
        gate.open();
    }
    ok(&mut first);
    waiters.iter_mut().for_each(ok);
    until("there is room again", || ask_and_open(&handle, &gate) == 200);
}

#[test]
fn a_body_that_no_queue_holds_keeps_nobody_else_away() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let gate = Gate::start();
        let mut config = narrow(&[&gate.worker], mode);
        config.flow.queue.bytes_max = 64 << 10;
        config.flow.rejection_window = Duration::from_secs(60);
        let handle = router(config);
        let mut first = ask(handle.listen, "first");
        gate.holds(1);
        let reply = ask(handle.listen, &"x".repeat(80_000)).reply();
        assert_eq!((reply.status, reason(&reply)), (429, "rejected-queue-full"), "{mode:?}");
        let mut next = ask(handle.listen, "next");
        waiting(&handle, 1);
        gate.open();
        gate.open();
        ok(&mut first);
        ok(&mut next);
        handle.stop();
        handle.join().unwrap();
    }
}

fn ask_and_open(handle: &ServerHandle, gate: &Gate) -> u16 {
    let mut client = ask(handle.listen, "again");
    gate.open();
    client.reply().status
}

#[test]
fn a_waiter_takes_whichever_place_is_free_first() {
    let one = Gate::start();
    let two = Gate::start();
    let handle = router(narrow(&[&one.worker, &two.worker], QueueMode::Pool));
    let mut busy = [ask(handle.listen, "a"), ask(handle.listen, "b")];
    one.holds(1);
    two.holds(1);
    let mut waiter = ask(handle.listen, "c");
    waiting(&handle, 1);
    two.open();
    two.open();
    ok(&mut waiter);
    assert_ne!(two.prompt(), "c");
    assert_eq!(two.prompt(), "c");
    one.open();
    busy.iter_mut().for_each(ok);
}

#[test]
fn who_waits_for_one_rank_too_long_finds_another() {
    let stuck = Gate::start();
    let free = Gate::start();
    let mut config = narrow(&[&stuck.worker, &free.worker], QueueMode::Endpoint);
    config.flow.queue.stale_after = Duration::from_millis(200);
    let handle = router(config);
    let mut busy = [ask(handle.listen, "a"), ask(handle.listen, "b")];
    stuck.holds(1);
    free.holds(1);
    // By turns: one of them waits for the rank that never gets free.
    let mut waiters = Vec::new();
    for number in 1..5 {
        waiters.push(ask(handle.listen, &number.to_string()));
        waiting(&handle, number);
    }
    for _ in 0..5 {
        free.open();
    }
    waiters.iter_mut().for_each(ok);
    stuck.open();
    busy.iter_mut().for_each(ok);
    stuck.prompt();
    assert!(stuck.worker.seen.try_recv().is_err(), "its first request was its only one");
}

/// What a client takes to send its body is no wait, and gives it no place.
#[test]
fn a_wait_begins_when_the_request_has_come() {
    let wait_max = Duration::from_millis(900);
    let gate = Gate::start();
    let mut config = narrow(&[&gate.worker], QueueMode::Pool);
    config.flow.queue.wait_max = wait_max;
    let handle = router(config);
    let mut first = ask(handle.listen, "first");
    gate.holds(1);
    let request = post("/v1/completions", br#"{"model":"m","prompt":"slow"}"#);
    let (most, last) = request.split_at(request.len() - 1);
    let mut slow = Client::connect(handle.listen);
    slow.send(most);
    std::thread::sleep(wait_max + Duration::from_millis(100));
    let mut quick = ask(handle.listen, "quick");
    waiting(&handle, 1);
    slow.send(last);
    waiting(&handle, 2);
    (0..3).for_each(|_| gate.open());
    for client in [&mut first, &mut quick, &mut slow] {
        ok(client);
    }
    assert_eq!([gate.prompt(), gate.prompt(), gate.prompt()], ["first", "quick", "slow"]);
}

/// The request joined before its shard had heard of the rank that it gets.
#[test]
fn who_waits_is_served_by_a_worker_that_comes_later() {
    let busy = Stub::start(Pages::vllm());
    let place = port_for_later();
    busy.always([vec![Step::Word], answer(b"{}")].concat());
    let mut config = narrow(&[], QueueMode::Pool);
    config.cores = vec![0, 1];
    let urls = [busy.url(), format!("http://{place}")];
    config.workers = urls.map(|url| WorkerConfig { url, ..WorkerConfig::default() }).into();
    config.health.enabled = true;
    config.health.interval = Duration::from_millis(100);
    let handle = router(config);
    until("the first worker is up", || usable(&handle) == 1);
    let mut first = ask(handle.listen, "first");
    busy.arrival(0);
    let mut waiters: Vec<_> =
        (0..6).map(|number| ask(handle.listen, &number.to_string())).collect();
    waiting(&handle, 6);
    let late = Stub::listening(TcpListener::bind(place).unwrap(), Pages::vllm());
    waiters.iter_mut().for_each(ok);
    assert_eq!((late.arrivals().len(), late.in_flight_peak()), (6, 1));
    busy.let_go();
    ok(&mut first);
}
