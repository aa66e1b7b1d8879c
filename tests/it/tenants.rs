//! A greedy tenant beside another tenant, with the defaults: neither has a `[[tenant]]` or a limit.
//! One place serves both.

use crate::rig::{Client, Gate, config, metric, post, router, until};
use forebay::config::{Config, QueueMode};
use forebay::server::ServerHandle;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

const GREEDY: &str = "gold-key";
const OTHER: &str = "some-key";

/// One place behind two keys of two tenants.
fn shared(gate: &Gate, change: impl FnOnce(&mut Config)) -> ServerHandle {
    let api_keys = Some(PathBuf::from("tests/data/api_keys/two.toml"));
    let mut config = Config { api_keys, cores: vec![0], ..config(&[&gate.worker]) };
    config.flow.rank_concurrency_max = Some(1);
    change(&mut config);
    router(config)
}

fn ask(address: SocketAddr, key: &str, is_streamed: bool) -> Client {
    let body = format!(r#"{{"model":"m","prompt":"{key}","stream":{is_streamed}}}"#);
    let request = String::from_utf8(post("/v1/completions", body.as_bytes())).unwrap();
    let fields = format!("authorization: Bearer {key}\r\nhost:");
    let mut client = Client::connect(address);
    client.send(request.replacen("host:", &fields, 1).as_bytes());
    client
}

/// One request that runs, and a backlog of the greedy tenant.
fn backlog(handle: &ServerHandle, gate: &Gate, count: usize, is_streamed: bool) -> Vec<Client> {
    let mut all = vec![ask(handle.listen, GREEDY, is_streamed)];
    gate.holds(1);
    assert_eq!(gate.prompt(), GREEDY);
    all.extend((0..count).map(|_| ask(handle.listen, GREEDY, is_streamed)));
    waiting(handle, count);
    all
}

fn waiting(handle: &ServerHandle, count: usize) {
    until("so many wait", || metric(handle, "forebay_queue_depth") == count as f64);
}

fn refused(mut client: Client) -> Option<String> {
    let reply = client.reply();
    assert_eq!(reply.status, 429);
    reply.field("x-forebay-reason").map(str::to_owned)
}

/// The other tenant's request runs after at most two answers to the greedy one.
fn is_served_soon(gate: &Gate, mut other: Client) {
    let mut answers = 0;
    loop {
        gate.open();
        answers += 1;
        if gate.prompt() == OTHER {
            break;
        }
    }
    assert!(answers <= 2, "after {answers} answers");
    gate.open();
    assert_eq!(other.reply().status, 200);
    assert_eq!(gate.prompt(), GREEDY, "the backlog goes on");
}

/// Issue 35: all that wait longer than `queue.promote_after` rose to the first class, and each
/// request of another tenant waited as long.
#[test]
fn a_backlog_that_has_risen_costs_another_tenant_a_turn() {
    for (is_streamed, mode) in
        [(false, QueueMode::Pool), (true, QueueMode::Pool), (false, QueueMode::Endpoint)]
    {
        let gate = Gate::start();
        let handle = shared(&gate, |config| {
            config.flow.queue.mode = mode;
            config.flow.queue.promote_after = Duration::from_millis(50);
        });
        let _backlog = backlog(&handle, &gate, 40, is_streamed);
        sleep(Duration::from_millis(60));
        for _ in 0..3 {
            let before = metric(&handle, "forebay_queue_depth");
            let other = ask(handle.listen, OTHER, is_streamed);
            until("it waits", || metric(&handle, "forebay_queue_depth") > before);
            is_served_soon(&gate, other);
        }
    }
}

/// Issue 35: a queue full of one tenant's requests, and the window that this opened, shut all other
/// tenants out.
#[test]
fn a_queue_that_a_tenant_has_filled_is_closed_to_that_tenant() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let gate = Gate::start();
        let handle = shared(&gate, |config| {
            config.flow.queue.mode = mode;
            config.flow.queue.depth_max = 8;
            config.flow.rejection_window = Duration::from_secs(60);
        });
        let _backlog = backlog(&handle, &gate, 8, false);
        let greedy = || refused(ask(handle.listen, GREEDY, false));
        assert_eq!(greedy().as_deref(), Some("rejected-queue-full"));
        assert_eq!(greedy().as_deref(), Some("rejected-window"));
        // Half of the queue is the other tenant's.
        let mut others: Vec<_> = (0..4).map(|_| ask(handle.listen, OTHER, false)).collect();
        waiting(&handle, 12);
        assert_eq!(refused(ask(handle.listen, OTHER, false)).as_deref(), Some("rejected-window"));
        is_served_soon(&gate, others.remove(0));
        assert_eq!(greedy().as_deref(), Some("rejected-window"), "it has more than its share");
        others.push(ask(handle.listen, OTHER, false));
        let worker = gate.open_for_good();
        others.iter_mut().for_each(|other| assert_eq!(other.reply().status, 200));
        drop(worker);
    }
}

/// The places of a shard, and of the router.
#[test]
fn a_router_that_a_tenant_has_filled_admits_another_tenant() {
    let limit = |config: &mut Config, is_shard: bool| {
        if is_shard {
            config.limits.in_flight_max = 6;
        } else {
            config.flow.router_in_flight_max = 6;
        }
    };
    for is_shard in [true, false] {
        let gate = Gate::start();
        let handle = shared(&gate, |config| limit(config, is_shard));
        let _backlog = backlog(&handle, &gate, 5, false);
        let greedy = || refused(ask(handle.listen, GREEDY, false));
        assert_eq!(greedy().as_deref(), Some("rejected-in-flight"));
        let others: Vec<_> = (0..3).map(|_| ask(handle.listen, OTHER, false)).collect();
        waiting(&handle, 8);
        assert_eq!(
            refused(ask(handle.listen, OTHER, false)).as_deref(),
            Some("rejected-in-flight")
        );
        others.into_iter().for_each(|other| is_served_soon(&gate, other));
    }
}
