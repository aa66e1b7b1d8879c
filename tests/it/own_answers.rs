//! What the router answers by itself: whose request it speaks of, when to come back, and pages that
//! balancers ask for.

use crate::rig::{
    ASK, Client, RouterProcess, Worker, any_port, config, metric, port_for_later, post, router,
    truth, until,
};
use forebay::config::{Config, Policy, QueueMode, WorkerConfig};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::channel;

fn window(admin: SocketAddr, order: &str) {
    let head = "POST /admin/window HTTP/1.1\r\ncontent-type: application/json\r\n";
    let mut client = Client::connect(admin);
    let request = format!("{head}host: {admin}\r\ncontent-length: {}\r\n\r\n{order}", order.len());
    client.send(request.as_bytes());
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
}

fn named(path: &str, id: &str) -> Vec<u8> {
    let request = String::from_utf8(post(path, ASK)).unwrap();
    request.replacen("host:", &format!("x-request-id: {id}\r\nhost:"), 1).into_bytes()
}

/// Clients' review, C3: behind a proxy that shares connections the log told whose 429 it was,
/// wrongly.
#[test]
fn a_refusal_speaks_of_its_own_request() {
    let worker = Worker::json("{}");
    let router = RouterProcess::configured(&format!(
        "[log]\nrequests = true\n[health]\nenabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        worker.url()
    ));
    let mut client = Client::connect(router.listen);
    let mut ask = |path: &str, id: &str, status: u16| {
        client.send(&named(path, id));
        let reply = client.reply();
        assert_eq!((reply.status, reply.field("x-request-id")), (status, Some(id)), "{path}");
    };
    ask("/v1/completions", "tenant-a", 200);
    window(router.admin, r#"{"open":"10m"}"#);
    ask("/v1/completions", "tenant-b", 429);
    window(router.admin, r#"{"close":true}"#);
    ask("/v1/completions", "tenant-c", 200);
    ask("/nope", "tenant-d", 404);
    let has = |words: [&str; 3]| {
        let log = router.log();
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        log.lines().any(has_all)
    };
    for words in [
        ["status=200", "model=\"m\"", "request_id=\"tenant-a\""],
        ["status=429", "outcome=\"rejected-by-operator\"", "request_id=\"tenant-b\""],
        ["status=200", "model=\"m\"", "request_id=\"tenant-c\""],
        ["status=404", "outcome=\"not-found\"", "request_id=\"tenant-d\""],
    ] {
        until("the record is written", || has(words));
    }
    assert!(!router.log().contains("model=\"\""), "a model that was not read is left out");
    let none = "forebay_requests_total{endpoint=\"none\",code=\"404\"}";
    assert!((truth::metric(router.admin, none) - 1.0).abs() < 0.5);
    // The kind of answer was not read of a request that an open window refused. With a single model
    // the model is known (M3).
    let refused = "forebay_rejected_total{reason=\"rejected-by-operator\",endpoint=\"completions\",\
                   model=\"m\",type=\"unknown\"}";
    assert!((truth::metric(router.admin, refused) - 1.0).abs() < 0.5);
}

#[test]
fn every_refusal_has_an_id() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.limits.body_bytes_max = 1_000;
    let router = router(config);
    for request in [
        b"nonsense\r\n\r\n".to_vec(),
        b"GET /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        post("/v1/nothing", b"{}"),
        post("/v1/completions", &[b' '; 2_000]),
        post("/v1/completions", b"{nope"),
    ] {
        let mut client = Client::connect(router.listen);
        client.send(&request);
        let reply = client.reply();
        let id = reply.field("x-request-id").unwrap_or_default();
        assert_eq!(id.len(), 16, "{}", reply.head);
    }
}

/// A router whose one place is taken for as long as the sender lives.
#[test]
fn every_429_says_when_to_come_back_and_health_is_asked_past_all_limits() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let worker = Worker::start(move |_, stream| {
        let _ = released.lock().unwrap().recv();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok()
    });
    let mut config = config(&[&worker]);
    config.flow.rank_concurrency_max = Some(1);
    config.flow.queue.mode = QueueMode::Off;
    config.limits.in_flight_max = 2;
    let router = router(config);
    let mut holder = Client::connect(router.listen);
    holder.send(&post("/v1/completions", ASK));
    worker.next();
    // Nothing has ever ended here, so nothing is known.
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    let reply = client.reply();
    assert_eq!((reply.status, reply.field("x-forebay-reason")), (429, Some("rejected-busy")));
    let after_ms: u64 = reply.field("retry-after-ms").expect("a time").parse().unwrap();
    assert!((1_000..=1_500).contains(&after_ms), "{after_ms}");
    assert_eq!(reply.field("retry-after"), Some("2"));

    window(router.admin, r#"{"open":"10m"}"#);
    let mut half = Client::connect(router.listen);
    half.send(&post("/tokenize", ASK)[..120]);
    for (path, body) in [
        ("/health", r#"{"status":"ok"}"#.to_owned()),
        ("/ping", r#"{"status":"ok"}"#.to_owned()),
        ("/version", format!(r#"{{"version":"{}"}}"#, env!("CARGO_PKG_VERSION"))),
    ] {
        client.send(
            format!("GET {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").as_bytes(),
        );
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, body.clone()), "{path}");
        client.send(format!("HEAD {path}?x HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        let reply = client.reply_to(true);
        assert_eq!(reply.field("content-length"), Some(body.len().to_string().as_str()));
        client.send(&post(path, b"{}"));
        assert_eq!(client.reply().status, 405);
    }
    assert!(metric(&router, "forebay_requests_total{endpoint=\"health\",code=\"200\"}") > 3.5);
    drop(release);
    assert_eq!(holder.reply().status, 200);
}

#[test]
fn health_says_so_when_no_worker_can_serve() {
    let workers = vec![WorkerConfig {
        url: format!("http://{}", port_for_later()),
        ..WorkerConfig::default()
    }];
    let config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0],
        workers,
        ..Config::default()
    };
    let router = router(config);
    let mut client = Client::connect(router.listen);
    for path in ["/health", "/ping"] {
        client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        let reply = client.reply();
        assert_eq!(
            (reply.status, reply.field("x-forebay-reason")),
            (503, Some("no-healthy-worker"))
        );
    }
}

#[test]
fn a_model_that_is_the_only_one_need_not_be_named() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.workers[0].models = vec!["m".into()];
    let router = router(config);
    let mut client = Client::connect(router.listen);
    let body = br#"{"prompt":"hi"}"#;
    client.send(&post("/v1/completions", body));
    assert_eq!(client.reply().status, 200);
    assert_eq!(worker.next().body, body, "as it came");
}

/// A list of models that is asked of the worker has no prompt: nothing is missed that could be
/// matched.
#[test]
fn a_list_of_models_is_no_prompt() {
    let worker = Worker::json(r#"{"object":"list","data":[]}"#);
    let model_dir = Some("tests/data/tokenizer".into());
    let router = router(Config { policy: Policy::Kv, model_dir, ..config(&[&worker]) });
    let reply = truth::get(router.listen, "/v1/models");
    assert_eq!((reply.status, reply.field("x-forebay-worker").is_some()), (200, true));
    assert_eq!(metric(&router, "forebay_unrenderable_total"), 0.0);
}
