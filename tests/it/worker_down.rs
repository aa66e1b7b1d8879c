//! F8: a worker that is marked down and sends nothing ends its requests. One that is busy with its
//! answers and too slow for its health checks does not.

use crate::rig::pairs::{ask, pair_config, ready};
use crate::rig::stub::{Step, Stub};
use crate::rig::stub_pages::Pages;
use crate::rig::{Client, PATIENCE, Worker, admin, config, post, router, until, usable};
use forebay::config::{Config, EngineKind};
use forebay::server::ServerHandle;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// A worker whose checks can fail, and whose streams can drip on all the while.
struct Ill {
    worker: Worker,
    is_ill: Arc<AtomicBool>,
    drips: Arc<AtomicBool>,
}

impl Ill {
    fn start() -> Self {
        let (is_ill, drips) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let (ill, drip) = (Arc::clone(&is_ill), Arc::clone(&drips));
        let worker = Worker::start(move |seen, stream| {
            let body = String::from_utf8_lossy(&seen.body);
            if seen.head.starts_with("GET") {
                let status = if ill.load(Ordering::SeqCst) { "503 No" } else { "200 OK" };
                let models = r#"{"data":[{"id":"m"}]}"#;
                let length = models.len();
                let reply =
                    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{models}");
                return stream.write_all(reply.as_bytes()).is_ok();
            }
            if body.contains("BEGIN") || body.contains("DRIP") {
                stream.write_all(HEAD).unwrap();
                stream.write_all(b"9\r\ndata: x\n\n\r\n").unwrap();
            }
            while body.contains("DRIP") && drip.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20));
                if stream.write_all(b"9\r\ndata: y\n\n\r\n").is_err() {
                    return false;
                }
            }
            loop {
                std::thread::park();
            }
        });
        Self { worker, is_ill, drips }
    }

    fn router(&self) -> ServerHandle {
        let mut config = config(&[&self.worker]);
        config.workers[0].engine = Some(EngineKind::Openai);
        quick(&mut config);
        let router = router(config);
        until("the worker is up", || usable(&router) == 1);
        router
    }

    /// Sends a request and waits until the worker has it.
    fn ask(&self, router: &ServerHandle, path: &str, prompt: &str) -> Client {
        let body = format!(
            r#"{{"model":"m","prompt":"{prompt}","max_tokens":9,"messages":[],"stream":true}}"#
        );
        let mut client = Client::connect(router.listen);
        client.send(&post(path, body.as_bytes()));
        while !self.worker.next().head.starts_with("POST") {}
        client
    }

    fn fall_ill(&self, router: &ServerHandle) {
        self.is_ill.store(true, Ordering::SeqCst);
        until("the worker is down", || {
            admin(router, "/workers").text().contains(r#""state":"down""#)
        });
    }
}

fn quick(config: &mut Config) {
    config.health.enabled = true;
    config.health.interval = Duration::from_millis(30);
    config.health.timeout = Duration::from_millis(300);
    config.health.unhealthy_after = 2;
}

#[test]
fn a_worker_that_hangs_ends_its_requests() {
    let ill = Ill::start();
    let router = ill.router();
    let mut waiting = ill.ask(&router, "/v1/completions", "HANG");
    let mut stream = ill.ask(&router, "/v1/messages", "BEGIN");
    ill.fall_ill(&router);
    let reply = waiting.reply();
    assert_eq!(reply.status, 502, "{}", reply.text());
    assert!(reply.text().contains("it is down and sends nothing"), "{}", reply.text());
    let reply = stream.reply();
    assert!(!reply.complete);
    assert!(reply.text().starts_with("data: x\n\n"), "{}", reply.text());
    assert!(reply.text().contains("it is down and sends nothing"), "{}", reply.text());
}

#[test]
fn a_busy_worker_that_is_too_slow_for_its_checks_keeps_its_requests() {
    let ill = Ill::start();
    let router = ill.router();
    let mut waiting = ill.ask(&router, "/v1/completions", "HANG");
    let mut stream = ill.ask(&router, "/v1/completions", "DRIP");
    ill.fall_ill(&router);
    // As many chunks as fit into several times `health.timeout`.
    let mut got = Vec::new();
    while memchr::memmem::find_iter(&got, b"data: y").count() < 50 {
        let mut piece = [0; 4_096];
        let count = std::io::Read::read(&mut stream.stream, &mut piece).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&piece[..count]);
    }
    assert!(!String::from_utf8_lossy(&got).contains("error"), "not even while it is down");
    waiting.stream.set_nonblocking(true).unwrap();
    let peeked = waiting.stream.peek(&mut [0]);
    assert_eq!(peeked.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nor who waits");
    waiting.stream.set_nonblocking(false).unwrap();
    ill.drips.store(false, Ordering::SeqCst);
    assert_eq!(waiting.reply().status, 502);
}

#[test]
fn a_prefill_worker_that_hangs_ends_its_legs() {
    let (prefill, decode) = (Stub::start(Pages::vllm()), Stub::start(Pages::vllm()));
    let workers = [(&prefill, "role = \"prefill\""), (&decode, "role = \"decode\"")];
    let mut config = pair_config(&workers, "");
    quick(&mut config);
    let router = ready(config, &workers);
    prefill.always(vec![Step::Word]);
    let start = Instant::now();
    let mut client = ask(&router, "/v1/completions", r#"{"model":"m","prompt":"hi"}"#);
    prefill.arrival(0);
    prefill.pages(|pages| pages.is_well = false);
    // The decode worker takes it whole.
    assert_eq!(client.reply().status, 200);
    assert!(start.elapsed() < PATIENCE);
    assert!(String::from_utf8_lossy(&decode.arrival(0).body).contains("hi"));
}
