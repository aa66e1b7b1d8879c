//! The start of a router before workers of which some are missing, or are no engines.

use crate::rig::truth::get;
use crate::rig::{ASK, Client, RouterProcess, Worker, port_for_later, post, until};
use serde_json::Value;
use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn engine() -> Worker {
    Worker::json(r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#)
}

/// A worker that accepts connections and never answers must not keep the clients of others waiting.
#[test]
fn a_silent_worker_does_not_delay_the_start() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let engine = engine();
    let began = Instant::now();
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[health]\ntimeout = \"20s\"\n\
         [[worker]]\nurl = \"{}\"\nengine = \"openai\"\n[[worker]]\nurl = \"http://{}\"\n",
        engine.url(),
        silent.local_addr().unwrap()
    ));
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    assert_eq!(client.reply().status, 200);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(8), "the first answer took {took:?}");
    assert_eq!(get(router.admin, "/readyz").status, 200);
}

/// A worker that was never reached has no engine yet, and a server that is none has no line that
/// says otherwise.
#[test]
fn what_is_no_engine_is_not_shown_as_an_engine() {
    let other = Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let gone = port_for_later();
    let also_gone = port_for_later();
    let engine = engine();
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[[worker]]\nname = \"other\"\nurl = \"{}\"\n\
         [[worker]]\nname = \"gone\"\nurl = \"http://{gone}\"\n\
         [[worker]]\nname = \"set\"\nurl = \"http://{also_gone}\"\nengine = \"sglang\"\n\
         [[worker]]\nname = \"good\"\nurl = \"{}\"\n",
        other.url(),
        engine.url()
    ));
    let engine_of = |name: &str| {
        let shown: Value = serde_json::from_str(&get(router.admin, "/workers").text()).unwrap();
        let mut workers = shown["workers"].as_array().unwrap().iter();
        workers.find(|worker| worker["name"] == name).map(|found| found["engine"].clone()).unwrap()
    };
    until("the workers are reported", || router.logged("workers found") > 0);
    until("the reason is logged", || router.logged("status 404") > 0);
    let log = router.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("=\"other\"")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("WARN")), "{lines:?}");
    assert!(!log.lines().any(|line| line.contains("workers found") && line.contains("OpenAI")));
    assert_eq!(engine_of("gone"), "unknown");
    assert_eq!(engine_of("set"), "sglang", "the configuration has it");
    assert_eq!(engine_of("good"), "vllm");
}
