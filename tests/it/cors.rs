//! Pages of other sites, as browsers send their requests: who may read answers, and who is told
//! before a request is sent.

use crate::rig::{ASK, Client, Reply, Worker, config, metric, post, router};
use forebay::config::Config;
use std::io::Write;

const ORIGIN: &str = "https://app.example";

/// A router that lets the pages of [`ORIGIN`] read its answers.
fn open(workers: &[&Worker]) -> Config {
    let mut config = config(workers);
    config.cors.origins = vec!["https://other.example".into(), ORIGIN.into()];
    config
}

fn asking(path: &str, body: &[u8], origin: &str) -> Vec<u8> {
    let request = String::from_utf8(post(path, body)).unwrap();
    request.replacen("host:", &format!("Origin: {origin}\r\nhost:"), 1).into_bytes()
}

fn preflight(origin: &str) -> String {
    format!(
        "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\n\
         access-control-request-method: POST\r\n\
         access-control-request-headers: authorization,content-type,x-stainless-os\r\n\r\n"
    )
}

fn asked(client: &mut Client, request: &[u8]) -> Reply {
    client.send(request);
    client.reply()
}

/// All fields that a browser looks at, in their order.
fn cors(reply: &Reply) -> Vec<&str> {
    let is_of_cors = |line: &&str| line.starts_with("access-control-") || line.starts_with("vary:");
    reply.head.lines().filter(is_of_cors).collect()
}

/// Like vLLM, which answers each origin.
fn worker_with_fields_of_its_own() -> Worker {
    Worker::start(|_, stream| {
        let reply = "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\n\
            access-control-expose-headers: x-mine\r\naccess-control-allow-credentials: true\r\n\
            Vary: accept-encoding, Origin\r\nvary: Origin\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(reply.as_bytes()).is_ok()
    })
}

#[test]
fn a_listed_page_reads_every_answer_and_the_routers_fields_win() {
    let worker = worker_with_fields_of_its_own();
    let router = router(open(&[&worker]));
    let mut client = Client::connect(router.listen);
    let own =
        ["access-control-allow-origin: https://app.example", "access-control-expose-headers: *"];
    let reply = asked(&mut client, &asking("/v1/completions", ASK, ORIGIN));
    assert_eq!(reply.status, 200);
    let fields = cors(&reply);
    assert!(own.iter().all(|field| fields.contains(field)), "{fields:?}");
    assert!(fields.contains(&"vary: origin") && reply.head.contains("Vary: accept-encoding\r\n"));
    assert_eq!(fields.iter().filter(|field| field.starts_with("vary:")).count(), 1, "{fields:?}");
    assert_eq!(reply.head.to_ascii_lowercase().matches("access-control-").count(), 2);
    for (path, body, status) in [
        ("/v1/completions", &b"{nope"[..], 400),
        ("/v1/nothing", b"{}", 404),
        ("/v1/models", b"{}", 405),
        ("/v1/messages", b"[]", 400),
    ] {
        let reply = asked(&mut client, &asking(path, body, ORIGIN));
        assert_eq!((reply.status, cors(&reply).len()), (status, 3), "{path}: {}", reply.head);
        assert!(cors(&reply).contains(&own[0]));
    }
    for path in ["/v1/models", "/health", "/version"] {
        let get = format!("GET {path} HTTP/1.1\r\nhost: x\r\norigin: {ORIGIN}\r\n\r\n");
        let reply = asked(&mut client, get.as_bytes());
        assert_eq!(cors(&reply)[0], own[0], "{path}: {}", reply.head);
    }
}

#[test]
fn a_browser_that_asks_first_is_answered_without_a_worker() {
    let worker = Worker::json("{}");
    let mut config = open(&[&worker]);
    config.cors.headers = Vec::new();
    let router = router(config);
    let mut client = Client::connect(router.listen);
    let reply = asked(&mut client, preflight(ORIGIN).as_bytes());
    assert_eq!((reply.status, &reply.body[..]), (204, &b""[..]));
    assert_eq!(
        cors(&reply),
        [
            "access-control-allow-origin: https://app.example",
            "access-control-allow-methods: GET, HEAD, POST",
            "access-control-allow-headers: authorization,content-type,x-stainless-os",
            "access-control-max-age: 600",
            "vary: origin, access-control-request-method, access-control-request-headers",
        ]
    );
    assert!(reply.field("x-request-id").is_some() && reply.field("content-length").is_none());
    let refused = asked(&mut client, preflight("https://evil.example").as_bytes());
    assert_eq!(
        (refused.status, refused.field("x-forebay-reason")),
        (403, Some("origin-not-allowed"))
    );
    assert_eq!(cors(&refused), ["vary: origin"]);
    assert!(metric(&router, "forebay_rejected_total{reason=\"origin-not-allowed\"") > 0.5);
    // The connection goes on, and an OPTIONS that is no question of a browser is a 405 as before.
    let plain = b"OPTIONS /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n";
    assert_eq!(asked(&mut client, plain).status, 405);
    let reply = asked(&mut client, &asking("/v1/completions", ASK, ORIGIN));
    assert_eq!(reply.status, 200);
    assert_eq!(worker.next().body, ASK, "the first request that a worker sees");
}

/// A browser asks without a key, and a page without a key can read why it is refused.
#[test]
fn questions_need_no_key_and_refusals_for_lack_of_one_can_be_read() {
    let worker = Worker::json("{}");
    let mut config = open(&[&worker]);
    config.api_keys = Some("tests/data/api_keys/two.toml".into());
    let router = router(config);
    let mut client = Client::connect(router.listen);
    assert_eq!(asked(&mut client, preflight(ORIGIN).as_bytes()).status, 204);
    let refused = asked(&mut client, &asking("/v1/completions", ASK, ORIGIN));
    assert_eq!((refused.status, cors(&refused).len()), (401, 3), "{}", refused.head);
}

#[test]
fn a_page_that_is_not_listed_gets_no_fields_though_a_worker_would_give_them() {
    let worker = worker_with_fields_of_its_own();
    let router = router(open(&[&worker]));
    let mut client = Client::connect(router.listen);
    for request in
        [asking("/v1/completions", ASK, "https://evil.example"), post("/v1/completions", ASK)]
    {
        let reply = asked(&mut client, &request);
        assert_eq!(reply.status, 200, "served, as curl is; a browser keeps it from the page");
        assert!(!reply.head.to_ascii_lowercase().contains("access-control-"), "{}", reply.head);
        assert!(cors(&reply).contains(&"vary: origin"), "for caches: {}", reply.head);
    }
}

#[test]
fn without_origins_workers_say_what_they_like_and_questions_are_a_405() {
    let worker = worker_with_fields_of_its_own();
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    let reply = asked(&mut client, &asking("/v1/completions", ASK, ORIGIN));
    assert!(reply.head.contains("Access-Control-Allow-Origin: *"), "{}", reply.head);
    let reply = asked(&mut client, preflight(ORIGIN).as_bytes());
    assert_eq!((reply.status, cors(&reply).len()), (405, 0));
}

#[test]
fn streams_of_waiting_requests_have_the_fields_too() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let worker = Worker::start(move |_, stream| {
        released.lock().unwrap().recv().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok()
    });
    let mut config = open(&[&worker]);
    config.flow.rank_concurrency_max = Some(1);
    config.flow.queue.sse_comments = true;
    config.cors.origins = vec!["*".into()];
    let router = router(config);
    let mut first = Client::connect(router.listen);
    first.send(&post("/v1/completions", ASK));
    worker.next();
    let mut second = Client::connect(router.listen);
    let body = br#"{"model":"m","prompt":"hi","stream":true}"#;
    second.send(&asking("/v1/completions", body, ORIGIN));
    second.peek("the head of a stream while it waits");
    release.send(()).unwrap();
    release.send(()).unwrap();
    let reply = second.reply();
    assert_eq!(
        cors(&reply),
        ["access-control-allow-origin: *", "access-control-expose-headers: *"],
        "{}",
        reply.head
    );
    assert_eq!(first.reply().status, 200);
}
