//! A worker that comes back with another model, too soon for health checks to have taken it out.
//! They are further apart here than any wait, so nothing but the sign of the restart can tell.

use crate::rig::{Client, PATIENCE, admin, any_port, port_for_later, post, router, until, usable};
use forebay::config::{Config, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::server::ServerHandle;
use serde_json::json;
use std::net::{SocketAddr, TcpListener};

fn engine(listen: SocketAddr, model: &str, events: Option<SocketAddr>) -> EngineHandle {
    let config = EngineConfig {
        listen,
        model: Some(model.to_owned()),
        kv_events: events.map(|address| format!("tcp://{address}")),
        prefill_tokens_per_s: 1e6,
        itl_ms: 0.5,
        ..EngineConfig::default()
    };
    let text = EngineText::load(None).expect("the built-in tokenizer");
    Engine::start_with(config, text).expect("the engine starts")
}

fn before(engine: &EngineHandle) -> ServerHandle {
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0],
        workers: vec![WorkerConfig { url: engine.url(), ..WorkerConfig::default() }],
        ..Config::default()
    };
    config.health.interval = PATIENCE * 10;
    let handle = router(config);
    until("the worker is up", || usable(&handle) == 1);
    handle
}

/// The old engine, and a router that follows its events.
fn followed(listen: SocketAddr, events: SocketAddr) -> (EngineHandle, ServerHandle) {
    let old = engine(listen, "old", Some(events));
    let handle = before(&old);
    until("its events are followed", || {
        admin(&handle, "/workers").text().contains(r#""state":"live""#)
    });
    (old, handle)
}

fn status(handle: &ServerHandle, model: &str) -> u16 {
    let body = json!({ "model": model, "prompt": "hi", "max_tokens": 1 }).to_string();
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", body.as_bytes()));
    client.reply().status
}

#[test]
fn its_models_are_asked_again_when_its_feed_broke() {
    let listen = port_for_later();
    let events = port_for_later();
    let (old, handle) = followed(listen, events);
    old.stop();
    let _new = engine(listen, "new", Some(events));
    until("the new model is known", || admin(&handle, "/workers").text().contains(r#"["new"]"#));
    assert_eq!((status(&handle, "new"), status(&handle, "old")), (200, 404));
    // N7: nothing alarmed.
    let readyz = admin(&handle, "/readyz").text();
    assert!(readyz.contains("no worker serves old any more; "), "{readyz}");
    let metrics = admin(&handle, "/metrics").text();
    assert!(metrics.contains("forebay_model_dropped{model=\"old\"} 1"), "{metrics}");
    assert!(metrics.contains("forebay_model_dropped{model=\"new\"} 0"), "{metrics}");
}

/// The sign that the old process has gone comes before the new process answers.
#[test]
fn its_models_are_asked_again_when_its_feed_is_back() {
    let listen = port_for_later();
    let events = port_for_later();
    let (old, handle) = followed(listen, events);
    old.stop();
    let nothing = TcpListener::bind(listen).unwrap();
    nothing.set_nonblocking(true).unwrap();
    until("it is asked in vain", || nothing.accept().is_ok());
    drop(nothing);
    let _new = engine(listen, "new", Some(events));
    until("the new model is known", || admin(&handle, "/workers").text().contains(r#"["new"]"#));
}

#[test]
fn its_models_are_asked_again_when_it_does_not_know_what_it_served() {
    let listen = port_for_later();
    let old = engine(listen, "old", None);
    let handle = before(&old);
    assert_eq!(status(&handle, "old"), 200);
    old.stop();
    let _new = engine(listen, "new", None);
    // The engine's own 404, or a connection that broke.
    assert_ne!(status(&handle, "old"), 200);
    until("the new model is served", || status(&handle, "new") == 200);
}
