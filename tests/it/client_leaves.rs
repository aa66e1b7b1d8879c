//! A client that leaves takes its request with it, at once.

use crate::rig::{
    ASK, Client, PATIENCE, Worker, config, metric, post, router, until, write_until_cut,
};
use std::io::{Read, Write};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Most that may pass between the client's close and the worker's sight of it: one of [`ATTEMPTS`]
/// has to be in time, since the machine may run other things.
const SOON: Duration = Duration::from_millis(50);
const ATTEMPTS: usize = 12;

/// A worker that sends `first`, then reports when its connection ends.
fn watching(first: &'static [u8]) -> (Worker, std::sync::mpsc::Receiver<Instant>) {
    let (sender, closed) = channel();
    let worker = Worker::start(move |_, stream| {
        stream.write_all(first).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ended = stream.read(&mut [0; 16]);
        assert!(matches!(ended, Ok(0) | Err(_)), "the router sends nothing more");
        let _ = sender.send(Instant::now());
        false
    });
    (worker, closed)
}

fn leaves(first: &'static [u8]) {
    let in_time = (0..ATTEMPTS).any(|_| leaves_once(first) < SOON);
    assert!(in_time, "none of {ATTEMPTS} within {SOON:?}");
}

fn leaves_once(first: &'static [u8]) -> Duration {
    let (worker, closed) = watching(first);
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    worker.next();
    if !first.is_empty() {
        client.stream.read_exact(&mut [0; 16]).unwrap();
    }
    let left = Instant::now();
    drop(client);
    let seen = closed.recv_timeout(PATIENCE).expect("the worker sees the close");
    let counted = |code: u16| {
        let name = format!("forebay_requests_total{{endpoint=\"completions\",code=\"{code}\"");
        metric(&router, &name)
    };
    // Whose answer had begun was told 200.
    let (code, other) = if first.is_empty() { (499, 200) } else { (200, 499) };
    until("it has left", || metric(&router, "forebay_client_gone_total") == 1.0);
    until("it is counted", || counted(code) == 1.0);
    assert_eq!(counted(other), 0.0);
    seen - left
}

#[test]
fn before_the_first_byte() {
    leaves(b"");
}

#[test]
fn in_the_middle_of_a_stream() {
    leaves(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
          9\r\ndata: x\n\n\r\n",
    );
}

#[test]
fn a_client_that_does_not_read_stops_the_worker_from_being_read() {
    let (sender, written) = channel();
    let worker = Worker::start(move |_, stream| {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 1000000000\r\n\r\n")
            .unwrap();
        let _ = sender.send(write_until_cut(stream));
        false
    });
    let mut config = config(&[&worker]);
    config.timeouts.write = Duration::from_secs(2);
    let handle = router(config);
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", ASK));
    client.stream.read_exact(&mut [0; 12]).unwrap();
    let total = written.recv_timeout(PATIENCE).expect("the worker is stopped");
    assert!(total < 64 << 20, "the router and the kernel took {total} bytes nobody read");
    // After `timeouts.write` the client is given up.
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(rest.len() < 64 << 20);
}
