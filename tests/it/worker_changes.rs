//! Workers that come and go while the router runs, through the admin API.

use crate::kv_routing::{Person, engine, follow, kv_router, settle};
use crate::rig::{
    ASK, Client, Gate, Reply, Worker, admin, admin_post, any_port, config, metric, port_for_later,
    post, router, until,
};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

fn add(router: &ServerHandle, body: &str) -> (u16, Value) {
    let mut client = Client::connect(router.admin);
    client.send(&admin_post("/workers", body.as_bytes()));
    let reply = client.reply();
    (reply.status, serde_json::from_slice(&reply.body).unwrap())
}

fn remove(router: &ServerHandle, name: &str) -> u16 {
    let mut client = Client::connect(router.admin);
    let call = format!("DELETE /workers/{name} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    client.send(call.as_bytes());
    client.reply().status
}

fn until_gone(router: &ServerHandle, name: &str) {
    until("it is gone", || admin(router, &format!("/workers/{name}")).status == 404);
}

fn complete(router: &ServerHandle) -> Reply {
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    client.reply()
}

fn worker_of(reply: &Reply) -> &str {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.field("x-forebay-worker").expect("named")
}

/// How many of twenty requests go to each of these.
fn shares(router: &ServerHandle, names: [&str; 2]) -> [usize; 2] {
    let answers: Vec<Reply> = (0..20).map(|_| complete(router)).collect();
    names.map(|name| answers.iter().filter(|reply| worker_of(reply) == name).count())
}

#[test]
fn a_worker_is_added_serves_and_is_removed() {
    let first = Worker::json("{}");
    let second = Gate::start();
    let mut config = config(&[&first]);
    config.workers[0].name = Some("w0".into());
    let router = router(config);
    assert_eq!(worker_of(&complete(&router)), "w0");
    let url = second.worker.url();
    let address = second.worker.address;
    let (status, shown) = add(&router, &format!(r#"{{"url":"{url}","name":"w1"}}"#));
    assert_eq!((status, &shown["name"], &shown["in_flight"]), (201, &"w1".into(), &0.into()));
    until("it is up", || metric(&router, "forebay_worker_up{worker=\"w1\"") == 1.0);
    for (body, status) in [
        (format!(r#"{{"url":"{url}"}}"#), 409),
        (r#"{"url":"http://127.0.0.1:1","name":"w0"}"#.to_owned(), 409),
        (r#"{"url":"127.0.0.1:1"}"#.to_owned(), 400),
    ] {
        let (refused, why) = add(&router, &body);
        assert_eq!(refused, status, "{body}");
        assert!(why["error"].is_string(), "{why}");
    }
    let mut kept: Vec<Client> = (0..2).map(|_| Client::connect(router.listen)).collect();
    for client in &mut kept {
        client.send(&post("/v1/completions", ASK));
    }
    second.holds(1);
    assert_eq!(remove(&router, "w1"), 202);
    assert_eq!(shares(&router, ["w0", "w1"]), [20, 0]);
    assert_eq!(admin(&router, "/workers/w1").status, 200, "it still has a request");
    second.open();
    let mut served: Vec<String> =
        kept.iter_mut().map(|client| worker_of(&client.reply()).to_owned()).collect();
    served.sort_unstable();
    assert_eq!(served, ["w0", "w1"]);
    until_gone(&router, "w1");
    assert_eq!(remove(&router, "w1"), 404);
    assert!(!admin(&router, "/workers").text().contains("w1"));
    assert!(!admin(&router, "/metrics").text().contains("worker=\"w1\""));

    // The same address under another name, in the place of before.
    let worker = second.open_for_good();
    assert_eq!(add(&router, &format!(r#"{{"url":"http://{address}","name":"w2"}}"#)).0, 201);
    until("it is back", || shares(&router, ["w0", "w2"])[1] > 0);
    assert_eq!(metric(&router, "forebay_broken_invariants_total"), 0.0);
    drop(worker);
}

#[test]
fn a_worker_is_gone_after_the_drain_time_and_late_requests_still_end() {
    let held = Gate::start();
    let other = Worker::json("{}");
    let mut config = config(&[&held.worker, &other]);
    config.workers[0].name = Some("w0".into());
    config.workers[1].name = Some("w1".into());
    config.timeouts.drain = Duration::from_millis(300);
    let router = router(config);
    let mut clients: Vec<Client> = (0..2).map(|_| Client::connect(router.listen)).collect();
    for client in &mut clients {
        client.send(&post("/v1/completions", ASK));
    }
    held.holds(1);
    assert_eq!(remove(&router, "w0"), 202);
    until_gone(&router, "w0");
    held.open();
    let mut served: Vec<String> =
        clients.iter_mut().map(|client| worker_of(&client.reply()).to_owned()).collect();
    served.sort_unstable();
    assert_eq!(served, ["w0", "w1"]);
}

#[test]
fn what_a_removed_worker_held_leaves_the_index() {
    let engines = [engine(any_port(), 1), engine(any_port(), 1)];
    let router = kv_router(&[&engines[0]], vec![0]);
    let lost = follow(&router, &[&engines[0]]);
    let mut person = Person::new(router.listen, "somebody");
    person.ask("One question?");
    settle(&router, &[&engines[0]], lost);
    assert!(metric(&router, "forebay_kv_tracked_blocks") > 0.0);
    let (status, added) = add(&router, &format!(r#"{{"url":"{}"}}"#, engines[1].url()));
    assert_eq!((status, &added["state"]), (201, &"unknown".into()));
    let names = [0, 1].map(|n| engines[n].addr().to_string());
    let is_up = format!("forebay_worker_up{{worker=\"{}\"", names[1]);
    until("it is up", || metric(&router, &is_up) == 1.0);
    assert_eq!(remove(&router, &names[0]), 202);
    until_gone(&router, &names[0]);
    until("its blocks are gone", || metric(&router, "forebay_kv_tracked_blocks") == 0.0);
    until("the index is empty", || metric(&router, "forebay_index_entries") == 0.0);
    let (reply, cached) = person.ask("Another question?");
    assert_eq!((worker_of(&reply), cached), (&*names[1], 0));
    assert_eq!(add(&router, &format!(r#"{{"url":"{}"}}"#, engines[0].url())).0, 201);
    assert_eq!(remove(&router, &names[1]), 202);
    until_gone(&router, &names[1]);
    until("it is back", || admin(&router, "/readyz").status == 200);
    let (reply, cached) = person.ask("And the last one?");
    assert_eq!(worker_of(&reply), names[0]);
    assert!(cached > 0, "its engine was there all the time");
}

#[test]
fn what_calls_have_changed_outlives_a_restart() {
    let workers: Vec<Worker> = (0..4).map(|_| Worker::json("{}")).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers");
    let mut config = config(&workers.iter().take(3).collect::<Vec<_>>());
    for (number, worker) in config.workers.iter_mut().enumerate() {
        worker.name = Some(format!("w{number}"));
    }
    config.workers_state = Some(file.clone());
    let kept = || std::fs::read_to_string(&file).unwrap_or_default();
    let first = router(config.clone());
    let added = format!(r#"{{"url":"{}","name":"w3","wait":"30s"}}"#, workers[3].url());
    assert_eq!(add(&first, &added).0, 201);
    assert_eq!(call(&first, "POST", "/workers/w0/drain").0, 200);
    assert_eq!(remove(&first, "w1"), 202);
    first.stop();
    first.join().unwrap();
    let [w0, w1, _, w3] = [0, 1, 2, 3].map(|number: usize| workers[number].url());
    let lines = format!(
        "{{\"url\":\"{w0}\",\"draining\":true}}\n{{\"url\":\"{w1}\",\"removed\":true}}\n\
         {{\"url\":\"{w3}\",\"name\":\"w3\",\"added\":true}}\n"
    );
    assert_eq!(kept(), lines);

    let second = router(config.clone());
    let served = shares(&second, ["w2", "w3"]);
    assert!(served[0] + served[1] == 20 && served[0].min(served[1]) > 0, "{served:?}");
    assert_eq!(admin(&second, "/workers/w1").status, 404);
    assert_eq!(call(&second, "POST", "/workers/w0/undrain").0, 200);
    until("the file has no order for it", || !kept().contains(&w0));
    assert_eq!(remove(&second, "w3"), 202);
    assert_eq!(add(&second, &format!(r#"{{"url":"{w1}","name":"other"}}"#)).0, 201);
    until("nothing is left to keep", || kept().is_empty());
    until_gone(&second, "w3");
    assert_eq!(add(&second, &added).0, 201);
    until("it is kept", || kept().contains(&w3));
    second.stop();
    second.join().unwrap();

    // The configuration names it by now: it is as the configuration says.
    config.workers.truncate(1);
    config.workers[0].url.clone_from(&w3);
    config.workers[0].name = Some("named".into());
    let third = router(config);
    assert_eq!(worker_of(&complete(&third)), "named");
    until("it is the configuration's", || kept().is_empty());
}

/// An order that has waited for its worker ends with a newer order for it.
#[test]
fn a_later_order_replaces_an_order_that_has_waited() {
    for old in ["\"removed\":true", "\"draining\":true"] {
        let workers: Vec<Worker> = (0..2).map(|_| Worker::json("{}")).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("workers");
        let url = workers[1].url();
        std::fs::write(&file, format!("{{\"url\":\"{url}\",{old}}}\n")).unwrap();
        let mut config = config(&[&workers[0]]);
        config.workers_state = Some(file.clone());
        let first = router(config.clone());
        let added = format!(r#"{{"url":"{url}","name":"w1"}}"#);
        assert_eq!(add(&first, &added).0, 201);
        first.stop();
        first.join().unwrap();
        let lines = std::fs::read_to_string(&file).unwrap();
        assert_eq!(
            lines,
            format!("{{\"url\":\"{url}\",\"name\":\"w1\",\"added\":true}}\n"),
            "{old}"
        );
        let second = router(config);
        assert_eq!(admin(&second, "/workers/w1").status, 200);
        until("it serves", || worker_of(&complete(&second)) == "w1");
    }
}

/// Issue 39: with another spelling of its URL, a drained worker took traffic after a restart, and
/// the order of a worker without a free name was lost.
#[test]
fn an_order_finds_its_engine_by_any_spelling_and_is_kept() {
    let workers: Vec<Worker> = (0..3).map(|_| Worker::json("{}")).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers");
    let port = workers[1].address.port();
    let name = workers[1].address.to_string();
    let taken = format!(
        "{{\"url\":\"{}\",\"name\":\"{name}\",\"added\":true,\"draining\":true}}",
        workers[2].url()
    );
    for order in [r#""draining":true"#, r#""name":"x","added":true,"draining":true"#] {
        for host in ["localhost", "LOCALHOST", "[::ffff:127.0.0.1]"] {
            let line = format!("{{\"url\":\"http://{host}:{port}\",{order}}}");
            std::fs::write(&file, format!("{line}\n{taken}\n")).unwrap();
            let mut config = config(&[&workers[0], &workers[1]]);
            config.workers_state = Some(file.clone());
            let handle = router(config);
            let shown =
                String::from_utf8(admin(&handle, &format!("/workers/{name}")).body).unwrap();
            assert!(shown.contains("\"draining\":true"), "{line}: {shown}");
            let other = format!("/workers/{}/drain", workers[0].address);
            assert_eq!(call(&handle, "POST", &other).0, 200);
            handle.stop();
            handle.join().unwrap();
            let lines = std::fs::read_to_string(&file).unwrap();
            assert!(lines.lines().any(|line| line == taken), "{lines}");
        }
    }
}

/// A 2xx is a promise that a restart keeps.
#[test]
fn what_cannot_be_kept_is_no_success() {
    let workers: Vec<Worker> = (0..3).map(|_| Worker::json("{}")).collect();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("state");
    let file = folder.path().join("state/workers");
    let mut config = config(&workers.iter().take(2).collect::<Vec<_>>());
    config.workers[0].name = Some("w0".into());
    config.workers[1].name = Some("w1".into());
    config.workers_state = Some(file.clone());
    std::fs::create_dir(&place).unwrap();
    let router = router(config);
    let kept = || std::fs::read_to_string(&file).unwrap_or_default();
    std::fs::remove_dir_all(&place).unwrap();
    let added = format!(r#"{{"url":"{}","name":"w2"}}"#, workers[2].url());
    let (status, why) = add(&router, &added);
    let why = why["error"].as_str().unwrap();
    assert!(status == 507 && why.starts_with("not added: `workers_state`"), "{status} {why}");
    until_gone(&router, "w2");
    // Orders hold at once: an engine may be about to stop.
    let (status, why) = call(&router, "POST", "/workers/w0/drain");
    assert!(status == 507 && why.contains("a restart forgets it"), "{status} {why}");
    assert_eq!(shares(&router, ["w0", "w1"]), [0, 20]);
    std::fs::create_dir(&place).unwrap();
    let (status, _) = add(&router, &added);
    assert_eq!(status, 201);
    let lines = kept();
    assert!(lines.contains("\"draining\":true") && lines.contains("\"w2\""), "{lines}");
    assert_eq!(call(&router, "POST", "/workers/w0/undrain").0, 200);
    assert!(!kept().contains("draining"), "it is in the file by the answer");
    assert_eq!(remove(&router, "w2"), 202);
    assert_eq!(kept(), "");
}

#[test]
fn a_worker_that_is_added_gets_its_key_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers");
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.workers.clear();
    config.workers_state = Some(file.clone());
    let gets_its_key = |router: &ServerHandle| {
        assert_eq!(complete(router).status, 200);
        let asked = std::iter::repeat_with(|| worker.next().head);
        let head = asked.take(100).find(|head| head.starts_with("POST")).expect("a request");
        assert!(head.contains("authorization: Bearer of-the-worker\r\n"), "{head}");
        let shown = admin(router, "/workers").text();
        assert!(!shown.contains("of-the-worker"), "{shown}");
    };
    let first = router(config.clone());
    let key = "\"api_key\":\"of-the-worker\",\"wait\":\"30s\"";
    let (status, shown) = add(&first, &format!(r#"{{"url":"{}",{key}}}"#, worker.url()));
    assert_eq!(status, 201, "{shown}");
    gets_its_key(&first);
    first.stop();
    first.join().unwrap();
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "only the user of the router reads keys");
    gets_its_key(&router(config));
}

#[test]
fn a_fleet_may_begin_without_workers() {
    let folder = tempfile::tempdir().unwrap();
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.workers.clear();
    config.workers_state = Some(folder.path().join("workers"));
    let router = router(config);
    assert_eq!(complete(&router).status, 503);
    let asked = format!(r#"{{"url":"{}","wait":"30s"}}"#, worker.url());
    assert_eq!(add(&router, &asked).0, 201);
    assert_eq!(worker_of(&complete(&router)), worker.address.to_string());
}

fn call(router: &ServerHandle, method: &str, path: &str) -> (u16, String) {
    let mut client = Client::connect(router.admin);
    client.send(format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes());
    let reply = client.reply();
    (reply.status, reply.text())
}

#[test]
fn the_calls_of_vllm_router_answer_as_there() {
    let first = Worker::json("{}");
    let second = Worker::json("{}");
    let router = router(config(&[&first]));
    assert_eq!(worker_of(&complete(&router)), first.address.to_string());
    let [old, new] = [&first, &second].map(Worker::url);
    let list = |urls: &[&str]| (200, serde_json::json!({ "urls": urls }).to_string());
    assert_eq!(call(&router, "GET", "/list_workers"), list(&[&old]));
    let add = format!("/add_worker?url={new}");
    assert_eq!(call(&router, "POST", &add), (200, format!("Successfully added worker: {new}")));
    assert!(
        shares(
            &router,
            [&first, &second].map(|one| one.address.to_string()).each_ref().map(|name| &**name)
        )[1] > 0,
        "it serves by then"
    );
    // The text is that of vllm-router, in the form of all errors.
    let error = |text: &str| (400, serde_json::json!({ "error": text }).to_string());
    let known = format!("Worker {new} already exists");
    assert_eq!(call(&router, "POST", &add), error(&known));
    let required = error("Worker URL required. Provide 'url' query parameter");
    assert_eq!(call(&router, "POST", "/add_worker"), required);
    let removed = |url: &str| (200, format!("Successfully removed worker: {url}"));
    assert_eq!(call(&router, "POST", &format!("/remove_worker?url={old}")), removed(&old));
    until_gone(&router, &first.address.to_string());
    assert_eq!(call(&router, "GET", "/list_workers"), list(&[&new]));
    assert_eq!(call(&router, "POST", "/remove_worker?url=http://a:1"), removed("http://a:1"));
    assert_eq!(call(&router, "POST", "/remove_worker"), required);
    // Added by another spelling of its address, and removed.
    let port = second.address.port();
    let spelled = format!("http://localhost:{port}");
    assert_eq!(call(&router, "POST", &format!("/remove_worker?url={spelled}")), removed(&spelled));
    until_gone(&router, &second.address.to_string());
    let faulty = call(&router, "POST", "/remove_worker?url=127.0.0.1:1");
    assert!(faulty.0 == 400 && faulty.1.contains("http://host:port"), "{faulty:?}");
}

#[test]
fn adding_a_worker_can_wait_until_it_serves() {
    let first = Worker::json("{}");
    let second = Worker::json("{}");
    let router = router(config(&[&first]));
    let (status, worker) = add(&router, &format!(r#"{{"url":"{}","wait":"30s"}}"#, second.url()));
    assert_eq!((status, &worker["state"]), (201, &"up".into()), "{worker}");
    let mut config = config(&[&first]);
    config.health.enabled = true;
    let router = self::router(config);
    let dead = port_for_later();
    let asked = format!(r#"{{"url":"http://{dead}","wait":"300ms"}}"#);
    let (status, said) = add(&router, &asked);
    assert!(
        status == 504 && said["error"].as_str().unwrap().contains("does not serve yet"),
        "{said}"
    );
    assert_eq!(admin(&router, &format!("/workers/{dead}")).status, 200, "it stays added");
}
