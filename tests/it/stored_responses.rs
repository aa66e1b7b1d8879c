//! Responses that engines keep: calls about one, and requests that continue one, go to the worker
//! that made it.

use crate::rig::{Client, Reply, Worker, admin_post, config, metric, post, router};
use forebay::config::Config;
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Makes responses, streamed or not, and answers everything else with the request's first line.
fn keeper() -> Worker {
    static NUMBER: AtomicUsize = AtomicUsize::new(1);
    Worker::start(|seen, stream| {
        let line = seen.head.lines().next().unwrap();
        let body = if line.starts_with("POST /v1/responses HTTP") {
            // ordering: a count.
            let id = format!("resp_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
            let response = json!({ "id": id, "object": "response", "metadata": {"id": "resp_x"} });
            let asked: Value = serde_json::from_slice(&seen.body).unwrap();
            if asked["stream"] == true {
                let event = json!({ "response": response, "type": "response.created" });
                let event = format!("event: response.created\ndata: {event}\n\n");
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                            transfer-encoding: chunked\r\n\r\n";
                let (first, second) = event.split_at(60);
                let chunks = [first, second].map(|part| format!("{:x}\r\n{part}\r\n", part.len()));
                let all = format!("{head}{}{}0\r\n\r\n", chunks[0], chunks[1]);
                return stream.write_all(all.as_bytes()).is_ok();
            }
            response.to_string()
        } else {
            json!({ "line": line }).to_string()
        };
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let all = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(all.as_bytes()).is_ok()
    })
}

/// On two shards.
fn in_front_of(workers: &[&Worker], keys: Option<&str>) -> ServerHandle {
    let api_keys = keys.map(PathBuf::from);
    router(Config { cores: vec![0, 0], api_keys, ..config(workers) })
}

fn ask(client: &mut Client, method: &str, path: &str, key: &str) -> Reply {
    let length = if method == "POST" { "content-length: 0\r\n" } else { "" };
    let key = if key.is_empty() { String::new() } else { format!("x-api-key: {key}\r\n") };
    client.send(format!("{method} {path} HTTP/1.1\r\nhost: r\r\n{key}{length}\r\n").as_bytes());
    client.reply()
}

fn create(client: &mut Client, body: &Value, key: &str) -> Reply {
    create_at(client, "/v1/responses", body, key)
}

fn create_at(client: &mut Client, path: &str, body: &Value, key: &str) -> Reply {
    let request = String::from_utf8(post(path, body.to_string().as_bytes())).unwrap();
    let key = if key.is_empty() { String::new() } else { format!("x-api-key: {key}\r\n") };
    client.send(request.replacen("host:", &format!("{key}host:"), 1).as_bytes());
    client.reply()
}

fn id_of(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let text = reply.text();
    let object = &text[text.find('{').unwrap()..=text.rfind('}').unwrap()];
    let value: Value = serde_json::from_str(object).unwrap();
    let id = value["id"].as_str().or_else(|| value["response"]["id"].as_str());
    id.unwrap().to_owned()
}

fn worker_of(reply: &Reply) -> &str {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.field("x-forebay-worker").unwrap()
}

fn is_unknown(reply: &Reply) -> bool {
    (reply.status, reply.field("x-forebay-reason")) == (404, Some("unknown-response"))
}

#[test]
fn a_response_is_found_at_the_worker_that_made_it() {
    let workers = [keeper(), keeper(), keeper()];
    let router = in_front_of(&workers.each_ref(), None);
    // Of many connections some are on either shard.
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(router.listen)).collect();
    for round in 0..8 {
        let body = json!({ "model": "m", "input": "hi", "stream": round % 2 == 0 });
        let made = create(&mut clients[round], &body, "");
        let id = id_of(&made);
        let maker = worker_of(&made).to_owned();
        let other = &mut clients[(round + 3) % 8];
        for (method, path) in [
            ("GET", format!("/v1/responses/{id}?include=x")),
            ("GET", format!("/v1/responses/{id}/input_items")),
            ("POST", format!("/v1/responses/{id}/cancel")),
            ("DELETE", format!("/v1/responses/{id}")),
        ] {
            let reply = ask(other, method, &path, "");
            assert_eq!(worker_of(&reply), maker, "{method} {path}");
            let line = json!({ "line": format!("{method} {path} HTTP/1.1") });
            assert_eq!(reply.text(), line.to_string());
        }
        let cancel = format!("/v1/responses/{id}/cancel");
        for (body, status) in
            [(&b"{}"[..], 200), (br#"{"model":"other"}"#, 200), (br#"{"bootstrap_room":7}"#, 400)]
        {
            other.send(&post(&cancel, body));
            assert_eq!(other.reply().status, status);
        }
        for _ in 0..3 {
            let body = json!({ "model": "m", "input": "more", "previous_response_id": id });
            assert_eq!(worker_of(&create(other, &body, "")), maker);
        }
    }
    let counted = metric(&router, "forebay_requests_total{endpoint=\"stored_response\"");
    assert!((counted - 56.0).abs() < 0.5, "{counted}");
}

#[test]
fn what_is_unknown_is_asked_of_the_only_worker_or_of_none() {
    let workers = [keeper(), keeper()];
    let router = in_front_of(&workers.each_ref(), None);
    let mut client = Client::connect(router.listen);
    assert!(is_unknown(&ask(&mut client, "GET", "/v1/responses/resp_none", "")));
    // A member of the answer that repeats the client's words is no id.
    create(&mut client, &json!({ "model": "m", "input": "hi" }), "");
    assert!(is_unknown(&ask(&mut client, "DELETE", "/v1/responses/resp_x", "")));
    let body = json!({ "model": "m", "input": "hi", "previous_response_id": "resp_none" });
    assert_eq!(create(&mut client, &body, "").status, 200, "the engine answers");
    assert_eq!(
        ask(&mut client, "PUT", "/v1/responses/resp_1", "").field("allow"),
        Some("GET, DELETE")
    );
    let alone = in_front_of(&[&workers[0]], None);
    let mut client = Client::connect(alone.listen);
    assert_eq!(ask(&mut client, "GET", "/v1/responses/resp_none", "").status, 200);
}

#[test]
fn no_tenant_reaches_the_response_of_another() {
    let worker = keeper();
    let router = in_front_of(&[&worker], Some("tests/data/api_keys/two.toml"));
    let mut client = Client::connect(router.listen);
    let made = create(&mut client, &json!({ "model": "m", "input": "hi" }), "gold-key");
    let id = id_of(&made);
    let path = format!("/v1/responses/{id}");
    assert_eq!(ask(&mut client, "GET", &path, "").status, 401);
    assert_eq!(ask(&mut client, "GET", &path, "gold-key").status, 200);
    assert!(is_unknown(&ask(&mut client, "GET", &path, "some-key")));
    assert!(is_unknown(&ask(&mut client, "GET", "/v1/responses/resp_none", "some-key")));
    let long = "a".repeat(100);
    for previous in [id.as_str(), "resp_none", &long, ""] {
        let body = json!({ "model": "m", "input": "hi", "previous_response_id": previous });
        assert!(is_unknown(&create(&mut client, &body, "some-key")), "{previous}");
    }
    let body = json!({ "model": "m", "input": "hi", "previous_response_id": id });
    for path in ["/v1/responses/compact", "/v1/responses/input_tokens"] {
        assert!(is_unknown(&create_at(&mut client, path, &body, "some-key")), "{path}");
    }
    let path = format!("/v1/responses/{id}/tool_outputs");
    assert_eq!(create_at(&mut client, &path, &body, "some-key").status, 404);
    let named = json!({ "model": "m", "input": "hi", "request_id": id });
    assert_eq!(create(&mut client, &named, "some-key").status, 400);
    assert_eq!(create(&mut client, &body, "gold-key").status, 200);
    let seen: Vec<String> = worker.seen.try_iter().map(|seen| seen.head).collect();
    assert!(seen.len() == 3 && !seen.iter().any(|head| head.contains("gold-key")), "{seen:?}");
}

#[test]
fn a_response_goes_with_its_worker() {
    let workers = [keeper(), keeper()];
    let router = in_front_of(&workers.each_ref(), None);
    let mut client = Client::connect(router.listen);
    let made = create(&mut client, &json!({ "model": "m", "input": "hi" }), "");
    let id = id_of(&made);
    let maker = worker_of(&made).to_owned();
    let mut admin = Client::connect(router.admin);
    let request = String::from_utf8(admin_post(&format!("/workers/{maker}"), b"")).unwrap();
    admin.send(request.replacen("POST", "DELETE", 1).as_bytes());
    let deleted = admin.reply();
    assert!(deleted.status < 300, "{} {}", deleted.status, deleted.text());
    let path = format!("/v1/responses/{id}");
    crate::rig::until("it is gone", || is_unknown(&ask(&mut client, "GET", &path, "")));
    let reply = ask(&mut client, "GET", &path, "");
    assert!(reply.text().contains("is gone"), "{}", reply.text());
    let body = json!({ "model": "m", "input": "hi", "previous_response_id": id });
    assert!(is_unknown(&create(&mut client, &body, "")));
}
