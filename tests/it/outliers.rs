//! Whose fault a failure is: ranks that fail what others serve are avoided and named, requests that
//! fail everywhere cost nobody anything.

use crate::rig::{ASK, Client, Seen, Worker, admin, admin_post, config, post, router, until};
use forebay::config::{Config, EngineKind};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{\"id\":1}";

fn lists_model(stream: &mut TcpStream) -> bool {
    let list = r#"{"data":[{"id":"m"}]}"#;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}", list.len());
    write!(stream, "{head}\r\n\r\n{list}").is_ok()
}

/// Answers each request with `status`, except requests for 200: these after `wait`.
fn worker(status: Arc<AtomicUsize>, wait: Duration) -> Worker {
    Worker::start(move |seen, stream| {
        if seen.head.starts_with("GET ") {
            return lists_model(stream);
        }
        let is_poison = String::from_utf8_lossy(&seen.body).contains("poison");
        match status.load(Ordering::Relaxed) {
            200 if !is_poison => {
                std::thread::sleep(wait);
                stream.write_all(OK).is_ok()
            }
            status => {
                let status = if is_poison { 500 } else { status };
                write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\n{{}}").is_ok()
            }
        }
    })
}

fn of_status(status: usize, wait_ms: u64) -> Worker {
    worker(Arc::new(AtomicUsize::new(status)), Duration::from_millis(wait_ms))
}

/// With all defaults but the workers.
fn watching(workers: &[&Worker]) -> Config {
    let mut config = config(workers);
    config.health.enabled = true;
    config.policy = forebay::config::Policy::Kv;
    for worker in &mut config.workers {
        worker.engine = Some(EngineKind::Vllm);
        worker.models = vec!["m".into()];
    }
    config
}

fn ready(config: Config) -> ServerHandle {
    let count = config.workers.len();
    let handle = router(config);
    until("all workers are up", || crate::rig::usable(&handle) >= count);
    handle
}

fn status_of(handle: &ServerHandle, request: &[u8]) -> u16 {
    let mut client = Client::connect(handle.listen);
    client.send(request);
    client.reply().status
}

/// Statuses of requests in an open loop. A busy machine makes no burst of it: eight are in flight
/// at most.
fn open_loop(handle: &ServerHandle, ask: &[u8], count: usize, gap: Duration) -> Vec<u16> {
    let statuses = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for sent in 0..count {
            scope.spawn(|| {
                let status = status_of(handle, &post("/v1/completions", ask));
                statuses.lock().unwrap().push(status);
            });
            std::thread::sleep(gap);
            until("answers come", || sent + 1 < statuses.lock().unwrap().len() + 8);
        }
    });
    statuses.into_inner().unwrap()
}

/// F4, I3: 124 of 160 requests failed at a worker that refuses the key.
#[test]
fn a_worker_that_fails_fast_is_avoided() {
    for status in [400, 401, 404, 500] {
        let bad = of_status(status, 0);
        let good = of_status(200, 60);
        let handle = ready(watching(&[&bad, &good]));
        let statuses = open_loop(&handle, ASK, 100, Duration::from_millis(20));
        let failed = statuses.iter().filter(|status| **status != 200).count();
        assert!(failed <= 10, "{status}: {failed} of 100 failed");
    }
}

/// A worker with the right list of models that answers each request with 200 and `body`.
fn rubbish(media: &'static str, body: &'static str) -> Worker {
    Worker::start(move |seen, stream| {
        let is_get = seen.head.starts_with("GET ");
        let list = ("application/json", r#"{"data":[{"id":"m"}]}"#);
        let (media, body) = if is_get { list } else { (media, body) };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {media}\r\n");
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).is_ok()
    })
}

/// M1: a worker that answered fast with a page of HTML got 61 % of the whole answers.
#[test]
fn a_worker_that_answers_200_with_rubbish_is_avoided() {
    const PLAIN: &[u8] = ASK;
    const STREAM: &[u8] = br#"{"model":"m","prompt":"hi","stream":true}"#;
    for (media, body, ask) in [
        ("text/html", "<html>maintenance</html>", PLAIN),
        ("text/html", "<html>maintenance</html>", STREAM),
        ("text/plain", "maintenance", PLAIN),
    ] {
        let bad = rubbish(media, body);
        let good = of_status(200, 60);
        let handle = ready(watching(&[&bad, &good]));
        let served = open_loop(&handle, ask, 100, Duration::from_millis(10));
        assert_eq!(served, [200; 100]);
        let is_post = |seen: &Seen| seen.head.starts_with("POST ");
        let taken = bad.seen.try_iter().filter(is_post).count();
        assert!((1..=15).contains(&taken), "{media} {body}: {taken} of 100 went there");
        let fault = String::from_utf8(admin(&handle, "/workers").body).unwrap();
        assert!(fault.contains("requests failed with status 200"), "{fault}");
    }
}

/// F2, I2: one client with requests that engines answer with 500, four at a time.
#[test]
fn requests_that_fail_everywhere_shut_nobody_out() {
    for count in [1, 2, 4] {
        let workers: Vec<_> = (0..count).map(|_| of_status(200, 30)).collect();
        let handle = ready(watching(&workers.iter().collect::<Vec<_>>()));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let poison = post("/v1/completions", br#"{"model":"m","prompt":"poison"}"#);
                    while !is_over.load(Ordering::Relaxed) {
                        assert_eq!(status_of(&handle, &poison), 500);
                        std::thread::sleep(Duration::from_millis(5));
                    }
                });
            }
            let statuses = open_loop(&handle, ASK, 100, Duration::from_millis(15));
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(statuses, [200; 100], "{count} workers");
        });
    }
}

/// Requests of two callers that each worker refuses. A rank with such refusals alone took single
/// requests, until one of these was served: 16 requests went 13 to 3.
#[test]
fn refusals_of_two_callers_shut_nobody_out() {
    let workers = [(); 2].map(|()| {
        Worker::start(|seen, stream| {
            let is_wrong = String::from_utf8_lossy(&seen.body).contains("wrong");
            if is_wrong {
                let refusal = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}";
                return stream.write_all(refusal).is_ok();
            }
            if seen.head.starts_with("GET ") {
                return lists_model(stream);
            }
            std::thread::sleep(Duration::from_millis(200));
            stream.write_all(OK).is_ok()
        })
    });
    let mut config = watching(&workers.each_ref());
    config.policy = forebay::config::Policy::RoundRobin;
    config.api_keys = Some("tests/data/api_keys/two.toml".into());
    let handle = ready(config);
    let order = |order: &str| {
        let mut client = Client::connect(handle.admin);
        client.send(&admin_post(&format!("/workers/{}/{order}", workers[1].address), b""));
        assert_eq!(client.reply().status, 200);
    };
    let ask = |key: &str, body: &[u8]| {
        let request = String::from_utf8(post("/v1/completions", body)).unwrap();
        let key = format!("authorization: Bearer {key}\r\nhost:");
        status_of(&handle, request.replacen("host:", &key, 1).as_bytes())
    };
    let wrong = br#"{"model":"m","prompt":"wrong"}"#;
    order("drain");
    for key in ["gold-key", "some-key"].repeat(10) {
        assert_eq!(ask(key, wrong), 400);
    }
    order("undrain");
    let score = || {
        let path = format!("/workers/{}", workers[0].address);
        let shown: Value = serde_json::from_slice(&admin(&handle, &path).body).unwrap();
        assert_eq!(shown["ranks"][0]["breaker_open"], false);
        shown["ranks"][0]["held"]["score"].as_u64().unwrap()
    };
    for key in ["gold-key", "some-key"].repeat(2) {
        assert_eq!(ask(key, wrong), 400);
    }
    assert!(score() >= 20, "{}", score());
    let _ = workers.each_ref().map(|worker| worker.seen.try_iter().count());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(ask("gold-key", ASK), 200));
        }
    });
    let is_post = |seen: &Seen| seen.head.starts_with("POST ");
    let taken = workers.each_ref().map(|worker| worker.seen.try_iter().filter(is_post).count());
    assert_eq!(taken, [8, 8]);
}

/// A rank that is paused and well again serves within a moment, and `/workers` shows both.
#[test]
fn what_is_held_against_a_rank_is_shown_and_ends() {
    let status = Arc::new(AtomicUsize::new(401));
    let bad = worker(Arc::clone(&status), Duration::ZERO);
    let good = of_status(200, 20);
    let handle = ready(watching(&[&bad, &good]));
    let held = || {
        let workers: Value = serde_json::from_slice(&admin(&handle, "/workers").body).unwrap();
        let all = workers["workers"].as_array().unwrap().iter();
        let bad = all.clone().find(|one| one["name"] == bad.address.to_string().as_str());
        bad.unwrap()["ranks"][0]["held"].clone()
    };
    let ask = || status_of(&handle, &post("/v1/completions", ASK));
    until("the worker is paused", || {
        ask();
        held()["pauses"].as_u64().is_some_and(|pauses| pauses >= 2)
    });
    assert_eq!((&held()["status"], &held()["models"]), (&401.into(), &"one".into()));
    status.store(200, Ordering::Relaxed);
    let begin = Instant::now();
    until("nothing is held against it", || ask() == 200 && held() == Value::Null);
    assert!(begin.elapsed() < Duration::from_secs(10));
}

/// An equal engine, at the same address and with the same model, that restarts between two health
/// checks: its figures show another process, by the start or by counters that go back.
#[test]
fn an_equal_engine_that_restarts_between_two_checks_is_forgiven() {
    for reports_start in [true, false] {
        let started = Arc::new(AtomicUsize::new(1_796_000_000));
        let start = Arc::clone(&started);
        let bad = Worker::start(move |seen, stream| {
            let start = start.load(Ordering::Relaxed);
            let figures = match reports_start {
                true => format!("process_start_time_seconds {start}.5\n"),
                false => format!("vllm:generation_tokens_total {}\n", 1_796_000_009 - start),
            };
            let idle = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n";
            let (status, body) = match () {
                () if seen.head.starts_with("GET /metrics") => (200, idle.to_owned() + &figures),
                () if seen.head.starts_with("GET ") => (200, r#"{"data":[{"id":"m"}]}"#.to_owned()),
                () => (500, "{}".to_owned()),
            };
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).is_ok()
        });
        let good = of_status(200, 20);
        let mut config = watching(&[&bad, &good]);
        config.health.interval = Duration::from_secs(3_600);
        let handle = ready(config);
        let shown = || {
            let path = format!("/workers/{}", bad.address);
            serde_json::from_slice::<Value>(&admin(&handle, &path).body).unwrap()
        };
        let held = || shown()["ranks"][0]["held"].clone();
        until("the worker is paused", || {
            status_of(&handle, &post("/v1/completions", ASK));
            held()["pauses"].as_u64().is_some_and(|pauses| pauses >= 2)
        });
        std::thread::sleep(Duration::from_millis(700));
        assert_ne!(held(), Value::Null, "figures of the same process change nothing");
        assert_eq!(shown()["restarts"], 0);
        started.fetch_add(5, Ordering::Relaxed);
        until("nothing is held against the new process", || held() == Value::Null);
        assert_eq!(shown()["restarts"], 1);
    }
}
