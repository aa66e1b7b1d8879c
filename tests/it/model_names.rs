//! O6: names of clients stand for models of workers.

use crate::rig::{
    Client, Reply, RouterProcess, Worker, admin_post, config, metric, post, router, until,
};
use forebay::config::{Config, ModelConfig};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::path::PathBuf;

/// A worker that serves `base`, and one that serves `other`.
struct Fleet {
    base: Worker,
    other: Worker,
}

impl Fleet {
    fn start() -> Self {
        Self { base: Worker::json("{}"), other: Worker::json("{}") }
    }

    fn config(&self, tables: &[(&str, &str, u32)]) -> Config {
        let mut config = config(&[&self.base, &self.other]);
        for (worker, model) in config.workers.iter_mut().zip(["base", "other"]) {
            worker.models = vec![model.to_owned()];
        }
        let table = |&(name, to, weight): &(&str, &str, u32)| ModelConfig {
            name: name.to_owned(),
            to: to.to_owned(),
            weight,
        };
        config.models = tables.iter().map(table).collect();
        config
    }

    fn router(&self, tables: &[(&str, &str, u32)]) -> ServerHandle {
        let router = router(self.config(tables));
        until("both are up", || (metric(&router, "forebay_worker_up") - 2.0).abs() < 0.5);
        router
    }

    fn is_base(&self, reply: &Reply) -> bool {
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.field("x-forebay-worker") == Some(&self.base.address.to_string())
    }
}

fn ask(client: &mut Client, model: &str, session: Option<u32>) -> Reply {
    let mut body = json!({"model": model, "prompt": "hi"});
    if let Some(session) = session {
        body["session_id"] = session.to_string().into();
    }
    client.send(&post("/v1/completions", body.to_string().as_bytes()));
    client.reply()
}

fn say(router: &ServerHandle, worker: &Worker, word: &str) {
    let mut client = Client::connect(router.admin);
    client.send(&admin_post(&format!("/workers/{}/{word}", worker.address), b""));
    assert_eq!(client.reply().status, 200);
}

/// M1: a typing error in `to` is in the log, and the reason of each refused request.
#[test]
fn a_name_for_a_model_of_no_worker_has_its_reason() {
    let fleet = Fleet::start();
    let router = RouterProcess::configured(&format!(
        "health.enabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"base\"]\n\
         [[model]]\nname = \"chat\"\nto = \"bsae\"\n",
        fleet.base.url()
    ));
    let line = "no worker serves the model behind a name of `[[model]]`";
    until("that is said", || router.logged(line) == 1);
    assert!(router.logged("to=bsae") + router.logged("to=\"bsae\"") > 0);
    let refused = ask(&mut Client::connect(router.listen), "chat", None);
    assert_eq!(refused.status, 404);
    let text = refused.text();
    assert!(text.contains("model that `chat` stands for") && !text.contains("bsae"), "{text}");
    router.edit(|text| text.replace("bsae", "base"));
    router.signal(rustix::process::Signal::HUP);
    until("it is served", || router.logged("no name of `[[model]]` lacks this model") == 1);
    assert!(fleet.is_base(&ask(&mut Client::connect(router.listen), "chat", None)));
}

#[test]
fn the_worker_is_asked_for_the_model_that_it_serves() {
    let fleet = Fleet::start();
    let router = fleet.router(&[("chat", "base", 1), ("a \"quoted\" name", "other", 1)]);
    let mut client = Client::connect(router.listen);
    let body = r#"{ "prompt": "chat", "model" :"chat" , "user":"chat" }"#;
    client.send(&post("/v1/completions", body.as_bytes()));
    assert!(fleet.is_base(&client.reply()));
    let seen = fleet.base.next();
    assert_eq!(String::from_utf8(seen.body).unwrap(), body.replace(":\"chat\" ,", ":\"base\" ,"));
    assert!(!fleet.is_base(&ask(&mut client, "a \"quoted\" name", None)));
    let seen: Value = serde_json::from_slice(&fleet.other.next().body).unwrap();
    assert_eq!(seen, json!({"model": "other", "prompt": "hi"}));
    // Names of workers stay as they are.
    assert!(fleet.is_base(&ask(&mut client, "base", None)));
    let unknown = ask(&mut client, "chats", None);
    assert!(unknown.status == 404 && unknown.text().contains("`chats`"), "{}", unknown.text());
}

#[test]
fn a_large_body_is_renamed_whatever_stands_behind_the_name() {
    let fleet = Fleet::start();
    let router = fleet.router(&[("chat", "base", 1)]);
    for kib in [1, 100, 700, 3_000] {
        let prompt = "a \u{e9} b\n".repeat(kib * 128);
        let body = format!(
            r#"{{"model":"chat","messages":[{{"role":"user","content":{}}}]}}"#,
            Value::from(prompt)
        );
        let mut client = Client::connect(router.listen);
        client.send(&post("/v1/chat/completions", body.as_bytes()));
        assert!(fleet.is_base(&client.reply()));
        let expected = body.replacen("\"chat\"", "\"base\"", 1);
        assert!(fleet.base.next().body == expected.as_bytes(), "{kib} KiB");
    }
}

#[test]
fn a_canary_gets_its_share_and_a_session_stays() {
    const REQUESTS: u32 = 10_000;
    let fleet = Fleet::start();
    let router = fleet.router(&[("chat", "base", 90), ("chat", "other", 10)]);
    let mut client = Client::connect(router.listen);
    let mut share = |session: &dyn Fn(u32) -> Option<u32>| {
        let count = (0..REQUESTS).filter(|&at| {
            let reply = ask(&mut client, "chat", session(at));
            !fleet.is_base(&reply)
        });
        f64::from(u32::try_from(count.count()).unwrap()) / f64::from(REQUESTS)
    };
    // Within 2 %, as an operator expects it: six standard deviations.
    assert!((share(&|_| None) - 0.1).abs() < 0.02);
    assert!((share(&Some) - 0.1).abs() < 0.02, "each of its own session");
    let one = share(&|_| Some(7));
    assert!(one == 0.0 || (one - 1.0).abs() < 1e-9, "one session has one model: {one}");
}

#[test]
fn another_model_takes_over_while_the_first_has_no_worker() {
    let fleet = Fleet::start();
    let router = fleet.router(&[("chat", "base", 1), ("chat", "other", 0)]);
    let mut client = Client::connect(router.listen);
    let mut all = || (0..20).filter(|_| fleet.is_base(&ask(&mut client, "chat", None))).count();
    assert_eq!(all(), 20);
    say(&router, &fleet.base, "drain");
    assert_eq!(all(), 0);
    say(&router, &fleet.base, "undrain");
    assert_eq!(all(), 20);
}

#[test]
fn the_list_of_models_has_the_names_and_keys_decide_by_them() {
    let fleet = Fleet::start();
    let api_keys = Some(PathBuf::from("tests/data/api_keys/two.toml"));
    // The key `some-key` is for the model `m`.
    let tables = [("m", "base", 1), ("chat", "base", 1), ("ghost", "nobody", 1)];
    let router = router(Config { api_keys, ..fleet.config(&tables) });
    until("both are up", || (metric(&router, "forebay_worker_up") - 2.0).abs() < 0.5);
    let get = |key: &str| {
        let mut client = Client::connect(router.listen);
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\r\n");
        client.send(head.as_bytes());
        let list: Value = serde_json::from_slice(&client.reply().body).unwrap();
        let cards = list["data"].as_array().unwrap().clone();
        cards.iter().map(|card| card["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(get("gold-key"), ["base", "other", "m", "chat"]);
    assert_eq!(get("some-key"), ["m"]);
    let status = |key: &str, model: &str| {
        let mut client = Client::connect(router.listen);
        let body = json!({"model": model, "prompt": "hi"}).to_string();
        client.send(
            format!(
                "POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        );
        client.reply().status
    };
    assert_eq!(["m", "chat", "base"].map(|model| status("gold-key", model)), [200; 3]);
    assert_eq!(["m", "chat", "base"].map(|model| status("some-key", model)), [200, 403, 403]);
}
