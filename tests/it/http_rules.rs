//! HTTP/1.1 as clients use it: keep-alive, pipelining, expectations, limits, versions, the router's
//! own answers.

use crate::rig::{ASK, Client, Worker, config, post, router, until};

#[test]
fn bodies_and_heads_arrive_as_they_were_sent() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    let body = br#"{ "model" :"m",  "prompt":"h\u0069", "unknown":[1,{"x":null}] }"#;
    let mut client = Client::connect(router.listen);
    let mut request = post("/v1/completions?x=1", body);
    let at = memchr::memmem::find(&request, b"host:").unwrap();
    request.splice(
        at..at,
        *b"X-Mine: yes\r\nConnection: x-drop\r\nX-Drop: 1\r\nX-Request-Id: abc-7\r\n",
    );
    client.send(&request);
    let reply = client.reply();
    let seen = worker.next();
    assert_eq!(seen.body, body);
    assert!(seen.head.starts_with("POST /v1/completions?x=1 HTTP/1.1\r\n"), "{}", seen.head);
    let head = seen.head.to_ascii_lowercase();
    assert!(head.contains("x-mine: yes") && !head.contains("x-drop"), "{head}");
    assert!(head.contains(&format!("host: {}", worker.address)), "{head}");
    assert!(head.contains("x-request-id: abc-7"), "{head}");
    assert_eq!(reply.field("x-request-id"), Some("abc-7"));
}

#[test]
fn pipelined_requests_are_answered_in_order_on_one_connection() {
    let worker = Worker::start(|seen, stream| {
        use std::io::Write;
        let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", seen.body.len());
        stream.write_all(&[reply.as_bytes(), &seen.body].concat()).is_ok()
    });
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    let bodies: Vec<String> =
        (0..50).map(|n| format!(r#"{{"model":"m","prompt":"{n}"}}"#)).collect();
    let all: Vec<u8> =
        bodies.iter().flat_map(|body| post("/v1/completions", body.as_bytes())).collect();
    client.send(&all);
    for body in &bodies {
        assert_eq!(client.reply().text(), *body);
    }
}

#[test]
fn chunked_requests_reach_the_worker_whole() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    for part in ASK.chunks(5) {
        client.send(format!("{:x}\r\n", part.len()).as_bytes());
        client.send(part);
        client.send(b"\r\n");
    }
    client.send(b"0\r\n\r\n");
    client.send(&post("/v1/completions", br#"{"model":"m","prompt":"next"}"#));
    assert_eq!((client.reply().status, client.reply().status), (200, 200));
    assert_eq!(worker.next().body, ASK);
    assert_eq!(worker.next().body, br#"{"model":"m","prompt":"next"}"#);
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    let request = post("/v1/completions", ASK);
    let at = memchr::memmem::find(&request, b"content-type").unwrap();
    client.send(&request[..at]);
    client.send(b"expect: 100-continue\r\n");
    client.send(&request[at..request.len() - ASK.len()]);
    assert_eq!(client.reply().status, 100);
    client.send(ASK);
    assert_eq!(client.reply().status, 200);
}

/// Issue 35, F6: the body of a 413 was asked for first. RFC 9110 section 10.1.1.
#[test]
fn a_body_that_its_head_refuses_is_not_asked_for() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.limits.body_bytes_max = 60_000;
    config.limits.buffered_bytes_max = 65_536;
    let router = router(config);
    let mut holder = Client::connect(router.listen);
    let held = format!(r#"{{"model":"m","prompt":"{}"#, "x".repeat(20_000));
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n";
    holder.send([head, &held].concat().as_bytes());
    const JSON: &str = "content-type: application/json\r\n";
    // As long as the half of a body is in memory, a long one has no room beside it.
    until("the half is read", || {
        let mut client = Client::connect(router.listen);
        let fields = "expect: 100-continue\r\ncontent-length: 50000\r\n";
        client.send(
            format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{JSON}{fields}\r\n").as_bytes(),
        );
        client.reply().status == 429
    });
    for (path, fields, status) in [
        ("/v1/completions", "content-length: 60001\r\n", 413),
        ("/v1/messages", "content-length: 1000000000000000\r\n", 413),
        ("/v1/completions", "content-length: 9\r\nx-data-parallel-rank: one\r\n", 400),
        ("/v1/completions", "content-length: 9\r\ncontent-encoding: gzip\r\n", 415),
        ("/v1/audio/transcriptions", "content-length: 9\r\ncontent-type: multipart/mixed\r\n", 400),
        (
            "/v1/audio/transcriptions",
            "transfer-encoding: chunked\r\ncontent-type: multipart/form-data\r\n",
            400,
        ),
        ("/nothing", "content-length: 9\r\n", 404),
    ] {
        let mut client = Client::connect(router.listen);
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n{fields}\r\n");
        client.send(head.as_bytes());
        let reply = client.reply();
        assert_eq!(reply.status, status, "{path} {fields}: {}", reply.text());
        assert!(client.at_end(), "{path} {fields}");
    }
    // What only the body shows comes behind the 100.
    let mut client = Client::connect(router.listen);
    let chunked = "expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n";
    client.send(format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{chunked}").as_bytes());
    assert_eq!(client.reply().status, 100);
    client.send(b"ffffff\r\n");
    assert_eq!(client.reply().status, 413);
}

#[test]
fn limits_have_their_status() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.limits.body_bytes_max = 1_000;
    let router = router(config);
    let cases: [(Vec<u8>, u16); 5] = [
        (post("/v1/completions", &[b' '; 2_000]), 413),
        (
            b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: "
                .iter()
                .copied()
                .chain([b'y'; 70_000])
                .collect(),
            431,
        ),
        (post("/v1/nothing", b"{}"), 404),
        (b"GET /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), 405),
        (post("/v1/completions", b"{nope"), 400),
    ];
    for (request, status) in cases {
        let mut client = Client::connect(router.listen);
        client.send(&request);
        let reply = client.reply();
        assert_eq!(reply.status, status, "{}", reply.text());
        assert!(reply.field("x-forebay-reason").is_some());
        assert!(reply.text().contains("\"error\""), "{}", reply.text());
    }
}

#[test]
fn a_refused_short_body_leaves_the_connection_usable() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/nothing", &[b'x'; 50_000]));
    assert_eq!(client.reply().status, 404);
    client.send(&post("/v1/completions", ASK));
    assert_eq!(client.reply().status, 200);
}

#[test]
fn the_anthropic_route_refuses_in_its_own_shape() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/messages", b"[]"));
    let reply = client.reply();
    assert_eq!(reply.status, 400);
    assert!(reply.text().starts_with(r#"{"type":"error","error":{"type":"#), "{}", reply.text());
}

#[test]
fn an_http_1_0_client_gets_the_body_and_the_end() {
    let worker = Worker::start(|_, stream| {
        use std::io::Write;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
            .is_ok()
    });
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    let request = String::from_utf8(post("/v1/completions", ASK)).unwrap();
    client.send(request.replace("HTTP/1.1", "HTTP/1.0").as_bytes());
    let reply = client.reply();
    assert_eq!((reply.status, reply.text()), (200, "hi".into()));
    assert!(reply.field("transfer-encoding").is_none());
    assert!(client.at_end());
}

#[test]
fn full_shards_refuse_and_recover() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let worker = Worker::start(move |seen, stream| {
        use std::io::Write;
        if seen.head.contains("hold") {
            let _ = released.lock().unwrap().recv();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok()
    });
    let mut config = config(&[&worker]);
    config.limits.in_flight_max = 1;
    let router = router(config);
    let mut first = Client::connect(router.listen);
    first.send(&post("/v1/completions?hold", ASK));
    worker.next();
    let mut second = Client::connect(router.listen);
    second.send(&post("/v1/completions", ASK));
    let reply = second.reply();
    assert_eq!(reply.status, 429);
    assert_eq!(reply.field("x-forebay-reason"), Some("rejected-in-flight"));
    let after_ms: u64 = reply.field("retry-after-ms").unwrap().parse().unwrap();
    assert!((1_000..=1_500).contains(&after_ms), "{after_ms}: a second, and not for all the same");
    release.send(()).unwrap();
    assert_eq!(first.reply().status, 200);
    second.send(&post("/v1/completions", ASK));
    assert_eq!(second.reply().status, 200);
}

#[test]
fn announced_bodies_take_no_room_until_they_come() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.limits.buffered_bytes_max = 100_000;
    let router = router(config);
    let mut announcer = Client::connect(router.listen);
    announcer.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\n{");
    let mut client = Client::connect(router.listen);
    let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(50_000));
    for _ in 0..3 {
        client.send(&post("/v1/completions", body.as_bytes()));
        assert_eq!(client.reply().status, 200);
    }
    let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(100_000));
    client.send(&post("/v1/completions", body.as_bytes()));
    assert_eq!(client.reply().status, 429);
}

/// C9: it was a 400 that spoke of JSON.
#[test]
fn a_compressed_body_is_refused_by_its_name() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    let with = |field: &str| {
        let request = String::from_utf8(post("/v1/completions", ASK)).unwrap();
        request.replacen("host:", &format!("{field}\r\nhost:"), 1)
    };
    for field in ["Content-Encoding: gzip", "content-encoding: identity\r\ncontent-encoding: br"] {
        client.send(with(field).as_bytes());
        let reply = client.reply();
        assert_eq!(reply.status, 415, "{field}");
        assert!(reply.text().contains("Content-Encoding"), "{}", reply.text());
        assert_eq!(reply.field("accept-encoding"), Some("identity"));
    }
    client.send(with("Content-Encoding: Identity").as_bytes());
    assert_eq!(client.reply().status, 200, "the connection goes on");
    assert!(worker.next().head.contains("Content-Encoding: Identity\r\n"));
}
