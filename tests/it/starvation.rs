//! Nothing starves: timers, new connections and quiet streams go on under a flood of other work on
//! one shard.

use crate::rig::{ASK, Client, Worker, config, post, router};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest a small request may take while the shard is flooded.
const BOUND: Duration = Duration::from_secs(2);

#[test]
fn small_requests_pass_through_floods_of_every_kind() {
    let worker = Worker::start(|seen, stream| {
        if !seen.head.contains("flood") {
            return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 400000000\r\n\r\n").unwrap();
        let megabyte = vec![b'x'; 1 << 20];
        while stream.write_all(&megabyte).is_ok() {}
        false
    });
    let mut config = config(&[&worker]);
    config.timeouts.head = Duration::from_millis(300);
    let router = router(config);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| flood_down(router.listen, &stop));
            scope.spawn(|| flood_up(router.listen, &stop));
            scope.spawn(|| flood_bad(router.listen, &stop));
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            let asked = Instant::now();
            let mut client = Client::connect(router.listen);
            client.send(&post("/v1/completions", ASK));
            assert_eq!(client.reply().status, 200);
            assert!(asked.elapsed() < BOUND, "a request took {:?}", asked.elapsed());
        }
        // A timer: a head that never ends is given up in time.
        let mut slow = Client::connect(router.listen);
        slow.send(b"POST /v1/comp");
        let asked = Instant::now();
        assert_eq!(slow.reply().status, 408);
        assert!(asked.elapsed() < BOUND);
        stop.store(true, Ordering::SeqCst);
    });
}

/// Takes a large answer as fast as it comes.
fn flood_down(address: std::net::SocketAddr, stop: &AtomicBool) {
    use std::io::Read;
    let mut client = Client::connect(address);
    client.send(&post("/v1/completions?flood", ASK));
    let mut buffer = vec![0; 1 << 18];
    while !stop.load(Ordering::SeqCst) && matches!(client.stream.read(&mut buffer), Ok(1..)) {}
}

/// Pipelines small requests without end.
fn flood_up(address: std::net::SocketAddr, stop: &AtomicBool) {
    let mut client = Client::connect(address);
    let batch: Vec<u8> = (0..20).flat_map(|_| post("/v1/completions", ASK)).collect();
    while !stop.load(Ordering::SeqCst) {
        client.send(&batch);
        for _ in 0..20 {
            client.reply();
        }
    }
}

/// Opens, sends nonsense, is refused.
fn flood_bad(address: std::net::SocketAddr, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let mut client = Client::connect(address);
        client.send(b"nonsense\r\n\r\n");
        assert_eq!(client.reply().status, 400);
    }
}
