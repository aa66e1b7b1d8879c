//! I1, I6: workers that list no models take and refuse nothing of others, and an outage of a worker
//! at a start makes none of its names unknown.

use crate::rig::truth::get;
use crate::rig::{Client, Reply, RouterProcess, Worker, admin_post, post, until};
use crate::upgrade::Second;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

/// How a worker answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behavior {
    /// As an engine that lists this model.
    Lists(&'static str),
    /// It closes each connection.
    Down,
    /// This status for everything.
    Only(u16),
    /// As an engine, but for this status of its list.
    ListStatus(u16),
    /// As an engine with this list.
    List(&'static str),
}

const ODD: [Behavior; 7] = [
    Behavior::Only(404),
    Behavior::Only(405),
    Behavior::Only(501),
    Behavior::ListStatus(404),
    Behavior::List(r#"{"object":"list","data":[]}"#),
    Behavior::List(r#"{"object":"list","data":[{"id":"*"}]}"#),
    Behavior::List(r#"{"object":"list","data":[{"id":""},{"id":"*"}]}"#),
];

/// A worker whose behavior may change.
struct Odd {
    worker: Worker,
    behavior: Arc<Mutex<Behavior>>,
}

impl Odd {
    fn start(behavior: Behavior) -> Self {
        let behavior = Arc::new(Mutex::new(behavior));
        let now = Arc::clone(&behavior);
        let worker = Worker::start(move |seen, stream| {
            let now = *now.lock().unwrap();
            respond(now, &seen.head, stream)
        });
        Self { worker, behavior }
    }

    fn turn(&self, behavior: Behavior) {
        *self.behavior.lock().unwrap() = behavior;
    }

    fn name(&self) -> String {
        self.worker.address.to_string()
    }

    fn table(&self) -> String {
        format!("[[worker]]\nurl = \"{}\"\n", self.worker.url())
    }

    /// Prompts that it got since the last call.
    fn prompts(&self) -> usize {
        self.worker.seen.try_iter().filter(|seen| seen.head.starts_with("POST")).count()
    }
}

fn respond(behavior: Behavior, head: &str, stream: &mut TcpStream) -> bool {
    let is_list = head.starts_with("GET /v1/models");
    let (status, body) = match behavior {
        Behavior::Down => return false,
        Behavior::Only(status) => (status, String::new()),
        Behavior::ListStatus(status) if is_list => (status, String::new()),
        Behavior::List(list) if is_list => (200, list.to_owned()),
        Behavior::Lists(model) if is_list => {
            (200, json!({ "data": [{ "id": model, "object": "model" }] }).to_string())
        }
        _ if head.starts_with("GET /health ") || head.starts_with("POST") => (200, "{}".to_owned()),
        _ => (404, String::new()),
    };
    let reply = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(reply.as_bytes()).is_ok()
}

fn start(workers: &str) -> RouterProcess {
    RouterProcess::configured(&format!(
        "cores = [0]\npolicy = \"round_robin\"\n[timeouts]\ndrain = \"2s\"\n\
         [health]\ninterval = \"50ms\"\ntimeout = \"500ms\"\nunhealthy_after = 2\n{workers}"
    ))
}

fn ask(router: &RouterProcess, model: &str) -> Reply {
    let mut client = Client::connect(router.listen);
    client.send(&post(
        "/v1/completions",
        json!({"model": model, "prompt": "hi"}).to_string().as_bytes(),
    ));
    client.reply()
}

fn status(router: &RouterProcess, model: &str) -> u16 {
    ask(router, model).status
}

fn shown(router: &RouterProcess, worker: &Odd) -> Value {
    let reply = get(router.admin, &format!("/workers/{}", worker.name()));
    serde_json::from_slice(&reply.body).unwrap_or_default()
}

fn until_up(router: &RouterProcess, worker: &Odd) {
    until("it is up", || shown(router, worker)["state"] == "up");
}

/// The router has read its list, and does not serve by it.
fn until_odd(router: &RouterProcess, worker: &Odd) {
    until("its list is missing", || {
        let shown = shown(router, worker);
        shown["waits_for"].as_str().is_some_and(|why| why.contains("list of models"))
    });
}

fn listed(router: &RouterProcess) -> Vec<String> {
    let reply = get(router.listen, "/v1/models");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let list: Value = serde_json::from_slice(&reply.body).unwrap();
    list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["id"].as_str().unwrap().into())
        .collect()
}

fn call(address: SocketAddr, head: &str) -> u16 {
    let mut client = Client::connect(address);
    client.send(format!("{head} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes());
    client.reply().status
}

fn add(router: &RouterProcess, worker: &Odd) {
    let mut client = Client::connect(router.admin);
    let body = json!({ "url": worker.worker.url() }).to_string();
    client.send(&admin_post("/workers", body.as_bytes()));
    assert_eq!(client.reply().status, 201);
}

fn remove(router: &RouterProcess, worker: &Odd) {
    assert_eq!(call(router.admin, &format!("DELETE /workers/{}", worker.name())), 202);
    until("it is gone", || shown(router, worker)["name"].is_null());
}

/// The good worker's model is served by it alone, and other names are unknown.
fn is_undisturbed(router: &RouterProcess, good: &Odd) {
    for _ in 0..4 {
        let reply = ask(router, "good");
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.field("x-forebay-worker"), Some(&*good.name()));
    }
    assert_eq!(status(router, "x"), 404);
    assert_eq!(status(router, "*"), 404);
    assert_eq!(listed(router), ["good"]);
    assert_eq!(get(router.admin, "/readyz").status, 200);
}

#[test]
fn a_worker_without_a_list_changes_nothing_for_others() {
    let good = Odd::start(Behavior::Lists("good"));
    let router = start(&good.table());
    until_up(&router, &good);
    for (count, behavior) in ODD.into_iter().enumerate() {
        let odd = Odd::start(behavior);
        add(&router, &odd);
        until_odd(&router, &odd);
        if !matches!(behavior, Behavior::Only(_)) {
            until_up(&router, &odd);
        }
        is_undisturbed(&router, &good);
        assert_eq!(shown(&router, &odd)["models"], json!([]), "{behavior:?}");
        remove(&router, &odd);
        is_undisturbed(&router, &good);
        assert_eq!(odd.prompts(), 0, "{behavior:?}");
        assert_eq!(router.logged("worker lists no models"), count + 1, "once: {}", router.log());
    }
    assert_eq!(call(router.admin, "POST /admin/reload"), 200);
    is_undisturbed(&router, &good);
}

#[test]
fn its_removal_by_a_source_or_the_file_restores_all() {
    let good = Odd::start(Behavior::Lists("good"));
    let found = Odd::start(ODD[3]);
    let configured = Odd::start(ODD[5]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    std::fs::write(&file, found.table()).unwrap();
    let discovery = format!("[discovery]\ninterval = \"100ms\"\nfile = {file:?}\n");
    let router = start(&format!("{discovery}{}{}", good.table(), configured.table()));
    for odd in [&found, &configured] {
        until_odd(&router, odd);
        until_up(&router, odd);
    }
    until_up(&router, &good);
    is_undisturbed(&router, &good);
    let another = Odd::start(Behavior::Lists("another"));
    std::fs::write(&file, another.table()).unwrap();
    until("it is gone", || shown(&router, &found)["name"].is_null());
    router.edit(|text| text.replace(&configured.table(), ""));
    router.signal(Signal::HUP);
    until("it is gone", || shown(&router, &configured)["name"].is_null());
    until("the other serves", || status(&router, "another") == 200);
    assert_eq!([status(&router, "good"), status(&router, "x")], [200, 404]);
    assert_eq!([found.prompts(), configured.prompts()], [0, 0]);
}

/// An engine restarts behind a proxy that answers first.
#[test]
fn a_worker_that_lists_late_serves_its_model_again_and_no_other() {
    let good = Odd::start(Behavior::Lists("good"));
    let late = Odd::start(Behavior::Lists("late"));
    let router = start(&format!("{}{}", good.table(), late.table()));
    until_up(&router, &good);
    until_up(&router, &late);
    assert_eq!([status(&router, "good"), status(&router, "late")], [200, 200]);
    for behavior in [ODD[3], ODD[4]] {
        late.turn(Behavior::Down);
        until("it is down", || shown(&router, &late)["state"] == "down");
        assert_eq!(status(&router, "late"), 503);
        late.prompts();
        late.turn(behavior);
        until_odd(&router, &late);
        until_up(&router, &late);
        assert_eq!([status(&router, "good"), status(&router, "late")], [200, 503]);
        assert_eq!(late.prompts(), 0, "it may be another server");
        late.turn(Behavior::Lists("late"));
        until("it serves again", || status(&router, "late") == 200);
        assert_eq!(status(&router, "x"), 404);
    }
    // Where it stays up, only its list is missing.
    late.turn(Behavior::ListStatus(404));
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!([status(&router, "good"), status(&router, "late")], [200, 200]);
    remove(&router, &late);
    assert_eq!([status(&router, "good"), status(&router, "late")], [200, 404]);
}

#[test]
fn what_a_client_hears_does_not_depend_on_when_the_router_was_started() {
    let good = Odd::start(Behavior::Lists("good"));
    let late = Odd::start(Behavior::Down);
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot");
    let index = format!("[index]\nsnapshot = {snapshot:?}\n");
    let mut router = start(&format!("{index}{}{}", good.table(), late.table()));
    until("it serves", || status(&router, "good") == 200);
    assert_eq!([status(&router, "late"), status(&router, "x")], [503, 503], "not listed yet");
    late.turn(Behavior::Lists("late"));
    until_up(&router, &late);
    until("all have listed", || status(&router, "late") == 200);
    assert_eq!(status(&router, "x"), 404);
    late.turn(Behavior::Down);
    until("it is down", || shown(&router, &late)["state"] == "down");
    assert_eq!([status(&router, "late"), status(&router, "x")], [503, 404]);

    let second = Second(router.second());
    assert!(router.ended().success());
    until("the next process serves", || get(router.admin, "/readyz").status == 200);
    assert_eq!([status(&router, "late"), status(&router, "x")], [503, 404], "after an upgrade");
    assert_eq!(status(&router, "good"), 200);
    let memory = snapshot.with_added_extension("models");
    let is_kept = || std::fs::read_to_string(&memory).is_ok_and(|text| text.contains("late"));
    until("it is kept for a restart", is_kept);
    drop(second);
    until("its port is closed", || TcpStream::connect(router.listen).is_err());
    let _third = Second(router.second());
    until("it serves", || {
        TcpStream::connect(router.listen).is_ok() && status(&router, "good") == 200
    });
    assert_eq!([status(&router, "late"), status(&router, "x")], [503, 404], "after a kill");
    late.turn(Behavior::Lists("late"));
    until("it serves too", || status(&router, "late") == 200);
}

/// The model behind a name of `[[model]]` may be a model of a worker that has not answered, or of a
/// source that cannot be read. A name that only a client writes is unknown meanwhile.
#[test]
fn a_name_of_the_file_is_unknown_once_all_workers_and_sources_have_answered() {
    let good = Odd::start(Behavior::Lists("good"));
    let late = Odd::start(Behavior::Down);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    std::fs::write(&file, late.table()).unwrap();
    let discovery = format!("[discovery]\ninterval = \"100ms\"\nfile = {file:?}\n");
    let alias = "[[model]]\nname = \"alias\"\nto = \"target\"\n";
    let router = start(&format!("{discovery}{alias}{}", good.table()));
    let are = |wanted| ["alias", "x"].map(|name| status(&router, name)) == wanted;
    until_up(&router, &good);
    until("a worker has not answered", || are([503, 404]));
    late.turn(Behavior::Lists("other"));
    until("all have answered", || status(&router, "other") == 200 && are([404, 404]));
    std::fs::write(&file, "[[worker").unwrap();
    until("a source cannot be read", || are([503, 404]));
    let target = Odd::start(Behavior::Lists("target"));
    std::fs::write(&file, late.table() + &target.table()).unwrap();
    until("the target is served", || status(&router, "alias") == 200);
}

#[test]
fn the_only_worker_may_list_nothing() {
    let own = Odd::start(ODD[3]);
    let router = start(&own.table());
    until_up(&router, &own);
    until("it serves", || status(&router, "whatever") == 200);
    assert_eq!(listed(&router), [""; 0], "the router answers itself");
    assert_eq!(get(router.admin, "/readyz").status, 200);
    // Others that list nothing change nothing; the one that lists a name does.
    for behavior in [ODD[0], ODD[4]] {
        let odd = Odd::start(behavior);
        add(&router, &odd);
        until_odd(&router, &odd);
        assert_eq!(status(&router, "whatever"), 200);
        assert_eq!(odd.prompts(), 0, "{behavior:?}");
        remove(&router, &odd);
        assert_eq!(status(&router, "whatever"), 200);
    }
    let named = Odd::start(Behavior::Lists("named"));
    add(&router, &named);
    until("it serves its name", || listed(&router) == ["named"]);
    until("other names are unknown", || status(&router, "whatever") == 404);
    remove(&router, &named);
    assert_eq!(status(&router, "whatever"), 200, "again the only one");
}

#[test]
fn a_router_whose_workers_serve_nothing_is_not_ready() {
    let workers = [Odd::start(ODD[3]), Odd::start(ODD[4])];
    let router = start(&format!("{}{}", workers[0].table(), workers[1].table()));
    for worker in &workers {
        until_odd(&router, worker);
        until_up(&router, worker);
    }
    let ready = get(router.admin, "/readyz");
    assert!(ready.status == 503 && ready.text().contains("lists a model"), "{}", ready.text());
    assert_eq!(status(&router, "x"), 503);
    assert_eq!(listed(&router), [""; 0]);
    assert_eq!(workers.map(|worker| worker.prompts()), [0, 0]);
}

#[test]
fn a_configured_star_takes_what_no_worker_lists() {
    let good = Odd::start(Behavior::Lists("good"));
    let gateway = Odd::start(ODD[3]);
    let any = gateway.table() + "models = [\"*\"]\n";
    let router = start(&format!("{}{any}", good.table()));
    until_up(&router, &good);
    until_up(&router, &gateway);
    let by = |model: &str| ask(&router, model).field("x-forebay-worker").map(str::to_owned);
    assert_eq!([by("good"), by("else")], [Some(good.name()), Some(gateway.name())]);
    assert_eq!(listed(&router), ["good"]);
    gateway.turn(Behavior::Down);
    until("it is down", || shown(&router, &gateway)["state"] == "down");
    assert_eq!([status(&router, "good"), status(&router, "else")], [200, 503]);
    // A good worker that is down loses no request to it.
    gateway.turn(ODD[3]);
    until_up(&router, &gateway);
    good.turn(Behavior::Down);
    until("it is down", || shown(&router, &good)["state"] == "down");
    gateway.prompts();
    assert_eq!((status(&router, "good"), gateway.prompts()), (503, 0));
}

#[test]
fn the_doctor_names_the_worker_without_a_list() {
    let odd = Odd::start(ODD[3]);
    let router = start(&odd.table());
    let mut doctor = router.command(&["doctor", "--config"]);
    let mut text = String::new();
    doctor.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!doctor.wait().unwrap().success());
    let line = text.lines().find(|line| line.starts_with("worker ")).unwrap_or_default();
    assert!(line.contains("/v1/models: status 404. help: is this the engine's port?"), "{text}");
}
