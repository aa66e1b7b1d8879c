//! Issue 39: KV events that may belong to another rank, as operators see them from begin to end.

use crate::doctor::engine_endpoint;
use crate::rig::truth::{get, metric};
use crate::rig::{Client, RouterProcess, admin_post, any_port, post, until};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use serde_json::Value;

const BEGINS: &str = "suspect KV events";
const ENDS: &str = "KV events are suspect no more";

fn engine() -> EngineHandle {
    let config = EngineConfig {
        listen: any_port(),
        model: Some("m".to_owned()),
        kv_events: Some("tcp://127.0.0.1:0".into()),
        replay: Some("tcp://127.0.0.1:0".into()),
        ..EngineConfig::default()
    };
    let text = EngineText::load(None).expect("the built-in tokenizer");
    Engine::start_with(config, text).expect("the engine starts")
}

/// Fault of each rank in `/workers`.
fn faults(router: &RouterProcess) -> Vec<String> {
    let workers: Value = serde_json::from_slice(&get(router.admin, "/workers").body).unwrap();
    let workers = workers["workers"].as_array().unwrap();
    let fault = |worker: &Value| Some(worker["ranks"][0]["fault"].as_str()?.to_owned());
    workers.iter().filter_map(fault).collect()
}

fn readyz(router: &RouterProcess) -> String {
    get(router.admin, "/readyz").text()
}

/// Reads the configuration again, with these keys.
fn reload(router: &RouterProcess, text: &str) {
    router.edit(|file| format!("{}{text}", file.split("cores").next().unwrap()));
    let mut client = Client::connect(router.admin);
    client.send(&admin_post("/admin/reload", b""));
    assert_eq!(client.reply().status, 200);
}

/// A router in front of the engines, with these keys of each worker.
fn routed(engines: &[&EngineHandle], keys: &[String]) -> String {
    let tables = engines
        .iter()
        .zip(keys)
        .map(|(engine, keys)| format!("[[worker]]\nurl = \"{}\"\n{keys}\n", engine.url()));
    let tables: String = tables.collect();
    format!("cores = [0]\npolicy = \"kv\"\nmodel_dir = \"tests/data/tokenizer\"\n{tables}")
}

/// Crossed endpoints of replays were silent, and a reload that mends a pair showed a moment in
/// which both workers had one endpoint.
#[test]
fn crossed_replays_are_shown_and_a_reload_that_mends_them_shows_no_other_fault() {
    let engines = [(); 2].map(|()| engine());
    let engines = [&engines[0], &engines[1]];
    let [first, second] = engines.map(|one| engine_endpoint(one, "replay_endpoint"));
    let text = |endpoints: [&String; 2]| {
        routed(&engines, &endpoints.map(|endpoint| format!("replay = [\"{endpoint}\"]")))
    };
    let router = RouterProcess::configured(&text([&second, &first]));
    until("the pair is suspect", || faults(&router).len() == 2);
    let fault = &faults(&router)[0];
    assert!(fault.contains(&format!("{second} replays the KV events of")), "{fault}");
    assert!(fault.contains(&format!("announces {first}; correct")), "{fault}");
    assert_eq!((metric(router.admin, "forebay_kv_feed_suspect{"), router.logged(BEGINS)), (2.0, 2));
    for mended in 1..=3 {
        reload(&router, &text([&first, &second]));
        until("each has its own", || faults(&router).is_empty());
        until("the end is logged", || router.logged(ENDS) == 2 * mended);
        assert_eq!(router.logged(BEGINS), 2 * mended, "{}", router.log());
        reload(&router, &text([&second, &first]));
        until("the pair is suspect again", || faults(&router).len() == 2);
    }
}

/// A wrong topic showed after ten minutes, by an alert about something else. A publisher of another
/// engine, which is idle, showed as little.
#[test]
fn a_topic_and_a_publisher_without_a_batch_are_shown() {
    let engines = [(); 2].map(|()| engine());
    let [own, other] = [&engines[0], &engines[1]].map(|one| engine_endpoint(one, "endpoint"));
    let keys = format!("kv_events = [\"{own}\"]\nkv_topic = \"kv\"");
    let router = RouterProcess::configured(&routed(&[&engines[0]], &[keys]));
    until("the topic is suspect", || faults(&router).len() == 1);
    let fault = &faults(&router)[0];
    assert!(
        fault.contains("no batch of the topic \"kv\"") && fault.contains("`kv_topic`"),
        "{fault}"
    );

    let replay = engine_endpoint(&engines[1], "replay_endpoint");
    let keys = format!("kv_events = [\"{other}\"]\nreplay = [\"{replay}\"]");
    reload(&router, &routed(&[&engines[0]], &[keys]));
    until("the topic has no fault", || faults(&router).is_empty());
    let live = || metric(router.admin, "forebay_kv_feed_live{") > 0.5;
    until("the idle publisher is followed", live);
    let mut client = Client::connect(router.listen);
    let mut number = 0;
    until("the rank is silent", || {
        number += 1;
        let prompt = format!("Prompt {number} of many: {}", "and so on, ".repeat(200));
        let body = format!("{{\"model\":\"m\",\"prompt\":\"{prompt}\",\"max_tokens\":1}}");
        client.send(&post("/v1/completions", body.as_bytes()));
        assert_eq!(client.reply().status, 200);
        !faults(&router).is_empty()
    });
    assert!(number > 8, "{number} answers");
    let fault = &faults(&router)[0];
    assert!(fault.contains(&format!("{other} has no batch of this rank")), "{fault}");
    assert!(fault.contains("correct `kv_events`"), "{fault}");
    assert!(readyz(&router).contains("suspect KV events"), "{}", readyz(&router));
}

#[test]
fn a_pair_and_a_shared_endpoint_are_shown_until_they_end() {
    let engines = [(); 2].map(|()| engine());
    let [first, second] = [&engines[0], &engines[1]].map(|one| engine_endpoint(one, "endpoint"));
    let text = |endpoints: [&String; 2]| {
        let tables = engines.iter().zip(endpoints).map(|(engine, endpoint)| {
            format!("[[worker]]\nurl = \"{}\"\nkv_events = [\"{endpoint}\"]\n", engine.url())
        });
        let tables: String = tables.collect();
        format!("cores = [0]\npolicy = \"kv\"\nmodel_dir = \"tests/data/tokenizer\"\n{tables}")
    };
    let router = RouterProcess::configured(&text([&second, &first]));
    until("the pair is suspect", || faults(&router).len() == 2);
    assert!(faults(&router)[0].contains(&format!("announces {first}")), "{:?}", faults(&router));
    let concern = "2 of 2 ranks have suspect KV events";
    assert!(readyz(&router).contains(concern), "{}", readyz(&router));
    assert!(readyz(&router).contains("degraded"), "{}", readyz(&router));
    let suspects = || metric(router.admin, "forebay_kv_feed_suspect{");
    assert_eq!((suspects(), router.logged(BEGINS)), (2.0, 2), "{}", router.log());

    let reload = |endpoints| reload(&router, &text(endpoints));
    reload([&second, &second]);
    until("the endpoint is shared", || {
        let faults = faults(&router);
        faults.len() == 2 && faults.iter().all(|fault| fault.contains("is followed for"))
    });
    assert_eq!((router.logged(ENDS), suspects()), (0, 2.0), "{}", router.log());

    reload([&first, &second]);
    until("each has its own", || faults(&router).is_empty());
    until("the end is logged", || router.logged("the endpoints have changed") == 2);
    assert_eq!(suspects(), 0.0);
    assert!(!readyz(&router).contains("suspect"), "{}", readyz(&router));

    reload([&second, &first]);
    until("the pair is suspect again", || faults(&router).len() == 2);
    let mut client = Client::connect(router.admin);
    let name = engines[1].url().replace("http://", "");
    client.send(format!("DELETE /workers/{name} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes());
    assert_eq!(client.reply().status, 202);
    until("a worker is left", || faults(&router).is_empty());
    until("its end is logged", || router.logged("the other worker is down or gone") == 1);
}
