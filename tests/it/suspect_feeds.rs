//! Issue 39: KV events that may belong to another rank, as operators see them from begin to end.

use crate::doctor::engine_endpoint;
use crate::rig::truth::{get, metric};
use crate::rig::{Client, RouterProcess, admin_post, any_port, until};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use serde_json::Value;

const BEGINS: &str = "suspect KV events";
const ENDS: &str = "KV events are suspect no more";

fn engine() -> EngineHandle {
    let config = EngineConfig {
        listen: any_port(),
        model: Some("m".to_owned()),
        kv_events: Some("tcp://127.0.0.1:0".into()),
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

    let reload = |endpoints| {
        router.edit(|file| {
            let addresses = file.split("cores").next().unwrap();
            format!("{addresses}{}", text(endpoints))
        });
        let mut client = Client::connect(router.admin);
        client.send(&admin_post("/admin/reload", b""));
        assert_eq!(client.reply().status, 200);
    };
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
