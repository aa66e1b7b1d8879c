//! TLS to workers: requests, health, discovery and load reports, and whom the router believes.

use crate::rig::tls_front::Manners;
use crate::rig::{
    ASK, Certificates, Client, Reply, TlsFront, Worker, admin, any_port, config, metric, post,
    router, until, usable,
};
use forebay::config::{Config, UpstreamTlsConfig, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineText};
use forebay::server::ServerHandle;
use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

/// A router in front of these URLs that believes one authority.
fn to(urls: &[String], certificates: &Certificates) -> Config {
    let mut config = config(&[]);
    let worker = |url: &String| WorkerConfig { url: url.clone(), ..WorkerConfig::default() };
    config.workers = urls.iter().map(worker).collect();
    config.upstream_tls =
        UpstreamTlsConfig { ca: Some(certificates.ca()), ..UpstreamTlsConfig::default() };
    config
}

fn ask(handle: &ServerHandle) -> Reply {
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", ASK));
    client.reply()
}

fn count(handle: &ServerHandle, name: &str) -> u64 {
    metric(handle, &format!("forebay_upstream_{name} ")).to_string().parse().unwrap()
}

/// A worker that sends back what it was sent.
fn echo() -> Worker {
    Worker::start(|seen, stream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", seen.body.len());
        stream.write_all(&[head.as_bytes(), &seen.body].concat()).is_ok()
    })
}

#[test]
fn requests_of_every_length_on_one_connection_in_both_versions() {
    let certificates = Certificates::new();
    let shown = certificates.sign("worker", &["localhost"]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let worker = echo();
        let versions = [version];
        let manners = Manners { versions: Some(&versions), ..Manners::default() };
        let front = TlsFront::with(worker.address, &shown, manners);
        let handle = router(to(&[front.url("localhost")], &certificates));
        let mut client = Client::connect(handle.listen);
        for bytes in [10, 5_000, 14_000, 16_384, 70_000, 1_000_000, 4_000_000, 10] {
            let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(bytes));
            client.send(&post("/v1/completions", body.as_bytes()));
            let reply = client.reply();
            assert_eq!((reply.status, reply.complete), (200, true), "{bytes}: {}", reply.text());
            assert!(reply.body == body.as_bytes(), "{bytes}");
            let host = worker.next().head;
            assert!(host.contains(&format!("host: localhost:{}", front.address.port())), "{host}");
        }
        // Long requests have connections of their own kind.
        assert!(count(&handle, "handshakes_total") <= 2);
        assert_eq!(count(&handle, "handshakes_failed_total"), 0);
        assert!(count(&handle, "reused_total") >= 6);
        front.cut_all();
        until("the next connection is resumed", || {
            assert_eq!(ask(&handle).status, 200);
            front.cut_all();
            count(&handle, "handshakes_resumed_total") > 0
        });
    }
}

#[test]
fn a_stream_passes_event_by_event_and_a_cut_is_no_end() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let worker = Worker::start(move |seen, stream| {
        // The end of the connection is the end of the body.
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").unwrap();
        for _ in 0..3 {
            stream.write_all(b"data: x\n\n").unwrap();
            gone.lock().unwrap().recv().unwrap();
        }
        if seen.head.contains("?cut") {
            // Until the front is told to cut.
            let _ = std::io::Read::read(stream, &mut [0]);
        }
        false
    });
    let certificates = Certificates::new();
    let front = TlsFront::of(worker.address, &certificates.sign("worker", &["localhost"]));
    let handle = router(to(&[front.url("localhost")], &certificates));
    for (path, is_whole) in [("/v1/completions", true), ("/v1/completions?cut", false)] {
        let mut client = Client::connect(handle.listen);
        client.send(&post(path, br#"{"model":"m","prompt":"hi","stream":true}"#));
        for _ in 0..3 {
            client.until_body(b"data: x\n\n");
            go.send(()).unwrap();
        }
        if is_whole {
            client.until_body(b"0\r\n\r\n");
        } else {
            front.cut_all();
            client.until_body(b"error");
            assert!(!client.ends_with_chunk(), "no proper end");
        }
    }
    assert_eq!(metric(&handle, "forebay_cut_mid_stream_total").to_bits(), 1_f64.to_bits());
}

#[test]
fn only_the_right_name_of_the_right_authority_is_believed() {
    let worker = echo();
    let certificates = Certificates::new();
    let others = Certificates::new();
    let right = TlsFront::of(worker.address, &certificates.sign("right", &["w.example"]));
    let wrong = TlsFront::of(worker.address, &others.sign("wrong", &["localhost"]));
    let other_name = "its TLS certificate is for another name";
    for (front, host, name, status, words) in [
        (&right, "127.0.0.1", Some("w.example"), 200, ""),
        (&right, "localhost", Some("w.example"), 200, ""),
        (&right, "localhost", None, 502, other_name),
        (&right, "127.0.0.1", None, 502, other_name),
        (&right, "localhost", Some("other.example"), 502, other_name),
        (&wrong, "localhost", None, 502, "its TLS certificate has an unknown issuer"),
    ] {
        let mut config = to(&[front.url(host)], &certificates);
        config.workers[0].tls.tls_name = name.map(str::to_owned);
        let handle = router(config);
        let reply = ask(&handle);
        assert_eq!(reply.status, status, "{host} {name:?}");
        assert!(reply.text().contains(words), "{}", reply.text());
        assert_eq!(count(&handle, "handshakes_failed_total") > 0, status != 200);
    }
    // The worker's own authority wins.
    let mut config = to(&[wrong.url("localhost")], &certificates);
    config.workers[0].tls.tls_ca = Some(others.ca());
    assert_eq!(ask(&router(config)).status, 200);
    // An address in the certificate.
    let shown = certificates.sign("address", &["127.0.0.1"]);
    let front = TlsFront::of(worker.address, &shown);
    assert_eq!(ask(&router(to(&[front.url("127.0.0.1")], &certificates))).status, 200);
}

#[test]
fn a_worker_may_ask_for_a_certificate() {
    let worker = echo();
    let certificates = Certificates::new();
    let shown = certificates.sign("worker", &["localhost"]);
    let ca = certificates.ca();
    let manners = Manners { clients: Some(&ca), ..Manners::default() };
    let front = TlsFront::with(worker.address, &shown, manners);
    let mut config = to(&[front.url("localhost")], &certificates);
    assert_eq!(ask(&router(config.clone())).status, 502);
    let own = certificates.sign("router", &["router"]);
    config.upstream_tls.cert = Some(own.cert);
    config.upstream_tls.key = Some(own.key);
    assert_eq!(ask(&router(config)).status, 200);
}

#[test]
fn health_discovery_and_load_reports_go_over_tls() {
    let text = EngineText::load(None).expect("the built-in tokenizer");
    let engine = EngineConfig { listen: any_port(), ..EngineConfig::default() };
    let engine = Engine::start_with(engine, text).expect("the engine starts");
    let behind = engine.url().strip_prefix("http://").unwrap().parse().unwrap();
    let certificates = Certificates::new();
    let front = TlsFront::of(behind, &certificates.sign("worker", &["w.example"]));
    let mut config = to(&[front.url("127.0.0.1")], &certificates);
    config.workers[0].tls.tls_name = Some("w.example".to_owned());
    config.health.enabled = true;
    config.health.interval = Duration::from_millis(50);
    let handle = router(config);
    until("the worker is up", || usable(&handle) == 1);
    assert!(admin(&handle, "/workers").text().contains("\"sim\""), "its model is known");
    until("its load is asked for", || metric(&handle, "forebay_load_scrape_seconds_count") > 0.0);
    let mut client = Client::connect(handle.listen);
    let body = br#"{"model":"sim","prompt":"hi","max_tokens":3}"#;
    client.send(&post("/v1/completions", body));
    assert_eq!(client.reply().status, 200);
}

#[test]
fn a_connection_that_ended_while_it_was_idle_costs_no_request() {
    let worker = echo();
    let certificates = Certificates::new();
    let front = TlsFront::of(worker.address, &certificates.sign("worker", &["localhost"]));
    let handle = router(to(&[front.url("localhost")], &certificates));
    for _ in 0..20 {
        assert_eq!(ask(&handle).status, 200);
        front.cut_all();
    }
    assert!(front.accepted_count() > 10, "{}", front.accepted_count());
}

#[test]
fn a_worker_that_shakes_no_hands_is_left_for_another() {
    let worker = echo();
    let certificates = Certificates::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("https://localhost:{}", silent.local_addr().unwrap().port());
    let plain_url = format!("https://localhost:{}", worker.address.port());
    let front = TlsFront::of(worker.address, &certificates.sign("worker", &["localhost"]));
    for bad in [silent_url, plain_url] {
        let mut config = to(&[bad, front.url("localhost")], &certificates);
        config.timeouts.connect = Duration::from_millis(100);
        let handle = router(config);
        for _ in 0..4 {
            assert_eq!(ask(&handle).status, 200);
        }
        assert!(count(&handle, "handshakes_failed_total") > 0);
    }
}
