//! Files of TLS to workers and to the issuer of tokens that change while the router runs.

use crate::rig::tls_front::Manners;
use crate::rig::{
    ASK, Certificates, Client, TlsFront, Worker, admin_post, any_port, metric, post, until, usable,
};
use forebay::config::{ConfigSource, Flags, Reloader};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::server::{ServerHandle, start_reloadable};
use serde_json::{Value, json};
use std::path::PathBuf;

const JWKS: &str = include_str!("../data/jwt/rsa.json");
const TOKEN: &str = include_str!("../data/jwt/rsa.jwt");

/// The files of a router, which believes and shows what lies there.
struct Files(tempfile::TempDir);

impl Files {
    fn new(of: &Certificates) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.believe(of);
        files.show(of);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn believe(&self, of: &Certificates) {
        std::fs::copy(of.ca(), self.path("ca.pem")).unwrap();
    }

    /// A fresh certificate each time.
    fn show(&self, of: &Certificates) {
        let own = of.sign("router", &["router"]);
        std::fs::copy(own.cert, self.path("router.pem")).unwrap();
        std::fs::copy(own.key, self.path("router.key")).unwrap();
    }

    fn write(&self, workers: &[&str], more: &str) {
        let workers: String =
            workers.iter().map(|url| format!("[[worker]]\nurl = \"{url}\"\n")).collect();
        let text = format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ncores = [0]\n\
             [upstream_tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n{more}\n{workers}",
            self.path("ca.pem"),
            self.path("router.pem"),
            self.path("router.key"),
        );
        std::fs::write(self.path("forebay.toml"), text).unwrap();
    }

    fn start(&self) -> ServerHandle {
        let file = Some(self.path("forebay.toml"));
        let source = ConfigSource { file, flags: Flags::default() };
        let config = source.load().unwrap().usable().unwrap();
        let reloader = Reloader::new(source, config.clone());
        start_reloadable(config, false, reloader).unwrap()
    }
}

/// Status, and the keys that were applied.
fn reload(handle: &ServerHandle) -> (u16, Value) {
    let mut client = Client::connect(handle.admin);
    client.send(&admin_post("/admin/reload", b""));
    let reply = client.reply();
    let said: Value = serde_json::from_slice(&reply.body).unwrap();
    (reply.status, said["applied"].clone())
}

fn engine() -> EngineHandle {
    let text = EngineText::load(None).unwrap();
    let engine = EngineConfig { listen: any_port(), ..EngineConfig::default() };
    Engine::start_with(engine, text).unwrap()
}

fn status(handle: &ServerHandle, token: &str, body: &[u8]) -> u16 {
    let mut client = Client::connect(handle.listen);
    let request = String::from_utf8(post("/v1/completions", body)).unwrap();
    let field = format!("authorization: Bearer {}\r\nhost:", token.trim());
    client.send(request.replacen("host:", &field, 1).as_bytes());
    client.reply().status
}

/// For the simulated engine.
const BODY: &[u8] = br#"{"model":"sim","prompt":"hi","max_tokens":1}"#;
const UNCHECKED: &str = "[health]\nenabled = false";
const CHECKED: &str = "[health]\ninterval = \"50ms\"\nunhealthy_after = 1\nhealthy_after = 1";

#[test]
fn a_renewed_certificate_and_another_authority_count_for_new_connections() {
    let good = Certificates::new();
    let other = Certificates::new();
    let worker = Worker::json("{}");
    let ca = good.ca();
    let manners = Manners { clients: Some(&ca), ..Manners::default() };
    let front = TlsFront::with(worker.address, &good.sign("worker", &["localhost"]), manners);
    let files = Files::new(&other);
    files.write(&[&front.url("localhost")], UNCHECKED);
    let handle = files.start();
    let comes_to = |wanted: u16| {
        until("new connections go by the new files", || {
            front.cut_all();
            status(&handle, "t", ASK) == wanted
        });
    };
    comes_to(502);
    files.believe(&good);
    assert_eq!(reload(&handle), (200, json!(["upstream_tls"])));
    comes_to(502);
    for (shown, wanted) in [(&good, 200), (&good, 200), (&other, 502), (&good, 200)] {
        files.show(shown);
        assert_eq!(reload(&handle), (200, json!(["upstream_tls"])));
        comes_to(wanted);
    }
    assert_eq!(reload(&handle), (200, json!([])), "nothing is new");
    std::fs::write(files.path("router.pem"), "no certificate").unwrap();
    assert_eq!(reload(&handle).0, 400);
    front.cut_all();
    comes_to(200);
}

#[test]
fn health_goes_by_the_new_files_and_workers_join_and_leave() {
    let good = Certificates::new();
    let other = Certificates::new();
    let first = engine();
    let second = engine();
    let ca = good.ca();
    let manners = Manners { clients: Some(&ca), ..Manners::default() };
    let behind = second.url().strip_prefix("http://").unwrap().parse().unwrap();
    let front = TlsFront::with(behind, &good.sign("worker", &["localhost"]), manners);
    let plain = first.url();
    let secure = front.url("localhost");
    let files = Files::new(&other);
    files.write(&[&plain], CHECKED);
    let handle = files.start();
    until("the first is up", || usable(&handle) == 1);
    files.write(&[&plain, &secure], CHECKED);
    assert_eq!(reload(&handle), (200, json!(["worker"])));
    files.believe(&good);
    files.show(&good);
    assert_eq!(reload(&handle), (200, json!(["upstream_tls"])));
    until("the second is up", || usable(&handle) == 2);
    files.show(&other);
    assert_eq!(reload(&handle).0, 200);
    until("the second is down", || usable(&handle) == 1);
    files.show(&good);
    assert_eq!(reload(&handle).0, 200);
    until("it is up again", || usable(&handle) == 2);
    files.write(&[&plain], CHECKED);
    assert_eq!(reload(&handle), (200, json!(["worker"])));
    until("the second has gone", || usable(&handle) == 1);
    files.write(&[&secure], CHECKED);
    assert_eq!(reload(&handle).0, 200);
    until("the second alone serves", || {
        let shaken = metric(&handle, "forebay_upstream_handshakes_total");
        usable(&handle) == 1 && status(&handle, "t", BODY) == 200 && shaken > 0.0
    });
}

fn add(handle: &ServerHandle, url: &str) -> (u16, Value) {
    let mut client = Client::connect(handle.admin);
    let body = json!({ "url": url, "name": "secure", "wait": "30s" }).to_string();
    client.send(&admin_post("/workers", body.as_bytes()));
    let reply = client.reply();
    (reply.status, serde_json::from_slice(&reply.body).unwrap())
}

#[test]
fn a_call_adds_a_worker_over_tls_which_a_reload_renews_and_a_restart_keeps() {
    let good = Certificates::new();
    let other = Certificates::new();
    let engine = engine();
    let ca = good.ca();
    let manners = Manners { clients: Some(&ca), ..Manners::default() };
    let behind = engine.url().strip_prefix("http://").unwrap().parse().unwrap();
    let front = TlsFront::with(behind, &good.sign("worker", &["localhost"]), manners);
    let secure = front.url("localhost");
    let files = Files::new(&good);
    let state = format!("workers_state = {:?}\n", files.path("workers"));
    files.write(&[], CHECKED);
    let text = std::fs::read_to_string(files.path("forebay.toml")).unwrap();
    std::fs::write(files.path("forebay.toml"), state + &text).unwrap();
    let handle = files.start();
    std::fs::remove_file(files.path("ca.pem")).unwrap();
    let (status, said) = add(&handle, &secure);
    assert_eq!(status, 400, "{said}");
    assert!(said["error"].as_str().unwrap().contains("`upstream_tls`"), "{said}");
    files.believe(&good);
    let (status, shown) = add(&handle, &secure);
    assert_eq!((status, &shown["url"]), (201, &json!(secure)));
    assert_eq!(status_of(&handle), 200);
    assert!(metric(&handle, "forebay_upstream_handshakes_total") > 0.0);
    assert_eq!(add(&handle, &secure).0, 409);
    assert_eq!(add(&handle, &engine.url()).0, 409, "the name is taken");
    files.show(&other);
    assert_eq!(reload(&handle), (200, json!(["upstream_tls"])));
    until("the worker refuses the other certificate", || usable(&handle) == 0);
    files.show(&good);
    assert_eq!(reload(&handle), (200, json!(["upstream_tls"])));
    until("it is up again", || usable(&handle) == 1);
    handle.stop();
    handle.join().unwrap();

    let handle = files.start();
    until("it is up after a restart", || usable(&handle) == 1);
    assert_eq!(status_of(&handle), 200);
    assert!(metric(&handle, "forebay_upstream_handshakes_total") > 0.0);
}

fn status_of(handle: &ServerHandle) -> u16 {
    status(handle, "t", BODY)
}

#[test]
fn keys_of_tokens_come_over_tls_from_a_believed_authority_only() {
    let good = Certificates::new();
    let other = Certificates::new();
    let worker = Worker::json("{}");
    let issuer = Worker::json(JWKS);
    let front = TlsFront::of(issuer.address, &good.sign("issuer", &["localhost"]));
    let files = Files::new(&other);
    let more = format!(
        "{UNCHECKED}\n[jwt]\njwks = \"{}/keys\"\nissuer = \"https://issuer.example\"\n\
         audience = \"forebay\"\n",
        front.url("localhost")
    );
    files.write(&[&worker.url()], &more);
    let handle = files.start();
    assert_eq!(status(&handle, TOKEN, ASK), 401);
    assert!(issuer.seen.try_recv().is_err(), "no question passes a false authority");
    files.believe(&good);
    assert_eq!(reload(&handle).0, 200);
    until("the keys have come", || status(&handle, TOKEN, ASK) == 200);
    assert!(issuer.next().head.starts_with("GET /keys HTTP/1.1\r\n"));
    // The keys stay, whatever becomes of the authority.
    files.believe(&other);
    assert_eq!(reload(&handle).0, 200);
    assert_eq!(status(&handle, TOKEN, ASK), 200);
}
