//! M5: `forebay shadow` takes mirrored requests, forwards nothing, and shows what `kv` would give.

use crate::rig::truth::get;
use crate::rig::{Client, any_port, port_for_later, post, until};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const CHATS: usize = 9;

struct ShadowProcess {
    child: Child,
    listen: SocketAddr,
    admin: SocketAddr,
}

impl Drop for ShadowProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ShadowProcess {
    fn start(engines: &[EngineHandle], json: &Path) -> Self {
        let [listen, admin] = [port_for_later(), port_for_later()];
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["shadow", "--listen", &listen.to_string(), "--admin", &admin.to_string()]);
        command.args(["--calibrate", "1s", "--warm-up", "1ms", "--json"]).arg(json);
        for engine in engines {
            command.args(["--worker", &engine.url()]);
        }
        let child = command.stdout(Stdio::piped()).spawn().expect("the program runs");
        until("the page is there", || TcpStream::connect(admin).is_ok());
        Self { child, listen, admin }
    }

    /// What it prints when it is told to end.
    fn last_words(&mut self) -> String {
        let process = Pid::from_child(&self.child);
        kill_process(process, Signal::TERM).unwrap();
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        text
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&get(self.admin, "/shadow").body).expect("JSON")
    }
}

fn engine() -> EngineHandle {
    let config = EngineConfig {
        listen: any_port(),
        model: Some("m".to_owned()),
        prefill_tokens_per_s: 20_000.0,
        ..EngineConfig::default()
    };
    let text = EngineText::load(None).expect("the built-in tokenizer");
    Engine::start_with(config, text).expect("the engine starts")
}

/// The balancer and its mirror: each request goes to the engines in turn, and to the shadow.
struct MirroringBalancer<'a> {
    engines: Vec<Client>,
    mirror: &'a ShadowProcess,
    sent: usize,
}

impl MirroringBalancer<'_> {
    /// A turn of each chat; the chats share nothing.
    fn turn(&mut self, chats: &mut [Vec<Value>]) {
        for messages in chats {
            let question = format!("question {}. ", self.sent).repeat(40);
            messages.push(json!({ "role": "user", "content": question }));
            let body = json!({ "model": "m", "messages": messages, "max_tokens": 4 }).to_string();
            let request = post("/v1/chat/completions", body.as_bytes());
            let mut mirrored = Client::connect(self.mirror.listen);
            mirrored.send(&request);
            assert_eq!(mirrored.reply().status, 204);
            let next = self.sent % self.engines.len();
            self.engines[next].send(&request);
            let answer: Value = serde_json::from_slice(&self.engines[next].reply().body).unwrap();
            messages.push(answer["choices"][0]["message"].clone());
            self.sent += 1;
        }
    }
}

fn number(report: &Value, path: &str) -> f64 {
    report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

#[test]
fn kv_is_promised_more_hits_than_the_balancer_gets_and_engines_get_no_request() {
    let engines = [engine(), engine()];
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("shadow.json");
    let mut shadow = ShadowProcess::start(&engines, &json);
    let connect = |engine: &EngineHandle| {
        Client::connect(engine.url().trim_start_matches("http://").parse().expect("an address"))
    };
    let clients = engines.iter().map(connect).collect();
    let mut balancer = MirroringBalancer { engines: clients, mirror: &shadow, sent: 0 };
    until("the engines are polled", || number(&shadow.report(), "/fleet/engines") > 0.0);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut before = vec![Vec::new(); CHATS];
    (0..3).for_each(|_| balancer.turn(&mut before));
    until("the figures count", || {
        if shadow.report()["phase"] == "counting" {
            return true;
        }
        balancer.turn(&mut vec![Vec::new(); 1]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        false
    });
    let begun = balancer.sent;
    let mut chats = vec![Vec::new(); CHATS];
    (0..4).for_each(|_| balancer.turn(&mut chats));
    let all = (balancer.sent - begun) as f64;
    until("all are counted", || {
        let report = shadow.report();
        ["present", "control", "kv"]
            .iter()
            .all(|rule| number(&report, &format!("/figures/{rule}/requests")) >= all)
    });
    let report = shadow.report();
    let [present, control, kv] = ["present", "control", "kv"]
        .map(|rule| number(&report, &format!("/figures/{rule}/hit_rate")));
    // Nine chats in turn on two engines: each turn finds the other engine, and the turn before it.
    assert!(kv > present + 0.1, "{report:#}");
    // On a busy machine a turn may reach the simulation before the turn before it has ended there.
    assert!((control - present).abs() < 0.2 && kv > control + 0.1, "{report:#}");
    assert!(number(&report, "/figures/gpu_s_saved_a_day") > 0.0, "{report:#}");
    assert_eq!(report["mirrored"]["lost"], 0, "{report:#}");
    // The engines have the requests of the balancer only.
    let finished: u64 =
        engines.iter().flat_map(EngineHandle::stats).map(|rank| rank.requests.received).sum();
    assert_eq!(finished, balancer.sent as u64);
    let page = get(shadow.admin, "/").text();
    assert!(page.contains("<svg") && !page.contains("question"), "{page}");
    until("the file is there", || std::fs::read_to_string(&json).is_ok_and(|t| t.len() > 10));
    assert_eq!(std::fs::metadata(&json).unwrap().permissions().mode() & 0o777, 0o600);
    let last = shadow.last_words();
    assert!(last.contains("counted for") && last.contains("kv, simulated: the promise"), "{last}");
    assert!(last.contains("present, by the engines' counters"), "{last}");
    assert!(last.contains("control, round_robin simulated"), "{last}");
}

#[test]
fn what_a_mirror_sends_never_ends_the_shadow() {
    let engines = [engine()];
    let folder = tempfile::tempdir().unwrap();
    let shadow = ShadowProcess::start(&engines, &folder.path().join("shadow.json"));
    let large = vec![b'x'; 3 << 20];
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    for body in [&b"{"[..], b"", b"{\"model\":\"other\",\"prompt\":\"a\"}", &deep] {
        let mut client = Client::connect(shadow.listen);
        client.send(&post("/v1/completions", body));
        assert_eq!(client.reply().status, 204);
    }
    // Longer than the limit: answered, or cut while it is sent.
    let mut client = Client::connect(shadow.listen);
    let _cut = client.try_send(&post("/v1/completions", &large));
    // Leaves within the body, and is no HTTP.
    let half = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 99\r\n\r\n{";
    for bytes in [&half[..], b"\x16\x03\x01 no HTTP\r\n\r\n", b""] {
        let mut stream = TcpStream::connect(shadow.listen).unwrap();
        stream.write_all(bytes).unwrap();
    }
    until("no place is held", || shadow.report()["mirrored"]["lost"] == 2);
    // More slow senders than bodies that are read: the oldest give way.
    let slow = (0..70).map(|_| {
        let mut stream = TcpStream::connect(shadow.listen).unwrap();
        stream.write_all(half).unwrap();
        stream
    });
    let slow: Vec<TcpStream> = slow.collect();
    until("the oldest gave way", || shadow.report()["mirrored"]["lost"] == 8);
    let mut client = Client::connect(shadow.listen);
    client.send(&post("/v1/completions", br#"{"model":"m","prompt":"b","max_tokens":1}"#));
    assert_eq!(client.reply().status, 204);
    until("a body among slow ones is read", || shadow.report()["mirrored"]["prompts"] == 1);
    drop(slow);
    let idle: Vec<TcpStream> =
        (0..300).filter_map(|_| TcpStream::connect(shadow.listen).ok()).collect();
    // Of 300 connections at least 44 find no place: they are closed, and count.
    until("all are counted", || {
        let report = shadow.report();
        report["mirrored"]["other"] == 4 && report["mirrored"]["lost"].as_u64() >= Some(72 + 44)
    });
    drop(idle);
    let mut client = Client::connect(shadow.listen);
    client.send(&post("/v1/completions", br#"{"model":"m","prompt":"a","max_tokens":1}"#));
    assert_eq!(client.reply().status, 204);
    until("the last is read", || shadow.report()["mirrored"]["prompts"] == 2);
}
