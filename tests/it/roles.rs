//! Prefill and decode workers as the control plane finds them: roles and registries asked of
//! servers that only answer questions, readiness that follows them, ranks that come and go.

use crate::rig::{admin, any_port, config, metric, router, until};
use forebay::config::{Config, KvTransferConfig, WorkerConfig, WorkerRole};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MODELS: &str = r#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"OWNER"}]}"#;
const WHOLE: &str = r#"{"attn_tp_size":1,"dp_size":1,"follow_bootstrap_room":true}"#;
const NOT_YET: &str = "Prefill server not fully registered yet (0 workers registered).";

/// A server that answers GETs by path, and 404 to the rest.
struct Stub {
    address: SocketAddr,
    answers: Arc<Mutex<HashMap<&'static str, (u16, String)>>>,
}

impl Stub {
    fn start(at: &str) -> Option<Self> {
        let listener = TcpListener::bind(at).ok()?;
        let address = listener.local_addr().unwrap();
        let answers = Arc::new(Mutex::new(HashMap::new()));
        let known = Arc::clone(&answers);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let known = Arc::clone(&known);
                std::thread::spawn(move || answer(stream, &known));
            }
        });
        Some(Self { address, answers })
    }

    fn sglang(at: &str, mode: &str, registry_port: u16) -> Option<Self> {
        let stub = Self::start(at)?;
        stub.set("/v1/models", 200, &MODELS.replace("OWNER", "sglang"));
        stub.set("/model_info", 200, "{\"model_path\":\"m\"}");
        let info = format!(
            r#"{{"model_path":"m","page_size":4,"dp_size":1,"disaggregation_mode":"{mode}","disaggregation_bootstrap_port":{registry_port}}}"#
        );
        stub.set("/server_info", 200, &info);
        Some(stub)
    }

    fn set(&self, path: &'static str, status: u16, body: &str) {
        self.answers.lock().unwrap().insert(path, (status, body.to_owned()));
    }

    fn worker(&self) -> WorkerConfig {
        WorkerConfig { url: format!("http://{}", self.address), ..WorkerConfig::default() }
    }
}

fn answer(mut stream: TcpStream, known: &Mutex<HashMap<&'static str, (u16, String)>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let (status, body) = known.lock().unwrap().get(path).cloned().unwrap_or((404, String::new()));
    let reply = format!(
        "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(reply.as_bytes());
}

fn asking(workers: Vec<WorkerConfig>) -> Config {
    let mut config = config(&[]);
    config.listen = any_port();
    config.admin = any_port();
    config.workers = workers;
    config.health.enabled = true;
    config.health.interval = Duration::from_millis(50);
    config.health.timeout = Duration::from_millis(500);
    config
}

fn worker(handle: &ServerHandle, index: usize) -> Value {
    let list: Value = serde_json::from_str(&admin(handle, "/workers").text()).unwrap();
    list["workers"][index].clone()
}

fn is_ready(handle: &ServerHandle) -> bool {
    admin(handle, "/readyz").status == 200
}

#[test]
fn a_pair_is_ready_once_its_prefill_worker_is_registered_and_no_longer_than_that() {
    let registry = Stub::start("127.0.0.1:0").unwrap();
    registry.set("/route", 503, NOT_YET);
    let prefill = Stub::sglang("127.0.0.1:0", "prefill", registry.address.port()).unwrap();
    let decode = Stub::sglang("127.0.0.1:0", "decode", 8_998).unwrap();
    let handle = router(asking(vec![prefill.worker(), decode.worker()]));
    until("both are described", || {
        worker(&handle, 0)["role"] == "prefill" && worker(&handle, 1)["role"] == "decode"
    });
    until("it is said what is waited for", || {
        worker(&handle, 0)["waits_for"].as_str().is_some_and(|text| text.contains("status 503"))
    });
    until("the reason is told", || {
        let why = admin(&handle, "/readyz");
        why.status == 503 && why.text().contains("prefill")
    });
    until("it is counted", || {
        metric(&handle, "forebay_workers{role=\"prefill\",state=\"registering\"}") > 0.0
    });

    registry.set("/route", 200, WHOLE);
    until("the pair is ready", || is_ready(&handle));
    let found = worker(&handle, 0);
    assert_eq!(found["waits_for"], Value::Null);
    let kv_transfer = &found["ranks"][0]["kv_transfer"];
    assert_eq!(kv_transfer["bootstrap_host"], "127.0.0.1");
    assert_eq!(kv_transfer["bootstrap_port"], registry.address.port());
    assert_eq!((&kv_transfer["kind"], &kv_transfer["dp_size"]), (&"bootstrap".into(), &1.into()));

    registry.set("/route", 503, NOT_YET);
    until("it restarts: out at once", || !is_ready(&handle));
    registry.set("/route", 200, WHOLE);
    until("it is back", || is_ready(&handle));
    prefill.set("/model_info", 500, "");
    prefill.set("/v1/models", 500, "");
    until("it is down", || !is_ready(&handle) && worker(&handle, 0)["state"] == "down");
    handle.stop();
}

#[test]
fn names_that_do_not_resolve_keep_a_worker_out_and_are_named() {
    let registry = Stub::start("127.0.0.1:0").unwrap();
    registry.set("/route", 200, WHOLE);
    let prefill = Stub::sglang("127.0.0.1:0", "prefill", registry.address.port()).unwrap();
    let decode = Stub::sglang("127.0.0.1:0", "decode", 8_998).unwrap();
    let bootstrap_host = Some("no-such-host.invalid".to_owned());
    let kv_transfer = KvTransferConfig { bootstrap_host, ..KvTransferConfig::default() };
    let handle =
        router(asking(vec![WorkerConfig { kv_transfer, ..prefill.worker() }, decode.worker()]));
    until("it is said why", || {
        let lacks = worker(&handle, 0)["waits_for"].clone();
        lacks.as_str().is_some_and(|text| text.contains("no-such-host.invalid"))
    });
    assert!(!is_ready(&handle));
    handle.stop();
}

#[test]
fn an_ipv6_worker_is_told_to_others_without_brackets() {
    let Some(registry) = Stub::start("[::1]:0") else {
        assert!(TcpListener::bind("[::1]:0").is_err(), "this machine has no IPv6");
        return;
    };
    registry.set("/route", 200, WHOLE);
    let prefill = Stub::sglang("[::1]:0", "prefill", registry.address.port()).unwrap();
    let handle = router(asking(vec![prefill.worker()]));
    until("it is registered", || worker(&handle, 0)["ranks"][0]["kv_transfer"].is_object());
    assert_eq!(worker(&handle, 0)["ranks"][0]["kv_transfer"]["bootstrap_host"], "::1");
    assert!(!is_ready(&handle), "nobody decodes");
    handle.stop();
}

#[test]
fn ranks_that_a_worker_has_no_more_leave_list_and_metrics() {
    let metrics = |ranks: u32| -> String {
        (0..ranks)
            .map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 0\n"))
            .collect()
    };
    let vllm = Stub::start("127.0.0.1:0").unwrap();
    vllm.set("/v1/models", 200, &MODELS.replace("OWNER", "vllm"));
    vllm.set("/metrics", 200, &metrics(4));
    vllm.set("/health", 200, "");
    let mut config = asking(vec![WorkerConfig { role: WorkerRole::Both, ..vllm.worker() }]);
    config.health.unhealthy_after = 1;
    let handle = router(config);
    let ranks = || worker(&handle, 0)["ranks"].as_array().map_or(0, Vec::len);
    let shown = || admin(&handle, "/metrics").text().matches("forebay_in_flight{").count();
    until("four ranks", || ranks() == 4 && shown() == 4);
    vllm.set("/health", 503, "");
    until("it restarts", || worker(&handle, 0)["state"] == "down");
    vllm.set("/metrics", 200, &metrics(2));
    vllm.set("/health", 200, "");
    until("two ranks", || ranks() == 2 && shown() == 2);
    assert!(!admin(&handle, "/metrics").text().contains("dp_rank=\"3\""));
    handle.stop();
}
