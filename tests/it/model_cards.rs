//! I9: the card of one model, and one card of a model whatever worker answers first.

use crate::rig::{Client, Reply, RouterProcess, Worker, config, router, until};
use forebay::config::ModelConfig;
use serde_json::Value;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A worker that lists these cards.
fn listing(cards: &'static str) -> Worker {
    Worker::start(move |seen, stream| {
        let list = format!(r#"{{"object":"list","data":[{cards}]}}"#);
        let body = if seen.head.starts_with("GET /v1/models ") { &*list } else { "{}" };
        let reply = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(reply.as_bytes()).is_ok()
    })
}

fn configured(workers: &[&Worker]) -> RouterProcess {
    let tables: Vec<String> =
        workers.iter().map(|worker| format!("[[worker]]\nurl = \"{}\"\n", worker.url())).collect();
    let router = RouterProcess::configured(&format!(
        "cores = \"0\"\n[health]\ninterval = \"50ms\"\n{}",
        tables.concat()
    ));
    until("all workers are described", || {
        router.log().matches("OpenAI's API").count() >= workers.len()
    });
    router
}

fn ask(address: SocketAddr, method: &str, path: &str, fields: &str) -> Reply {
    let mut client = Client::connect(address);
    client.send(format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{fields}\r\n").as_bytes());
    client.reply_to(method == "HEAD")
}

fn id(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let card: Value = serde_json::from_slice(&reply.body).unwrap();
    card["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_model_is_looked_up_as_its_client_writes_it() {
    let worker =
        listing(r#"{"id":"m","object":"model","x":7},{"id":"Qwen/Qwen3-8B"},{"id":"llama3:8b"}"#);
    let router = configured(&[&worker]);
    for (path, model) in [
        ("m", "m"),
        ("m?x=1", "m"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("Qwen%2FQwen3-8B", "Qwen/Qwen3-8B"),
        ("Qwen%2fQwen3%2D8B", "Qwen/Qwen3-8B"),
        ("llama3:8b", "llama3:8b"),
        ("llama3%3A8b", "llama3:8b"),
    ] {
        let path = format!("/v1/models/{path}");
        let reply = ask(router.listen, "GET", &path, "");
        assert_eq!(id(&reply), model, "{path}");
        let head = ask(router.listen, "HEAD", &path, "");
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.field("content-length"), reply.field("content-length"));
    }
    let card = ask(router.listen, "GET", "/v1/models/m", "");
    assert_eq!(card.text(), r#"{"id":"m","object":"model","x":7}"#);
    for path in ["none", "Qwen", "m/", "Qwen/Qwen3-8B/x", "%zz", "*", "../health"] {
        let reply = ask(router.listen, "GET", &format!("/v1/models/{path}"), "");
        assert_eq!((reply.status, reply.field("x-forebay-reason")), (404, Some("unknown-model")));
        let error: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(error["error"]["code"], "model_not_found", "{path}");
    }
    let anthropic =
        ask(router.listen, "GET", "/v1/models/none", "anthropic-version: 2023-06-01\r\n");
    let error: Value = serde_json::from_slice(&anthropic.body).unwrap();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&"error".into(), &"not_found_error".into())
    );
    let deleted = ask(router.listen, "DELETE", "/v1/models/m", "");
    assert_eq!((deleted.status, deleted.field("allow")), (405, Some("GET, HEAD")));
}

#[test]
fn a_key_looks_up_the_models_that_it_may_use() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.workers[0].models = ["m", "secret"].map(str::to_owned).to_vec();
    config.api_keys = Some(PathBuf::from("tests/data/api_keys/two.toml"));
    config.models = vec![
        ModelConfig { name: "chat".into(), to: "m".into(), weight: 1 },
        ModelConfig { name: "gone".into(), to: "none".into(), weight: 1 },
    ];
    let router = router(config);
    let look = |key: &str, model: &str| {
        ask(router.listen, "GET", &format!("/v1/models/{model}"), &format!("x-api-key: {key}\r\n"))
    };
    assert_eq!(look("nobody", "m").status, 401);
    assert_eq!(id(&look("some-key", "m")), "m");
    assert_eq!(look("some-key", "secret").status, 404);
    assert_eq!(look("some-key", "chat").status, 404);
    assert_eq!(id(&look("gold-key", "secret")), "secret");
    assert_eq!(id(&look("gold-key", "chat")), "chat");
    assert_eq!(look("gold-key", "gone").status, 404);
}

/// A worker of any model knows which names it serves. The router does not, and forwards no path.
#[test]
fn where_any_name_is_taken_any_name_has_a_card() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.api_keys = Some(PathBuf::from("tests/data/api_keys/two.toml"));
    let router = router(config);
    let gold = "x-api-key: gold-key\r\n";
    assert_eq!(id(&ask(router.listen, "GET", "/v1/models/a/../b", gold)), "a/../b");
    let some = "x-api-key: some-key\r\n";
    assert_eq!(id(&ask(router.listen, "GET", "/v1/models/m", some)), "m");
    assert_eq!(ask(router.listen, "GET", "/v1/models/x", some).status, 404);
    assert!(worker.seen.try_recv().is_err());
}

/// Issue 35, F7: of twelve starts with one file, five had one card and seven the other.
#[test]
fn a_model_has_the_card_of_its_shortest_context_and_one_warning() {
    let long = listing(r#"{"id":"m","max_model_len":32768},{"id":"b"},{"id":"l","parent":"m"}"#);
    let short = listing(r#"{"id":"z"},{"id":"m","max_model_len":4096}"#);
    for workers in [[&long, &short], [&short, &long]] {
        let router = configured(&workers);
        let list = ask(router.listen, "GET", "/v1/models", "");
        let list: Value = serde_json::from_slice(&list.body).unwrap();
        let names: Vec<&str> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|card| card["id"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["b", "m", "z", "l"], "models, then adapters");
        assert_eq!(list["data"][1]["max_model_len"], 4_096);
        let card = ask(router.listen, "GET", "/v1/models/m", "");
        assert_eq!(card.text(), r#"{"id":"m","max_model_len":4096}"#);
        let log = router.log();
        let warned = "workers serve this model with different `max_model_len`";
        let line = log.lines().find(|line| line.contains(warned)).expect("a warning");
        for part in [
            "WARN".to_owned(),
            "model=\"m\"".to_owned(),
            format!("shortest=\"4096 at {}\"", short.address),
            format!("longest=\"32768 at {}\"", long.address),
        ] {
            assert!(line.contains(&part), "{part}: {line}");
        }
        assert_eq!(log.matches(warned).count(), 1, "{log}");
    }
}
