//! F8: a worker that is marked down and sends nothing ends its requests. One that is busy with its
//! answers and too slow for its health checks stays up.

use crate::rig::pairs::{ask, pair_config, ready};
use crate::rig::stub::{Step, Stub};
use crate::rig::stub_pages::Pages;
use crate::rig::{
    Client, PATIENCE, RouterProcess, Worker, admin, config, metric, post, router, until, usable,
};
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
        let is_ill = Arc::new(AtomicBool::new(false));
        let drips = Arc::new(AtomicBool::new(true));
        let ill = Arc::clone(&is_ill);
        let drip = Arc::clone(&drips);
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
fn a_busy_worker_that_is_too_slow_for_its_checks_stays_up() {
    let ill = Ill::start();
    let router = ill.router();
    let mut waiting = ill.ask(&router, "/v1/completions", "HANG");
    let mut stream = ill.ask(&router, "/v1/completions", "DRIP");
    // Shards tell of signs four times a second; no worker goes down that fast.
    (0..30).for_each(|_| stream.until_body(b"data: y"));
    ill.is_ill.store(true, Ordering::SeqCst);
    // As many chunks as fit into several times `health.timeout`.
    let mut got = Vec::new();
    while memchr::memmem::find_iter(&got, b"data: y").count() < 50 {
        let mut piece = [0; 4_096];
        let count = match std::io::Read::read(&mut stream.stream, &mut piece) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        assert!(count > 0, "{}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&piece[..count]);
        assert_eq!(usable(&router), 1, "its streams move");
    }
    assert!(!String::from_utf8_lossy(&got).contains("error"));
    // Nothing moves any more: now its checks count.
    ill.drips.store(false, Ordering::SeqCst);
    assert_eq!(waiting.reply().status, 502);
    assert_eq!(usable(&router), 0);
}

/// An engine that compiles answers no health check for minutes. Its other pages tell that it lives.
#[test]
fn a_worker_whose_reports_come_stays_up() {
    let is_ill = Arc::new(AtomicBool::new(false));
    let reports = Arc::new(AtomicBool::new(true));
    let ill = Arc::clone(&is_ill);
    let tells = Arc::clone(&reports);
    let worker = Worker::start(move |seen, stream| {
        let page = match seen.head.split(' ').nth(1) {
            Some("/v1/models") => r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#,
            Some("/metrics") if tells.load(Ordering::SeqCst) => {
                "vllm:num_requests_running{engine=\"0\"} 1\n\
                 vllm:num_requests_waiting{engine=\"0\"} 0\n\
                 vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"
            }
            Some("/health") if !ill.load(Ordering::SeqCst) => "{}",
            Some("/version") => r#"{"version":"0.33.0"}"#,
            Some("/health" | "/metrics") => loop {
                std::thread::park();
            },
            _ => return stream.write_all(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n").is_ok(),
        };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", page.len());
        stream.write_all([&head, page].concat().as_bytes()).is_ok()
    });
    let mut config = config(&[&worker]);
    config.workers[0].engine = Some(EngineKind::Vllm);
    quick(&mut config);
    // Checks are rarer than reports, so that a busy machine holds up none for too long.
    config.health.interval = Duration::from_millis(200);
    config.load.interval = Duration::from_millis(50);
    let router = router(config);
    until("the worker is up", || usable(&router) == 1);
    let reported = || metric(&router, "forebay_load_scrape_seconds_count");
    until("it tells of its load", || reported() > 0.0);
    is_ill.store(true, Ordering::SeqCst);
    let before = reported();
    until("some checks have failed", || {
        assert_eq!(usable(&router), 1, "its reports come");
        reported() > before + 20.0
    });
    reports.store(false, Ordering::SeqCst);
    until("it is down", || usable(&router) == 0);
}

#[test]
fn a_worker_that_comes_back_starts_slowly() {
    let [ill, sibling] = [Ill::start(), Ill::start()];
    let mut config = config(&[&ill.worker, &sibling.worker]);
    config.workers.iter_mut().for_each(|worker| worker.engine = Some(EngineKind::Openai));
    quick(&mut config);
    config.health.slow_start = Duration::from_millis(1_500);
    let router = router(config);
    until("the workers are up", || usable(&router) == 2);
    let is_slow = || admin(&router, "/workers").text().contains(r#""slow_start""#);
    assert!(!is_slow(), "at full speed from the start");
    ill.is_ill.store(true, Ordering::SeqCst);
    until("the worker is down", || usable(&router) == 1);
    ill.is_ill.store(false, Ordering::SeqCst);
    until("the worker is up again", || usable(&router) == 2);
    let workers = admin(&router, "/workers").text();
    let limit = r#""concurrency_max":1,"concurrency_source":"slow_start""#;
    assert!(workers.contains(limit), "{workers}");
    until("the limit is gone", || !is_slow());
}

/// No other rank can take the load of a worker whose siblings are down.
#[test]
fn the_only_worker_of_a_model_comes_back_at_full_speed() {
    let ill = Ill::start();
    let mut config = config(&[&ill.worker]);
    config.workers[0].engine = Some(EngineKind::Openai);
    quick(&mut config);
    config.health.slow_start = Duration::from_hours(1);
    let router = router(config);
    until("the worker is up", || usable(&router) == 1);
    ill.is_ill.store(true, Ordering::SeqCst);
    until("the worker is down", || usable(&router) == 0);
    ill.is_ill.store(false, Ordering::SeqCst);
    until("the worker is up again", || usable(&router) == 1);
    until("it has no limit", || {
        let workers = admin(&router, "/workers").text();
        workers.contains(r#""concurrency_max":0,"#)
    });
}

/// M6: a worker of the start needs two checks, and the first fleet does not wait for them.
#[test]
fn a_fleet_that_is_up_late_begins_at_full_speed() {
    let workers = [Ill::start(), Ill::start()];
    let mut config = config(&[&workers[0].worker, &workers[1].worker]);
    config.workers.iter_mut().for_each(|worker| worker.engine = Some(EngineKind::Openai));
    quick(&mut config);
    config.health.timeout = Duration::from_millis(100);
    config.health.interval = Duration::from_millis(200);
    config.health.healthy_after = 3;
    config.health.slow_start = Duration::from_hours(1);
    let router = router(config);
    until("the workers are up", || usable(&router) == 2);
    let shown = admin(&router, "/workers").text();
    assert!(!shown.contains("slow_start"), "{shown}");
}

#[test]
fn a_prefill_worker_that_hangs_ends_its_legs() {
    let prefill = Stub::start(Pages::vllm());
    let decode = Stub::start(Pages::vllm());
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

/// M1: the log has an ERROR when the last usable worker goes, and none while another is left.
#[test]
fn the_last_worker_that_goes_is_an_error_in_the_log() {
    let ills = [Ill::start(), Ill::start()];
    let mut text = "cores = [0]\npolicy = \"round_robin\"\n[health]\ninterval = \"30ms\"\n\
                    unhealthy_after = 1\n"
        .to_owned();
    for ill in &ills {
        text += &format!("[[worker]]\nurl = \"{}\"\nengine = \"openai\"\n", ill.worker.url());
    }
    let router = RouterProcess::configured(&text);
    let is_up = || router.logged("INFO worker is up");
    until("both are up", || is_up() == 2);
    let errors = || router.logged("not ready: requests are refused until a worker is up");
    ills[0].is_ill.store(true, Ordering::SeqCst);
    until("the first is down", || router.logged("worker is down") == 1);
    assert_eq!(errors(), 0, "{}", router.log());
    ills[1].is_ill.store(true, Ordering::SeqCst);
    until("the last is down", || errors() == 1);
    let log = router.log();
    let line = log.lines().find(|line| line.contains("not ready: requests")).unwrap();
    assert!(line.contains(" ERROR ") && line.contains("`forebay workers`"), "{line}");
    ills[0].is_ill.store(false, Ordering::SeqCst);
    until("the first is back", || is_up() == 3);
    ills[0].is_ill.store(true, Ordering::SeqCst);
    until("each loss counts", || errors() == 2);
}
