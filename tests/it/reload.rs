//! Limits that change while requests are served: the configuration read again, and rejection
//! windows by hand.

use crate::rig::{
    ASK, Client, Reply, RouterProcess, Worker, admin_post, config, metric, port_for_later, post,
    router, truth, until,
};
use forebay::config::{ConfigSource, Flags, Reloader};
use forebay::server::{ServerHandle, start_reloadable};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

/// A worker that answers with `ab`, and `cd` when it is told to; what is asked with `?now` is
/// answered at once.
fn holding() -> (Worker, Sender<()>) {
    let (release, released) = channel::<()>();
    let released = std::sync::Mutex::new(released);
    let worker = Worker::start(move |seen, stream| {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
            .unwrap();
        if !seen.head.contains("?now") {
            let _ = released.lock().unwrap().recv();
        }
        stream.write_all(b"2\r\ncd\r\n0\r\n\r\n").is_ok()
    });
    (worker, release)
}

/// A file without a queue, so that a full rank shows at once.
fn write(file: &Path, worker: &Worker, change: &str) {
    write_with(file, worker, change, "off");
}

fn write_with(file: &Path, worker: &Worker, change: &str, mode: &str) {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ncores = [0]\nrejection_window = \"0s\"\n{change}\n\
         [health]\nenabled = false\n[queue]\nmode = \"{mode}\"\n[[worker]]\nurl = \"{}\"\n",
        worker.url()
    );
    std::fs::write(file, text).unwrap();
}

fn start(worker: &Worker, change: &str) -> (ServerHandle, PathBuf, tempfile::TempDir) {
    start_with(worker, change, "off")
}

fn start_with(
    worker: &Worker,
    change: &str,
    mode: &str,
) -> (ServerHandle, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forebay.toml");
    write_with(&file, worker, change, mode);
    let source = ConfigSource { file: Some(file.clone()), flags: Flags::default() };
    let config = source.load().unwrap().usable().unwrap();
    let reloader = Reloader::new(source, config.clone());
    let handle = start_reloadable(config, false, reloader).unwrap();
    (handle, file, folder)
}

fn say(admin: SocketAddr, path: &str, body: &str) -> (u16, Value) {
    let mut client = Client::connect(admin);
    client.send(&admin_post(path, body.as_bytes()));
    let reply = client.reply();
    (reply.status, serde_json::from_slice(&reply.body).unwrap())
}

fn ask(address: SocketAddr, path: &str) -> Reply {
    let mut client = Client::connect(address);
    client.send(&post(path, ASK));
    client.reply()
}

#[test]
fn a_raised_limit_counts_at_once_and_nobody_is_disturbed() {
    let (worker, release) = holding();
    let (handle, file, _folder) = start(&worker, "rank_concurrency_max = 1");
    let mut first = Client::connect(handle.listen);
    first.send(&post("/v1/completions", ASK));
    worker.next();
    let refused = ask(handle.listen, "/v1/completions?now");
    assert_eq!((refused.status, refused.field("x-forebay-reason")), (429, Some("rejected-busy")));

    write(&file, &worker, "rank_concurrency_max = 2\npolicy = \"random\"");
    let (status, done) = say(handle.admin, "/admin/reload", "");
    assert_eq!(
        (status, done),
        (
            200,
            json!({ "applied": ["rank_concurrency_max"], "needs_restart": ["policy"],
                "findings": [] })
        )
    );
    until("the shard has the limit", || ask(handle.listen, "/v1/completions?now").status == 200);
    assert_eq!(metric(&handle, "forebay_rank_places_max").to_bits(), 2_f64.to_bits());

    // Also while it drains: what is under way ends as it would have.
    handle.stop();
    write(&file, &worker, "rank_concurrency_max = 3");
    let (status, done) = say(handle.admin, "/admin/reload", "");
    assert_eq!((status, &done["applied"]), (200, &json!(["rank_concurrency_max"])));
    assert_eq!(done["needs_restart"], json!([]), "the policy is as it was at the start");
    release.send(()).unwrap();
    let reply = first.reply();
    assert_eq!((reply.text(), reply.complete), ("abcd".into(), true));
    handle.join().unwrap();
}

#[test]
fn a_raised_limit_counts_for_those_who_wait() {
    let (worker, release) = holding();
    let (handle, file, _folder) = start_with(&worker, "rank_concurrency_max = 1", "pool");
    let mut first = Client::connect(handle.listen);
    first.send(&post("/v1/completions", ASK));
    worker.next();
    let mut second = Client::connect(handle.listen);
    second.send(&post("/v1/completions?now", ASK));
    until("it waits", || metric(&handle, "forebay_queue_depth").to_bits() == 1_f64.to_bits());
    write_with(&file, &worker, "rank_concurrency_max = 2", "pool");
    assert_eq!(say(handle.admin, "/admin/reload", "").0, 200);
    let reply = second.reply();
    assert_eq!((reply.text(), reply.complete), ("abcd".into(), true));
    release.send(()).unwrap();
    assert_eq!(first.reply().text(), "abcd");
}

#[test]
fn a_broken_file_changes_nothing_and_says_why() {
    let (worker, _release) = holding();
    let (handle, file, _folder) = start(&worker, "rank_concurrency_max = 5");
    let places = || metric(&handle, "forebay_rank_places_max");
    until("the fleet is there", || places() > 0.0);
    write(&file, &worker, "rank_concurrency_max = 6\nrejektion_window = \"1s\"");
    let (status, answer) = say(handle.admin, "/admin/reload", "");
    assert_eq!((status, &answer["error"]), (400, &json!("there are errors in the configuration")));
    let finding = &answer["findings"][0];
    assert_eq!(finding["severity"], "error");
    assert!(finding["where"].as_str().unwrap().ends_with("forebay.toml:6:1"), "{finding}");
    assert!(finding["what"].as_str().unwrap().contains("rejektion_window"), "{finding}");
    std::fs::remove_file(&file).unwrap();
    let (status, answer) = say(handle.admin, "/admin/reload", "");
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("cannot read"), "{answer}");
    assert_eq!(places().to_bits(), 5_f64.to_bits());
    assert_eq!(ask(handle.listen, "/v1/completions?now").status, 200);
}

#[test]
fn a_router_in_a_program_has_nothing_to_read_again() {
    let worker = Worker::json("{}");
    let handle = router(config(&[&worker]));
    assert_eq!(say(handle.admin, "/admin/reload", "").0, 409);
}

#[test]
fn workers_of_the_file_join_and_leave() {
    let (first, second) = (Worker::json("{}"), Worker::json("{}"));
    let named = |worker: &Worker, name: &str| {
        format!("[[worker]]\nname = \"{name}\"\nurl = \"{}\"\n", worker.url())
    };
    let (handle, file, _folder) = start(&first, "");
    let base = std::fs::read_to_string(&file).unwrap();
    let (head, _) = base.split_once("[[worker]]").unwrap();
    let reload = |workers: String| {
        std::fs::write(&file, format!("{head}{workers}")).unwrap();
        let (status, said) = say(handle.admin, "/admin/reload", "");
        assert_eq!((status, &said["needs_restart"]), (200, &json!([])), "{said}");
        said["applied"].clone()
    };
    let served_by =
        || ask(handle.listen, "/v1/completions").field("x-forebay-worker").map(str::to_owned);
    let old = Some(first.address.to_string());
    assert_eq!(served_by(), old);
    let both = format!("[[worker]]\nurl = \"{}\"\n{}", first.url(), named(&second, "new"));
    assert_eq!(reload(both.clone()), json!(["worker"]));
    until("the new one serves too", || served_by().as_deref() == Some("new"));
    assert_eq!(reload(both), json!([]), "once");
    assert_eq!(reload(named(&second, "new")), json!(["worker"]));
    for _ in 0..20 {
        assert_eq!(served_by().as_deref(), Some("new"));
    }
    until("the old one is gone", || {
        !truth::get(handle.admin, "/workers").text().contains(&first.address.to_string())
    });
    let both = format!("{}[[worker]]\nurl = \"{}\"\n", named(&second, "new"), first.url());
    assert_eq!(reload(both), json!(["worker"]));
    until("it serves again", || served_by() == old);
}

#[test]
fn sighup_reads_the_file_again() {
    let live = port_for_later();
    let process = RouterProcess::start(&live, None);
    let places = |process: &RouterProcess| truth::metric(process.admin, "forebay_rank_places_max");
    let workers = || truth::get(process.admin, "/workers").text();
    until("the fleet is there", || workers().contains("\"up\""));
    process.edit(|text| format!("rank_concurrency_max = 7\n{text}"));
    process.signal(Signal::HUP);
    until("the limit is seven", || places(&process).to_bits() == 7_f64.to_bits());
    process.edit(|text| text.replace("= 7", "= -7"));
    process.signal(Signal::HUP);
    until("the fault is logged", || process.logged("not reloaded") == 1);
    assert_eq!(process.logged("configuration reloaded"), 1);
    assert_eq!(places(&process).to_bits(), 7_f64.to_bits());
}

#[test]
fn a_window_by_hand_refuses_until_it_is_closed() {
    let worker = Worker::json("{}");
    let handle = router(config(&[&worker]));
    assert_eq!(ask(handle.listen, "/v1/completions").status, 200);
    let (status, list) = say(handle.admin, "/admin/window", r#"{"open":"1h"}"#);
    let pool = &list["pools"][0];
    assert_eq!((status, &pool["by"], &pool["openings"]), (200, &json!(["hand"]), &json!(1)));
    assert!(pool["open_ms"].as_u64().unwrap() > 3_590_000, "{pool}");
    assert!(metric(&handle, "forebay_window_open") > 0.0);
    let refused = ask(handle.listen, "/v1/completions");
    assert_eq!((refused.status, refused.field("x-forebay-reason")), (429, Some("rejected-window")));
    for (body, status) in [("{}", 400), ("open", 400), (r#"{"open":"1s","model":"x"}"#, 200)] {
        let (answered, answer) = say(handle.admin, "/admin/window", body);
        assert_eq!((answered, answer["error"].is_string()), (status, status == 400), "{body}");
    }
    let (status, list) = say(handle.admin, "/admin/window", r#"{"close":true}"#);
    assert_eq!((status, &list["pools"][0]["open"]), (200, &json!(false)));
    assert_eq!(ask(handle.listen, "/v1/completions").status, 200);
    let shown: Value =
        serde_json::from_slice(&truth::get(handle.admin, "/admin/window").body).unwrap();
    assert_eq!(shown, list);
}
