//! Limits that change while requests are served: the configuration read again, and rejection
//! windows by hand.

use crate::kv_routing::{Person, overlap_tokens};
use crate::rig::{
    ASK, Client, Reply, RouterProcess, Worker, admin_post, config, metric, port_for_later, post,
    router, truth, until,
};
use crate::warm_restart::new_engine;
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

fn ask_with(address: SocketAddr, body: &[u8]) -> Reply {
    let mut client = Client::connect(address);
    client.send(&post("/v1/completions", body));
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

    write(&file, &worker, "rank_concurrency_max = 2\nadmin_hosts = [\"a\"]");
    let (status, done) = say(handle.admin, "/admin/reload", "");
    assert_eq!(
        (status, done),
        (
            200,
            json!({ "applied": ["rank_concurrency_max"], "needs_restart": ["admin_hosts"],
                "findings": [], "file": file })
        )
    );
    until("the shard has the limit", || ask(handle.listen, "/v1/completions?now").status == 200);
    assert_eq!(metric(&handle, "forebay_rank_places_max").to_bits(), 2_f64.to_bits());

    // Also while it drains: what is under way ends as it would have.
    handle.stop();
    write(&file, &worker, "rank_concurrency_max = 3");
    let (status, done) = say(handle.admin, "/admin/reload", "");
    assert_eq!((status, &done["applied"]), (200, &json!(["rank_concurrency_max"])));
    assert_eq!(done["needs_restart"], json!([]), "the hosts are as they were at the start");
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
    let is_successful = || metric(&handle, "forebay_config_last_reload_successful");
    let concerns = || -> Value {
        let reply = truth::get(handle.admin, "/readyz");
        assert_eq!(reply.status, 200, "it serves on");
        let ready: Value = serde_json::from_slice(&reply.body).unwrap();
        let is_degraded = ready["state"] == "degraded";
        assert_eq!(is_degraded, is_successful() < 0.5, "{ready}");
        ready["concerns"].clone()
    };
    let first = concerns()[0].as_str().unwrap().to_owned();
    let wanted = "the last reload was refused: forebay.toml:6:1: unknown key `rejektion_window`";
    assert!(first.starts_with(wanted) && !first.contains('/'), "no folder: {first}");
    let finding = &answer["findings"][0];
    assert_eq!(finding["severity"], "error");
    assert!(finding["where"].as_str().unwrap().ends_with("forebay.toml:6:1"), "{finding}");
    assert!(finding["what"].as_str().unwrap().contains("rejektion_window"), "{finding}");
    std::fs::remove_file(&file).unwrap();
    let (status, answer) = say(handle.admin, "/admin/reload", "");
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("cannot read"), "{answer}");
    assert_eq!(places().to_bits(), 5_f64.to_bits());
    assert_eq!(ask(handle.listen, "/v1/completions?now").status, 200);
    let unread = concerns()[0].as_str().unwrap().to_owned();
    let wanted = "the last reload was refused: cannot read forebay.toml: No such file";
    assert!(unread.starts_with(wanted), "{unread}");
    let time = || metric(&handle, "forebay_config_last_reload_success_timestamp_seconds");
    let before = time();
    write(&file, &worker, "rank_concurrency_max = 5");
    assert_eq!(say(handle.admin, "/admin/reload", "").0, 200);
    assert_eq!((concerns(), is_successful().to_bits()), (json!([]), 1_f64.to_bits()));
    assert!(before > 1e9 && time() >= before, "{before} {}", time());
}

#[test]
fn a_router_in_a_program_has_nothing_to_read_again() {
    let worker = Worker::json("{}");
    let handle = router(config(&[&worker]));
    assert_eq!(say(handle.admin, "/admin/reload", "").0, 409);
}

#[test]
fn workers_of_the_file_join_and_leave() {
    let first = Worker::json("{}");
    let second = Worker::json("{}");
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
    // Another address under the name of one that leaves: it joins when the name is free.
    let third = Worker::json("{}");
    assert_eq!(reload(named(&third, "new")), json!(["worker"]));
    let has = |worker: &Worker| {
        truth::get(handle.admin, "/workers").text().contains(&worker.address.to_string())
    };
    until("the third one has joined", || has(&third) && !has(&second) && !has(&first));
    assert_eq!(reload(named(&third, "new")), json!([]), "it is there");
    until("the third one serves", || served_by().as_deref() == Some("new"));
}

/// One key after the other changes how the running router behaves, over one connection that stays.
#[test]
fn what_shards_go_by_changes_with_a_reload() {
    let worker = Worker::json("{}");
    let (handle, file, _folder) = start(&worker, "");
    let mut kept = Client::connect(handle.listen);
    let mut asked = |fields: &str, body: &[u8]| {
        let request = String::from_utf8(post("/v1/completions", body)).unwrap();
        kept.send(request.replacen("host:", &format!("{fields}host:"), 1).as_bytes());
        kept.reply()
    };
    assert_eq!(asked("", ASK).status, 200);
    worker.next();
    let reload = |change: &str| {
        write(&file, &worker, change);
        let (status, said) = say(handle.admin, "/admin/reload", "");
        assert_eq!((status, &said["needs_restart"]), (200, &json!([])), "{said}");
        assert_ne!(said["applied"], json!([]), "{change}");
    };
    let long = format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "a ".repeat(2_000));
    reload("limits.body_bytes_max = \"2KiB\"");
    until("long bodies are refused", || {
        let status = ask_with(handle.listen, long.as_bytes()).status;
        assert!(status == 413 || worker.next().head.contains("POST"));
        status == 413
    });
    reload("timeouts.idle = \"50ms\"");
    until("long bodies pass again", || {
        ask_with(handle.listen, long.as_bytes()).status == 200
            && worker.next().head.contains("POST")
    });
    let mut silent = Client::connect(handle.listen);
    silent.send(&post("/v1/completions", ASK));
    assert_eq!((silent.reply().status, silent.at_end()), (200, true));
    worker.next();
    reload("client.forwarded = \"append\"");
    until("workers hear of the client", || {
        assert_eq!(asked("", ASK).status, 200);
        worker.next().head.contains("x-forwarded-for: 127.0.0.1")
    });
    let origin = "origin: https://a.example\r\n";
    assert_eq!(asked(origin, ASK).field("access-control-allow-origin"), None);
    reload("cors.origins = [\"https://a.example\"]");
    until("pages may read", || {
        asked(origin, ASK).field("access-control-allow-origin") == Some("https://a.example")
    });
    reload("limits.head_bytes_max = \"1KiB\"");
    let field = format!("x-long: {}\r\n", "a".repeat(2_000));
    until("long heads are refused", || {
        let mut client = Client::connect(handle.listen);
        let request = String::from_utf8(post("/v1/completions", ASK)).unwrap();
        client.send(request.replacen("host:", &format!("{field}host:"), 1).as_bytes());
        client.reply().status == 431
    });
    reload("limits.connections_max = 1");
    until("one connection is enough", || {
        drop(Client::connect(handle.listen));
        metric(&handle, "forebay_connections_refused_total") > 0.0
    });
}

/// The rules change, and the keys that were read go on counting.
#[test]
fn rules_of_tokens_change_with_a_reload() {
    let worker = Worker::json("{}");
    let jwt = |audience: &str| {
        format!(
            "[jwt]\njwks = \"tests/data/jwt/rsa.json\"\nissuer = \"https://issuer.example\"\n\
             audience = [\"{audience}\"]\n"
        )
    };
    let (handle, file, _folder) = start(&worker, &jwt("forebay"));
    let token = include_str!("../data/jwt/rsa.jwt").trim();
    let status = || {
        let mut client = Client::connect(handle.listen);
        let request = String::from_utf8(post("/v1/completions", ASK)).unwrap();
        let field = format!("authorization: Bearer {token}\r\nhost:");
        client.send(request.replacen("host:", &field, 1).as_bytes());
        client.reply().status
    };
    assert_eq!(status(), 200);
    let reload = |change: &str, applied: Value| {
        write(&file, &worker, change);
        let (status, said) = say(handle.admin, "/admin/reload", "");
        assert_eq!((status, &said["applied"]), (200, &applied), "{said}");
    };
    reload(&jwt("others"), json!(["jwt.audience"]));
    until("it is for others", || status() == 401);
    reload(&jwt("forebay"), json!(["jwt.audience"]));
    until("it is for this router", || status() == 200);
    reload("", json!(["jwt.audience", "jwt.issuer", "jwt.jwks"]));
    until("no token is asked for", || status() == 200);
}

/// What the control plane does by itself: ask workers, and as whom.
#[test]
fn what_workers_are_asked_changes_with_a_reload() {
    let (engine, _) = new_engine(true);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forebay.toml");
    let write = |change: &str, of_worker: &str| {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ncores = [0]\n{change}\n\
             [[worker]]\nurl = \"{}\"\n{of_worker}",
            engine.url()
        );
        std::fs::write(&file, text).unwrap();
    };
    write("policy = \"round_robin\"\nhealth.enabled = false", "models = [\"other\"]\n");
    let source = ConfigSource { file: Some(file.clone()), flags: Flags::default() };
    let config = source.load().unwrap().usable().unwrap();
    let handle = start_reloadable(config.clone(), false, Reloader::new(source, config)).unwrap();
    let workers = || truth::get(handle.admin, "/workers").text();
    until("it serves", || truth::get(handle.admin, "/readyz").status == 200);
    assert!(workers().contains("other") && !workers().contains("sim"), "{}", workers());
    let reload = |change: &str, of_worker: &str| {
        write(change, of_worker);
        let (status, said) = say(handle.admin, "/admin/reload", "");
        assert_eq!((status, &said["needs_restart"]), (200, &json!([])), "{said}");
    };
    let model_dir = "model_dir = \"tests/data/tokenizer\"\nhealth.interval = \"100ms\"";
    reload(model_dir, "");
    until("it is asked what it serves", || workers().contains("sim"));
    until("it follows the engine", || truth::metric(handle.admin, "forebay_kv_feed_live{") > 0.0);
    // The policy of the reload is `kv`, the default: prompts are matched from now on.
    let mut person = Person::new(handle.listen, "somebody");
    assert_eq!(person.ask("What is a router?").1, 0);
    until("its blocks are known", || {
        truth::metric(handle.admin, "forebay_kv_tracked_blocks") > 18.0
    });
    let (reply, cached) = person.ask("And what is a dam?");
    assert_eq!((overlap_tokens(&reply), cached > 0), (cached, true));
    let reason = reply.field("x-forebay-worker").map(str::to_owned);
    assert_eq!(reason, Some(engine.url().replacen("http://", "", 1)));
    // Blocks in host memory do not count any more: the feed begins again, and knows the same.
    reload(&format!("{model_dir}\nkv.host_credit_percent = 0"), "");
    until("it follows the engine again", || {
        truth::metric(handle.admin, "forebay_kv_feed_live{") > 0.0
            && truth::metric(handle.admin, "forebay_kv_tracked_blocks") > 18.0
    });
    let (reply, cached) = person.ask("And what is a forebay?");
    assert_eq!((overlap_tokens(&reply), cached > 0), (cached, true));
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
    let lacks = "this process may not use core 4095";
    assert_eq!(process.logged(lacks), 0);
    process.edit(|text| format!("cores = [0, 4095]\n{}", text.replace("= -7", "= 7")));
    process.signal(Signal::HUP);
    until("the missing core is logged", || process.logged(lacks) == 1);
}

#[test]
fn a_window_by_hand_refuses_until_it_is_closed() {
    let worker = Worker::json("{}");
    let handle = router(config(&[&worker]));
    // Enough for a drain rate, which says nothing about the end of the window.
    (0..12).for_each(|_| assert_eq!(ask(handle.listen, "/v1/completions").status, 200));
    let (status, list) = say(handle.admin, "/admin/window", r#"{"open":"1h"}"#);
    let pool = &list["pools"][0];
    assert_eq!((status, &pool["by"], &pool["openings"]), (200, &json!(["hand"]), &json!(1)));
    assert!(pool["open_ms"].as_u64().unwrap() > 3_590_000, "{pool}");
    assert!(metric(&handle, "forebay_window_open") > 0.0);
    let ready: Value = serde_json::from_slice(&truth::get(handle.admin, "/readyz").body).unwrap();
    assert_eq!((&ready["state"], &ready["concerns"]), (&json!("refusing"), &json!([])), "{ready}");
    let refused = ask(handle.listen, "/v1/completions");
    let reason = refused.field("x-forebay-reason");
    assert_eq!((refused.status, reason), (429, Some("rejected-by-operator")));
    let after: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((40..=60).contains(&after), "the longest that is sent, spread: {after}");
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

/// `client.trusted` counts for the next request of a connection, however often it changes.
#[test]
fn trust_in_proxies_counts_for_the_next_request_of_each_connection() {
    let worker = Worker::json("{}");
    for starts_trusted in [false, true] {
        let settings = |is_trusted| {
            let proxy = if is_trusted { "127.0.0.1" } else { "192.0.2.9" };
            format!("[client]\nforwarded = \"replace\"\ntrusted = [\"{proxy}\"]")
        };
        let (handle, file, _folder) = start(&worker, &settings(starts_trusted));
        let mut client = Client::connect(handle.listen);
        let request = String::from_utf8(post("/v1/completions", ASK)).unwrap();
        let request = request.replacen("host:", "x-forwarded-for: 203.0.113.5\r\nhost:", 1);
        let mut named = || {
            client.send(request.as_bytes());
            assert_eq!(client.reply().status, 200);
            let head = worker.next().head.to_ascii_lowercase();
            let value = head.lines().find_map(|line| line.strip_prefix("x-forwarded-for: "));
            value.unwrap_or_default().to_owned()
        };
        for change in 0..4 {
            let is_trusted = starts_trusted != (change % 2 == 1);
            if change > 0 {
                write(&file, &worker, &settings(is_trusted));
                let (status, done) = say(handle.admin, "/admin/reload", "");
                assert_eq!((status, &done["applied"]), (200, &json!(["client.trusted"])));
            }
            let wanted = if is_trusted { "203.0.113.5" } else { "127.0.0.1" };
            until("the shard has the trust", || named() == wanted);
        }
    }
}
