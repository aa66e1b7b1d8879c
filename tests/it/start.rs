//! The start of a router before workers of which some are missing, or are no engines.

use crate::rig::truth::get;
use crate::rig::{ASK, Client, RouterProcess, Worker, port_for_later, post, until};
use serde_json::Value;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
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

/// M1: a collector of the log reads JSON and nothing else. Each start fails here, for a reason of
/// another step of the start.
#[test]
fn a_start_that_fails_writes_json_where_the_log_is_json() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tls");
    let tls =
        |cert: &str| format!("[tls]\ncert = \"{data}/{cert}\"\nkey = \"{data}/router.key\"\n");
    let free = port_for_later();
    for (listen, before, after, wanted) in [
        (free, "colour = 1", String::new(), "unknown key `colour`"),
        (free, "cores = [999]", String::new(), "core 999 is not available"),
        (free, "admin_token_file = \"/none\"", String::new(), "`admin_token_file` /none"),
        (free, "", tls("none.pem"), "`tls.cert`"),
        (free, "", tls("rsa2048.pem"), "is not the key of"),
        (free, "", "level = \"info,=x\"".to_owned(), "`log.level`"),
        (taken, "", tls("router.pem") + "client_ca = \"/none\"", "`tls.client_ca` /none"),
        (taken, "", String::new(), "listens there"),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let admin = port_for_later();
        let text = format!(
            "listen = \"{listen}\"\nadmin = \"{admin}\"\n{before}\n[log]\njson = true\n{after}\n\
             [[worker]]\nurl = \"http://127.0.0.1:9\"\n"
        );
        std::fs::write(file.path(), text).unwrap();
        let ran = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--config"])
            .arg(file.path())
            .output()
            .unwrap();
        let log = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{wanted}: {log}");
        let lines: Result<Vec<Value>, _> = log.lines().map(serde_json::from_str).collect();
        let lines = lines.unwrap_or_else(|error| panic!("{error}: {log}"));
        assert!(lines.iter().any(|line| line["level"] == "ERROR"), "{log}");
        assert_eq!(lines.last().unwrap()["message"], "not started", "{log}");
        let is_named = |line: &Value| line.to_string().contains(wanted);
        assert!(lines.iter().any(is_named), "{wanted}: {log}");
    }
}

/// M1: no level of the log silences the reason of a start that fails.
#[test]
fn a_start_that_fails_has_its_reason_at_each_level() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    for level in ["off", "error", "forebay_dataplane=info", "off,forebay=off"] {
        for is_json in [false, true] {
            for (listen, key, wanted) in [
                (taken, "", "listens there"),
                (port_for_later(), "cores = [999]", "core 999 is not available"),
                (port_for_later(), "colour = 1", "unknown key `colour`"),
            ] {
                let file = tempfile::NamedTempFile::new().unwrap();
                let admin = port_for_later();
                let text = format!(
                    "listen = \"{listen}\"\nadmin = \"{admin}\"\n{key}\n[log]\njson = {is_json}\n\
                     level = \"{level}\"\n[[worker]]\nurl = \"http://127.0.0.1:9\"\n"
                );
                std::fs::write(file.path(), text).unwrap();
                let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
                let ran = command.args(["serve", "--config"]).arg(file.path()).output().unwrap();
                let log = String::from_utf8(ran.stderr).unwrap();
                assert_eq!(ran.status.code(), Some(1), "{level} {is_json}: {log}");
                assert!(log.contains(wanted), "{level} {is_json}, {wanted}: {log:?}");
                let is_object = |line: &str| serde_json::from_str::<Value>(line).is_ok();
                assert!(!is_json || log.lines().all(is_object), "{level}: {log}");
                let has_level = |line: &str| line.contains("Z ERROR ") || line.contains("Z  WARN ");
                assert!(is_json || log.lines().all(has_level), "{level}: {log}");
            }
        }
    }
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
