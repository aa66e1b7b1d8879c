//! Calls of the admin API by the port of clients: which, with which token, and over TLS.

use crate::rig::{
    Certificates, Client, Pair, Reply, Worker, config, metric, port_for_later, router, until,
};
use forebay::base::limits::CLIENT_PORT_CALLS_MAX;
use forebay::config::Config;
use forebay::server::ServerHandle;
use serde_json::{Value, json};

const NAME: &str = "router.example";

/// The call, with that token.
fn request(line: &str, token: Option<&str>, body: &str) -> Vec<u8> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let token = token.unwrap_or_default();
    let length = body.len();
    let body_fields = format!("content-type: application/json\r\ncontent-length: {length}\r\n");
    let body_fields = if body.is_empty() { "" } else { &body_fields };
    format!("{line} HTTP/1.1\r\nhost: {NAME}\r\n{token}{body_fields}\r\n{body}").into_bytes()
}

fn open(workers: &[&Worker]) -> Config {
    let mut config = config(workers);
    config.admin_on_client_port = true;
    config.admin_token_file = Some("tests/data/admin_token".into());
    config.admin_read_token_file = Some("tests/data/admin_read_token".into());
    config
}

fn ask(router: &ServerHandle, line: &str, token: Option<&str>, body: &str) -> Reply {
    let mut client = Client::connect(router.listen);
    client.send(&request(line, token, body));
    client.reply()
}

const TOKEN: Option<&str> = Some("only-for-tests");

#[test]
fn workers_come_and_go_by_the_port_of_clients() {
    let first = Worker::json("{}");
    let second = Worker::json("{}");
    let router = router(open(&[&first]));
    let [old, new] = [&first, &second].map(Worker::url);
    let list = |urls: &[&str]| json!({ "urls": urls }).to_string();
    let listed = ask(&router, "GET /list_workers", TOKEN, "");
    assert_eq!((listed.status, listed.text()), (200, list(&[&old])), "{}", listed.head);
    assert!(listed.head.to_ascii_lowercase().contains("connection: close\r\n"), "{}", listed.head);
    let added = ask(&router, &format!("POST /add_worker?url={new}"), TOKEN, "");
    assert_eq!(added.text(), format!("Successfully added worker: {new}"));
    assert_eq!(ask(&router, "GET /list_workers", TOKEN, "").text(), list(&[&old, &new]));
    let removed = ask(&router, &format!("POST /remove_worker?url={new}"), TOKEN, "");
    assert_eq!(removed.text(), format!("Successfully removed worker: {new}"));
    let third = port_for_later();
    let asked = json!({ "url": format!("http://{third}"), "name": "third" }).to_string();
    let added = ask(&router, "POST /workers", TOKEN, &asked);
    assert_eq!(added.status, 201, "{}", added.text());
    let shown: Value =
        serde_json::from_str(&ask(&router, "GET /workers/third", TOKEN, "").text()).unwrap();
    assert_eq!(shown["url"], json!(format!("http://{third}")));
    assert_eq!(ask(&router, "DELETE /workers/third", TOKEN, "").status, 202);
}

#[test]
fn each_call_needs_a_token_and_only_workers_are_named() {
    let worker = Worker::json("{}");
    let router = router(open(&[&worker]));
    for token in [None, Some("other")] {
        let refused = ask(&router, "GET /list_workers", token, "");
        assert_eq!(refused.status, 401, "{}", refused.text());
        assert!(refused.text().contains("By the port of clients"), "{}", refused.text());
    }
    let reads = Some("only-to-read");
    assert_eq!(ask(&router, "GET /list_workers", reads, "").status, 200);
    assert_eq!(ask(&router, "POST /add_worker?url=http://a:1", reads, "").status, 403);
    for line in ["GET /metrics", "POST /admin/reload", "POST /workers/a/drain", "GET /workers/a/b"]
    {
        assert_eq!(ask(&router, line, TOKEN, "").status, 404, "{line}");
    }
    // The connection takes one call: what comes behind it is not even looked at.
    let mut client = Client::connect(router.listen);
    let behind = request("POST /admin/reload", TOKEN, "");
    client.send(&[request("GET /list_workers", TOKEN, ""), behind].concat());
    assert_eq!(client.reply().status, 200);
    assert!(client.at_end());
}

#[test]
fn the_door_is_closed_by_default() {
    let worker = Worker::json("{}");
    let mut config = open(&[&worker]);
    config.admin_on_client_port = false;
    let router = router(config);
    assert_eq!(ask(&router, "GET /list_workers", TOKEN, "").status, 404);
}

#[test]
fn it_goes_over_tls_too() {
    let worker = Worker::json("{}");
    let certificates = Certificates::new();
    let mut config = open(&[&worker]);
    let Pair { cert, key } = certificates.sign("router", &[NAME]);
    config.tls.cert = Some(cert);
    config.tls.key = Some(key);
    let router = router(config);
    let tls = certificates.client();
    let mut client = Client::connect_tls(router.listen, &tls, NAME);
    client.send(&request("GET /list_workers", TOKEN, ""));
    let listed = client.reply();
    assert_eq!(listed.text(), json!({ "urls": [worker.url()] }).to_string());
}

/// Whoever has no token is answered on the head, and holds nothing.
#[test]
fn who_has_no_token_takes_no_place() {
    let worker = Worker::json("{}");
    let mut config = open(&[&worker]);
    config.admin_read_token_file = None;
    let router = router(config);
    let without: Vec<Client> = (0..2 * CLIENT_PORT_CALLS_MAX)
        .map(|_| {
            let mut client = Client::connect(router.listen);
            client.send(b"POST /workers HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n");
            assert_eq!(client.reply().status, 401);
            client
        })
        .collect();
    assert_eq!(ask(&router, "GET /list_workers", TOKEN, "").status, 200);
    // They have their answers and do not close: the router does.
    let ended = || metric(&router, "forebay_connections_closed_total ");
    let all = without.len();
    until("no connection is held", || ended() > f64::from(u32::try_from(all).unwrap()));
    drop(without);
}

#[test]
fn calls_that_wait_take_a_bounded_number_of_places_and_give_them_back() {
    let worker = Worker::json("{}");
    let mut config = open(&[&worker]);
    config.health.enabled = true;
    let router = router(config);
    let waiting: Vec<Client> = (0..CLIENT_PORT_CALLS_MAX)
        .map(|_| {
            let mut client = Client::connect(router.listen);
            let line = format!("POST /add_worker?url=http://{}", port_for_later());
            client.send(&request(&line, TOKEN, ""));
            client
        })
        .collect();
    let status = || ask(&router, "GET /list_workers", TOKEN, "").status;
    until("all places are taken", || status() == 429);
    drop(waiting);
    until("the places are free again", || status() == 200);
}
