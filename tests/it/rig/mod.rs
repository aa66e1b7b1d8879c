//! What the tests share: a router, scripted workers, a raw HTTP client. Every wait has a deadline.

pub(crate) mod admin;
pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod collector;
pub(crate) mod frames;
pub(crate) mod gate;
pub(crate) mod nats;
pub(crate) mod pairs;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod publisher;
pub(crate) mod stub;
pub(crate) mod stub_pages;
pub(crate) mod tls_front;
pub(crate) mod token_engine;
pub(crate) mod truth;
pub(crate) mod websocket;
pub(crate) mod worker;

pub(crate) use admin::{admin, any_port, metric, port_for_later, usable};
pub(crate) use certificates::{Certificates, Pair};
pub(crate) use client::{Client, Reply};
pub(crate) use gate::Gate;
pub(crate) use nats::Nats;
pub(crate) use process::RouterProcess;
pub(crate) use proxy::Proxy;
pub(crate) use publisher::{Publisher, Replay};
pub(crate) use tls_front::TlsFront;
pub(crate) use worker::{Seen, Worker};

use forebay::config::{Config, Policy, WorkerConfig};
use forebay::server::{ServerHandle, start};
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long any wait of a test may take before it fails. Long, since the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A router on free ports in front of these workers, without health checks.
pub(crate) fn config(workers: &[&Worker]) -> Config {
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0],
        policy: Policy::RoundRobin,
        workers: workers
            .iter()
            .map(|worker| WorkerConfig { url: worker.url(), ..WorkerConfig::default() })
            .collect(),
        ..Config::default()
    };
    config.health.enabled = false;
    config
}

/// Starts it. Connections wait in the kernel until the shards know their workers.
pub(crate) fn router(config: Config) -> ServerHandle {
    start(config, false).expect("the router starts")
}

/// Polls until the condition holds; fails after [`PATIENCE`].
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        let asked = Instant::now();
        if condition() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "gave up waiting: {what}");
        // The router computes the answers: short questions take a fifth of a core at most.
        let pause = Duration::from_millis(1) + 4 * asked.elapsed();
        std::thread::sleep(pause.min(Duration::from_millis(20)));
    }
}

/// Writes until the router cuts the connection; how many bytes it took. Fails where it takes
/// nothing, and does not cut either.
pub(crate) fn write_until_cut(stream: &mut TcpStream) -> usize {
    stream.set_write_timeout(Some(PATIENCE / 2)).unwrap();
    let mut total = 0;
    loop {
        match stream.write(&[b'x'; 65_536]) {
            Ok(count) => total += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("it is not cut"),
            Err(_) => return total,
        }
    }
}

/// A POST with this body.
pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The same for the admin API, which is called by its own names only.
pub(crate) fn admin_post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A small valid completion request.
pub(crate) const ASK: &[u8] = br#"{"model":"m","prompt":"hi"}"#;
