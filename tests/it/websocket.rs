//! O5: handshakes of WebSockets: which go to a worker, which are refused, and what a worker may
//! answer.

use crate::rig::pairs::{pair_config, ready};
use crate::rig::stub::Stub;
use crate::rig::stub_pages::Pages;
use crate::rig::websocket::{ACCEPT, KEY, echo, switch, upgrade};
use crate::rig::{
    ASK, Client, PATIENCE, Reply, Worker, admin_post, config, metric, post, router, until,
};
use forebay::config::{Config, CorsConfig, ModelConfig};
use forebay::server::ServerHandle;
use std::io::Write;
use std::path::PathBuf;

const PATH: &str = "/v1/realtime";

fn ask(handle: &ServerHandle, request: &[u8]) -> Reply {
    let mut client = Client::connect(handle.listen);
    client.send(request);
    client.reply()
}

fn refused(handle: &ServerHandle, request: &[u8]) -> (u16, String) {
    let reply = ask(handle, request);
    let reason = reply.field("x-forebay-reason").unwrap_or_default().to_owned();
    (reply.status, reason)
}

/// A worker that answers each handshake with these bytes.
fn answers(head: &'static str) -> Worker {
    Worker::start(move |_, stream| stream.write_all(head.as_bytes()).is_ok())
}

#[test]
fn a_handshake_goes_to_a_worker_and_its_answer_to_the_client() {
    let worker = echo();
    let handle = router(config(&[&worker]));
    let mut client = Client::connect(handle.listen);
    let fields =
        "sec-websocket-protocol: realtime\r\nproxy-authorization: x\r\norigin: http://router\r\n";
    client.send(&upgrade(&format!("{PATH}?model=m&x=1"), fields));
    let reply = client.reply();
    assert_eq!(reply.status, 101);
    for (name, value) in [
        ("upgrade", "websocket"),
        ("connection", "upgrade"),
        ("sec-websocket-accept", ACCEPT),
        ("sec-websocket-protocol", "realtime"),
        ("x-forebay-worker", &worker.address.to_string()),
    ] {
        assert_eq!(reply.field(name), Some(value), "{name} in {}", reply.head);
    }
    assert!(reply.field("x-request-id").is_some() && reply.field("content-length").is_none());
    client.send(b"frames");
    assert_eq!(client.bytes(6), b"frames");
    let seen = worker.next().head.to_ascii_lowercase();
    assert!(seen.starts_with("get /v1/realtime?model=m&x=1 http/1.1\r\n"), "{seen}");
    for line in ["\r\nupgrade: websocket\r\n", "\r\nconnection: upgrade\r\n", "\r\nvia: 1.1"] {
        assert_eq!(seen.matches(line).count(), 1, "{line} in {seen}");
    }
    assert!(seen.contains(&format!("sec-websocket-key: {}\r\n", KEY.to_ascii_lowercase())));
    assert!(seen.contains("sec-websocket-version: 13\r\n") && !seen.contains("proxy-auth"));
    assert!(!seen.contains("content-length") && !seen.contains("keep-alive"), "{seen}");
    drop(client);
    until("it is counted", || {
        let name = "forebay_requests_total{endpoint=\"websocket\",code=\"101\"}";
        metric(&handle, name) == 1.0 && metric(&handle, "forebay_in_flight") == 0.0
    });
}

#[test]
fn other_paths_of_engines_go_too_and_calls_of_operators_do_not() {
    let worker = echo();
    let handle = router(config(&[&worker]));
    for path in ["/v1/other", "/v2/a/b", "/v1/audio/stream"] {
        assert_eq!(ask(&handle, &upgrade(path, "")).status, 101, "{path}");
        worker.next();
    }
    for (path, wanted) in [
        ("/v1/flush_cache", (404, "not-found")),
        ("/v1/load_lora_adapter", (404, "not-found")),
        ("/realtime", (404, "not-found")),
        ("/v1/%72ealtime", (404, "not-found")),
        ("/v1/chat/completions", (405, "method-not-allowed")),
        ("/v1/responses", (405, "method-not-allowed")),
        ("/v1/responses/resp_1/cancel", (405, "method-not-allowed")),
    ] {
        assert_eq!(refused(&handle, &upgrade(path, "")), (wanted.0, wanted.1.to_owned()), "{path}");
    }
    // A page is answered as if nothing was asked for.
    assert_eq!(ask(&handle, &upgrade("/version", "")).status, 200);
    assert!(worker.seen.try_recv().is_err());
}

#[test]
fn what_is_no_handshake_is_refused() {
    let worker = echo();
    let handle = router(config(&[&worker]));
    let good = String::from_utf8(upgrade(PATH, "")).unwrap();
    for (from, to) in [
        ("upgrade: websocket\r\n", ""),
        ("upgrade: websocket", "upgrade: h2c"),
        ("keep-alive, Upgrade", "keep-alive"),
        ("sec-websocket-version: 13\r\n", ""),
        ("version: 13", "version: 8"),
        ("sec-websocket-key: ", "sec-websocket-key: x"),
        ("sec-websocket-key: ", "x-key: "),
        ("host: router\r\n", "host: router\r\ncontent-length: 3\r\n"),
        ("host: router\r\n", "host: router\r\ntransfer-encoding: chunked\r\n"),
        ("?", "?model=a&model=b"),
    ] {
        let wrong = if from == "?" {
            good.replacen(PATH, &format!("{PATH}{to}"), 1)
        } else {
            good.replacen(from, to, 1)
        };
        assert_ne!(wrong, good, "{from}");
        let status = ask(&handle, wrong.as_bytes()).status;
        assert_eq!(status, 400, "{wrong}");
    }
    let old = good.replacen("HTTP/1.1", "HTTP/1.0", 1);
    assert_eq!(ask(&handle, old.as_bytes()).status, 400);
    let posted = good.replacen("GET", "POST", 1);
    assert_eq!(ask(&handle, posted.as_bytes()).status, 405);
    assert!(worker.seen.try_recv().is_err(), "none has reached the worker");
}

#[test]
fn a_page_of_another_site_gets_none_unless_it_is_listed() {
    let worker = echo();
    let origin = |origin: &str| upgrade(PATH, &format!("origin: {origin}\r\n"));
    let strict = router(config(&[&worker]));
    let not_allowed = (403, "origin-not-allowed".to_owned());
    for other in ["https://a.example", "null", "http://router.example", "router"] {
        assert_eq!(refused(&strict, &origin(other)), not_allowed, "{other}");
    }
    assert_eq!(ask(&strict, &origin("https://router")).status, 101);
    let cors = CorsConfig { origins: vec!["https://a.example".into()], ..CorsConfig::default() };
    let open = router(Config { cors, ..config(&[&worker]) });
    let reply = ask(&open, &origin("https://a.example"));
    let told = reply.field("access-control-allow-origin");
    assert_eq!((reply.status, told), (101, Some("https://a.example")));
    assert_eq!(refused(&open, &origin("https://b.example")), not_allowed);
}

#[test]
fn only_the_answer_to_the_own_key_switches() {
    let lines = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    let wrong: [String; 5] = [
        format!("{lines}Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOp=\r\n\r\n"),
        format!("{lines}\r\n"),
        format!(
            "HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
        ),
        format!("HTTP/1.1 101 X\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n"),
        format!("{lines}Sec-WebSocket-Accept: {ACCEPT}\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n"),
    ];
    for head in wrong {
        let worker = answers(head.clone().leak());
        let handle = router(config(&[&worker]));
        let reply = ask(&handle, &upgrade(PATH, ""));
        assert_eq!(reply.status, 502, "{head}");
        assert!(!reply.head.contains("sec-websocket"), "{}", reply.head);
        assert_eq!(metric(&handle, "forebay_tunnels_opened_total"), 0.0);
    }
}

#[test]
fn a_101_that_nobody_has_asked_for_stays_an_error() {
    let worker = Worker::start(|_, stream| {
        switch(stream);
        true
    });
    let handle = router(config(&[&worker]));
    assert_eq!(ask(&handle, &post("/v1/completions", ASK)).status, 502);
    let asking = String::from_utf8(post("/v1/completions", ASK)).unwrap();
    let fields = format!(
        "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: {KEY}\r\n\
         sec-websocket-version: 13\r\nhost:"
    );
    assert_eq!(ask(&handle, asking.replacen("host:", &fields, 1).as_bytes()).status, 502);
    assert!(!worker.next().head.contains("upgrade"));
    assert!(!worker.next().head.contains("upgrade"), "the field goes no further");
}

#[test]
fn another_answer_is_passed_on_and_ends_the_clients_connection_alone() {
    let worker = answers("HTTP/1.1 403 Forbidden\r\nx-why: no\r\ncontent-length: 2\r\n\r\nno");
    let handle = router(config(&[&worker]));
    for _ in 0..2 {
        let mut client = Client::connect(handle.listen);
        client.send(&upgrade(PATH, ""));
        let reply = client.reply();
        assert_eq!((reply.status, reply.text(), reply.complete), (403, "no".into(), true));
        assert_eq!((reply.field("x-why"), reply.field("connection")), (Some("no"), Some("close")));
        assert!(client.at_end());
    }
    assert_eq!(metric(&handle, "forebay_upstream_connects_total"), 1.0, "the worker's is kept");
}

/// Bytes behind the head are frames for a worker that switches, and nothing else.
#[test]
fn early_bytes_wait_for_the_101_and_are_no_request() {
    let (tell, told) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let tell = std::sync::Mutex::new(tell);
    let gone = std::sync::Mutex::new(gone);
    let worker = Worker::start(move |seen, stream| {
        if seen.head.contains("refused") {
            return stream.write_all(b"HTTP/1.1 400 X\r\ncontent-length: 0\r\n\r\n").is_ok();
        }
        stream.set_nonblocking(true).unwrap();
        gone.lock().unwrap().recv().unwrap();
        let before = stream.peek(&mut [0; 16]).map_err(|error| error.kind());
        stream.set_nonblocking(false).unwrap();
        switch(stream);
        let mut early = [0; 5];
        std::io::Read::read_exact(stream, &mut early).unwrap();
        tell.lock().unwrap().send((before, early)).unwrap();
        stream.write_all(b"ok").is_ok()
    });
    let handle = router(config(&[&worker]));
    let mut client = Client::connect(handle.listen);
    client.send(&[&upgrade(PATH, "")[..], b"early"].concat());
    worker.next();
    std::thread::sleep(std::time::Duration::from_millis(100));
    go.send(()).unwrap();
    assert_eq!(client.reply().status, 101);
    assert_eq!(
        told.recv_timeout(PATIENCE).unwrap(),
        (Err(std::io::ErrorKind::WouldBlock), *b"early")
    );
    assert_eq!(client.bytes(2), b"ok");

    let smuggled = post("/v1/completions", ASK);
    for request in [
        upgrade("/v1/refused", ""),
        upgrade("/v1/refused", "origin: http://a\r\n"),
        upgrade("/v1/refused?model=a&model=b", ""),
        upgrade("/v1/flush_cache", ""),
    ] {
        let mut client = Client::connect(handle.listen);
        client.send(&[&request[..], &smuggled].concat());
        assert!(matches!(client.reply().status, 400 | 403 | 404));
        assert!(client.at_end(), "no second answer");
    }
    assert!(worker.next().head.contains("/v1/refused"));
    assert!(worker.seen.try_recv().is_err(), "what followed was no request");
}

#[test]
fn the_model_is_in_the_query() {
    let base = echo();
    let other = echo();
    let mut config = config(&[&base, &other]);
    config.workers[0].models = vec!["org/base".into()];
    config.workers[1].models = vec!["other".into()];
    config.models =
        vec![ModelConfig { name: "alias".into(), to: "other".into(), ..ModelConfig::default() }];
    let handle = router(config);
    let worker = |query: &str| {
        let reply = ask(&handle, &upgrade(&format!("{PATH}{query}"), ""));
        assert_eq!(reply.status, 101, "{query}: {}", reply.text());
        reply.field("x-forebay-worker").unwrap() == base.address.to_string()
    };
    for _ in 0..4 {
        assert!(worker("?model=org/base") && worker("?x=y&model=org%2Fbase"));
        assert!(!worker("?model=other") && !worker("?model=alias"));
    }
    for (query, wanted) in [
        ("", (400, "missing-model")),
        ("?model=", (400, "missing-model")),
        ("?model=other&model=org/base", (400, "missing-model")),
        ("?model=third", (404, "unknown-model")),
    ] {
        let (status, reason) = refused(&handle, &upgrade(&format!("{PATH}{query}"), ""));
        assert_eq!((status, &*reason), wanted, "{query}");
    }
    let reply = ask(&handle, &upgrade(PATH, ""));
    assert!(reply.text().contains("?model="), "{}", reply.text());
}

#[test]
fn a_key_counts_and_must_be_for_all_models_of_the_worker() {
    let worker = echo();
    let api_keys = Some(PathBuf::from("tests/data/api_keys/two.toml"));
    let keyed = |models: &[&str]| {
        let mut config = Config { api_keys: api_keys.clone(), ..config(&[&worker]) };
        config.workers[0].models = models.iter().map(|model| (*model).to_owned()).collect();
        router(config)
    };
    let one = keyed(&["m"]);
    let two = keyed(&["m", "n"]);
    let asks = |handle, model: &str, key: &str| {
        let key = format!("authorization: Bearer {key}\r\n");
        ask(handle, &upgrade(&format!("{PATH}?model={model}"), &key)).status
    };
    assert_eq!(ask(&one, &upgrade(PATH, "")).status, 401);
    assert_eq!((asks(&one, "m", "gold-key"), asks(&two, "n", "gold-key")), (101, 101));
    assert!(!worker.next().head.contains("gold-key"), "the worker does not see it");
    assert_eq!(asks(&one, "m", "some-key"), 101, "for the model m");
    assert_eq!(asks(&two, "n", "some-key"), 403);
    assert_eq!(asks(&two, "m", "some-key"), 403, "its frames could name n");
}

#[test]
fn one_that_is_open_is_a_request_in_flight() {
    let worker = echo();
    let mut config = config(&[&worker]);
    config.flow.rank_concurrency_max = Some(1);
    config.flow.queue.mode = forebay::config::QueueMode::Off;
    let handle = router(config);
    let mut first = Client::connect(handle.listen);
    first.send(&upgrade(PATH, ""));
    assert_eq!(first.reply().status, 101);
    assert_eq!(metric(&handle, "forebay_in_flight"), 1.0);
    let open = |name: &str| metric(&handle, &format!("forebay_tunnels_{name}_total"));
    assert_eq!((open("opened"), open("closed")), (1.0, 0.0));
    let (status, reason) = refused(&handle, &upgrade(PATH, ""));
    assert_eq!((status, &*reason), (429, "rejected-busy"));
    drop(first);
    until("the place is free", || ask(&handle, &upgrade(PATH, "")).status == 101);
    assert!(open("closed") >= 1.0);
}

#[test]
fn a_pair_serves_none_but_a_rank_that_can_compute_prompts_does() {
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    let workers = [(&prefill, ""), (&decode, "")];
    let handle = ready(pair_config(&workers, "fallback = \"reject\""), &workers);
    let reply = ask(&handle, &upgrade(PATH, ""));
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains("cannot be split"), "{}", reply.text());
    assert!(prefill.arrivals().is_empty() && decode.arrivals().is_empty());
    let prefill = Stub::start(Pages::vllm());
    let decode = Stub::start(Pages::vllm());
    let workers = [(&prefill, "role = \"prefill\""), (&decode, "role = \"decode\"")];
    let handle = ready(pair_config(&workers, ""), &workers);
    let reply = ask(&handle, &upgrade(PATH, ""));
    assert_eq!(reply.status, 404, "the stub knows no such page");
    let address = decode.url().replace("http://", "");
    assert_eq!(reply.field("x-forebay-worker"), Some(&*address));
}

#[test]
fn a_worker_that_is_taken_out_gets_none() {
    let out = echo();
    let left = echo();
    let handle = router(config(&[&out, &left]));
    let mut client = Client::connect(handle.admin);
    client.send(&admin_post(&format!("/workers/{}/drain", out.address), b""));
    assert_eq!(client.reply().status, 200);
    for _ in 0..8 {
        let reply = ask(&handle, &upgrade(PATH, ""));
        assert_eq!(reply.field("x-forebay-worker"), Some(&*left.address.to_string()));
    }
}

/// Others would lose the rank to whoever makes its engine close.
#[test]
fn a_rank_that_closes_a_websocket_is_not_blamed() {
    let worker = Worker::start(|request, stream| {
        if request.head.starts_with("GET /v1/unread ") {
            // Without a byte of an answer.
            return false;
        }
        if !request.head.contains("sec-websocket-key") {
            let body = r#"{"object":"list","data":[{"id":"m"}]}"#;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            return stream
                .write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())
                .is_ok();
        }
        switch(stream);
        // What comes then is never read: its close is a reset.
        let _ = stream.peek(&mut [0]);
        false
    });
    let mut config = config(&[&worker]);
    config.health.enabled = true;
    let handle = router(config);
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(handle.listen)).collect();
    for client in &mut clients {
        client.send(&upgrade(PATH, ""));
        assert_eq!(client.reply().status, 101);
    }
    for client in &mut clients {
        client.send(&[0; 1_000]);
        until("the tunnel ends", || client.try_more().is_ok_and(|count| count == 0));
    }
    for _ in 0..8 {
        assert_eq!(ask(&handle, &upgrade("/v1/unread", "")).status, 502);
    }
    assert_eq!(ask(&handle, &post("/v1/completions", ASK)).status, 200);
}

/// A handshake that comes back to its router is refused, and its connection ends: bytes behind the
/// head are frames, and must not be read as a request.
#[test]
fn a_handshake_in_a_loop_ends_its_connection() {
    let worker = echo();
    let handle = router(config(&[&worker]));
    let hops: String = (0..5).map(|hop| format!("via: 1.1 forebay-{hop}\r\n")).collect();
    for path in [PATH, "/v1/completions", "/nowhere"] {
        let mut client = Client::connect(handle.listen);
        let mut sent = upgrade(&format!("{path}?model=m"), &hops);
        sent.extend_from_slice(&post("/v1/completions", ASK));
        client.send(&sent);
        let reply = client.reply();
        let reason = reply.field("x-forebay-reason");
        assert_eq!((reply.status, reason), (508, Some("request-loop")), "{path}");
        assert_eq!(reply.field("connection"), Some("close"), "{path}: {}", reply.head);
        assert!(client.at_end(), "{path}: bytes behind the head have an answer");
    }
}
