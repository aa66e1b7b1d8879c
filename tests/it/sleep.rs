//! Engines that are put to sleep and woken through the admin API, while requests come.

use crate::rig::{
    ASK, Client, PATIENCE, Worker, admin, admin_post, config, metric, post, router, until, usable,
};
use forebay::config::{EngineKind, QueueMode};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::io::Write;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A vLLM that answers each request, and each call, once it is told with which status.
fn engine() -> (Worker, Sender<u16>) {
    let (tell, told) = channel::<u16>();
    let told = Arc::new(Mutex::new(told));
    let worker = Worker::start(move |_, stream| {
        let status = told.lock().unwrap().recv().unwrap();
        let reply = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\n{{}}");
        stream.write_all(reply.as_bytes()).is_ok()
    });
    (worker, tell)
}

/// In front of that engine, `w0`.
fn in_front_of(worker: &Worker) -> ServerHandle {
    let mut config = config(&[worker]);
    config.workers[0].name = Some("w0".to_owned());
    config.workers[0].engine = Some(EngineKind::Vllm);
    config.workers[0].models = vec!["m".to_owned()];
    config.flow.queue.mode = QueueMode::Pool;
    config.timeouts.drain = Duration::from_secs(60);
    router(config)
}

fn say(router: &ServerHandle, word: &str) -> (u16, Value) {
    let mut client = Client::connect(router.admin);
    client.send(&admin_post(&format!("/workers/w0/{word}"), b""));
    let reply = client.reply();
    (reply.status, serde_json::from_slice(&reply.body).unwrap())
}

fn shown(router: &ServerHandle) -> Value {
    serde_json::from_slice(&admin(router, "/workers/w0").body).unwrap()
}

fn until_sleep_is(router: &ServerHandle, word: Option<&str>) {
    until("its sleep comes that far", || shown(router)["sleep"].as_str() == word);
}

fn asking(router: &ServerHandle) -> Client {
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    client
}

fn line(worker: &Worker) -> String {
    worker.next().head.lines().next().unwrap().to_owned()
}

const COMPLETION: &str = "POST /v1/completions HTTP/1.1";

#[test]
fn requests_wait_for_an_engine_that_sleeps_and_those_before_end_first() {
    let (worker, tell) = engine();
    let router = in_front_of(&worker);
    let mut first = asking(&router);
    assert_eq!(line(&worker), COMPLETION);
    let (status, now) = say(&router, "sleep");
    assert_eq!((status, &now["sleep"], &now["in_flight"]), (202, &"drains".into(), &1.into()));
    let mut second = asking(&router);
    until("the second waits", || metric(&router, "forebay_queue_depth") == 1.0);
    assert!(worker.seen.try_recv().is_err(), "the engine has a request and hears of nothing else");
    tell.send(200).unwrap();
    assert_eq!(first.reply().status, 200);
    assert_eq!(line(&worker), "POST /sleep HTTP/1.1");
    assert_eq!(say(&router, "wake_up").0, 409, "not yet");
    tell.send(200).unwrap();
    until_sleep_is(&router, Some("asleep"));
    // Orders of another kind change nothing of it.
    assert_eq!(say(&router, "drain").0, 409);
    assert_eq!(say(&router, "undrain").1["sleep"], "asleep");
    assert_eq!(metric(&router, "forebay_queue_depth"), 1.0);
    assert_eq!(say(&router, "wake_up").1["sleep"], "wakes_up");
    assert_eq!(say(&router, "sleep").0, 409, "not yet");
    assert_eq!(line(&worker), "POST /wake_up HTTP/1.1");
    assert!(worker.seen.try_recv().is_err(), "nothing comes before it is awake");
    tell.send(200).unwrap();
    assert_eq!(line(&worker), COMPLETION);
    tell.send(200).unwrap();
    assert_eq!(second.reply().status, 200);
    until_sleep_is(&router, None);
    assert_eq!(metric(&router, "forebay_broken_invariants_total"), 0.0);
}

#[test]
fn an_engine_that_refuses_serves_on_and_one_that_drains_sleeps_not() {
    let (worker, tell) = engine();
    let router = in_front_of(&worker);
    until("it is known", || shown(&router)["engine"] == "vllm");
    assert_eq!(say(&router, "sleep").0, 202);
    assert_eq!(line(&worker), "POST /sleep HTTP/1.1");
    tell.send(404).unwrap();
    until_sleep_is(&router, None);
    let mut client = asking(&router);
    assert_eq!(line(&worker), COMPLETION);
    // Called off while it drains.
    assert_eq!(say(&router, "sleep").1["sleep"], "drains");
    let (status, now) = say(&router, "wake_up");
    assert_eq!((status, &now["sleep"]), (202, &Value::Null));
    tell.send(200).unwrap();
    assert_eq!(client.reply().status, 200);
    assert_eq!(say(&router, "drain").0, 200);
    let (status, said) = say(&router, "sleep");
    assert_eq!(status, 409, "{said}");
    assert!(said["error"].as_str().unwrap().contains("undrain"), "{said}");
}

#[test]
fn a_worker_that_is_awake_serves_on_whatever_its_engine_says_to_wake_up() {
    let (worker, tell) = engine();
    let router = in_front_of(&worker);
    until("it is known", || shown(&router)["engine"] == "vllm");
    assert_eq!(say(&router, "wake_up?tags=weights").0, 400);
    let (status, now) = say(&router, "wake_up");
    assert_eq!((status, &now["sleep"]), (202, &Value::Null));
    assert_eq!(line(&worker), "POST /wake_up HTTP/1.1");
    let mut client = asking(&router);
    assert_eq!(line(&worker), COMPLETION, "it does not wait for the engine's word");
    tell.send(404).unwrap();
    tell.send(200).unwrap();
    // Either may be the one that the engine refuses.
    let status = client.reply().status;
    assert!(status == 200 || status == 404, "{status}");
    assert_eq!(shown(&router)["sleep"], Value::Null);
}

/// A vLLM of its own pages; what it says of its sleep is `sleep`, or nothing for ever.
fn with_pages(sleep: Option<&'static str>) -> Worker {
    Worker::start(move |request, stream| {
        let path = request.head.split(' ').nth(1).unwrap();
        let body = match (path, sleep) {
            ("/v1/models", _) => r#"{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}"#,
            ("/is_sleeping", Some(body)) => body,
            ("/is_sleeping", None) => {
                // Until the router has hung up.
                let _ = std::io::Read::read(stream, &mut [0]);
                return false;
            }
            ("/health" | "/wake_up" | "/v1/completions", _) => "{}",
            _ => {
                return stream.write_all(b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n").is_ok();
            }
        };
        let reply = format!("HTTP/1.1 200 X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(reply.as_bytes()).is_ok()
    })
}

#[test]
fn a_router_that_starts_finds_an_engine_asleep() {
    let worker = with_pages(Some(r#"{"is_sleeping":true}"#));
    let mut config = config(&[&worker]);
    config.workers[0].name = Some("w0".to_owned());
    config.health.enabled = true;
    config.flow.queue.mode = QueueMode::Pool;
    let router = router(config);
    until_sleep_is(&router, Some("asleep"));
    let mut client = asking(&router);
    until("the request waits", || metric(&router, "forebay_queue_depth") == 1.0);
    assert_eq!(say(&router, "wake_up").0, 202);
    assert_eq!(client.reply().status, 200);
    until_sleep_is(&router, None);
    let heads: Vec<String> = worker.seen.try_iter().map(|seen| seen.head).collect();
    let place = |path: &str| heads.iter().position(|head| head.starts_with(path)).unwrap();
    assert!(place("POST /wake_up ") < place("POST /v1/completions "), "{heads:?}");
}

/// A busy engine answers late whether it sleeps. The router does not wait for it, and asks once.
#[test]
fn an_engine_that_does_not_say_whether_it_sleeps_delays_no_start() {
    let silent = with_pages(None);
    let well = with_pages(Some(r#"{"is_sleeping":false}"#));
    let mut config = config(&[&silent, &well]);
    config.health.enabled = true;
    config.health.timeout = PATIENCE;
    let start = Instant::now();
    let router = router(config);
    for _ in 0..2 {
        assert_eq!(asking(&router).reply().status, 200);
    }
    assert!(start.elapsed() < PATIENCE / 3, "{:?}", start.elapsed());
    until("both serve", || usable(&router) == 2);
    let asked = |worker: &Worker| {
        let heads = worker.seen.try_iter().map(|seen| seen.head);
        heads.filter(|head| head.starts_with("GET /is_sleeping ")).count()
    };
    assert_eq!([asked(&silent), asked(&well)], [1, 1]);
}
