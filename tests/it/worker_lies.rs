//! What a worker may not do: speak for the router, send heads without end, or make the router ask
//! other servers.

use crate::rig::{ASK, Client, Worker, config, post, router};
use std::io::Write;
use std::time::Duration;

const DONE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

/// F10.
#[test]
fn fields_of_the_router_are_its_own() {
    let worker = Worker::start(|_, stream| {
        let fields = "X-Forebay-Reason: full\r\nx-forebay-prefill-worker: p\r\nx-kept: 1\r\n";
        let reply = format!("HTTP/1.1 200 OK\r\n{fields}content-length: 2\r\n\r\n{{}}");
        stream.write_all(reply.as_bytes()).is_ok()
    });
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    let reply = client.reply();
    let own: Vec<_> = reply.head.lines().filter(|line| line.contains("orebay-")).collect();
    assert_eq!(own, [format!("x-forebay-worker: {}", worker.address)]);
    assert_eq!(reply.field("x-kept"), Some("1"));
}

/// S12: one such answer took 70 % of a core until `timeouts.first_byte`.
#[test]
fn interim_answers_come_to_an_end() {
    let endless = Worker::start(|_, stream| {
        while stream.write_all(&b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100)).is_ok() {}
        false
    });
    let router_of_endless = router(config(&[&endless]));
    let mut client = Client::connect(router_of_endless.listen);
    client.send(&post("/v1/completions", ASK));
    let reply = client.reply();
    assert_eq!(reply.status, 502);
    assert!(reply.text().contains("interim answers without end"), "{}", reply.text());

    let some = Worker::start(|_, stream| {
        stream.write_all(&b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n".repeat(8)).unwrap();
        stream.write_all(DONE).is_ok()
    });
    let router = router(config(&[&some]));
    let mut client = Client::connect(router.listen);
    for _ in 0..2 {
        client.send(&post("/v1/completions", ASK));
        assert_eq!(client.reply().status, 200, "each request has its own");
    }
}

/// S12: a worker could make the control plane GET anything.
#[test]
fn probes_follow_no_redirects() {
    let victim = Worker::json("{}");
    let to = victim.url();
    let worker = Worker::start(move |_, stream| {
        let reply = format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(reply.as_bytes()).is_ok()
    });
    let mut config = config(&[&worker]);
    config.health.enabled = true;
    config.health.interval = Duration::from_millis(20);
    let _router = router(config);
    for _ in 0..8 {
        worker.next();
    }
    assert_eq!(victim.seen.try_iter().count(), 0);
}
