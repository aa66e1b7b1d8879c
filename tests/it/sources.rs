//! Workers that come and go by themselves: a file that is looked at, and host names.

use crate::rig::truth::{get, metric};
use crate::rig::{ASK, Client, Reply, RouterProcess, Worker, admin_post, post, until};
use crate::upgrade::Second;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::path::Path;

fn table(worker: &Worker) -> String {
    format!("[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n", worker.url())
}

/// As an operator would: beside it, then in its place.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

fn start(discovery: &str, workers: &str) -> RouterProcess {
    RouterProcess::configured(&format!(
        "cores = [0, 1]\npolicy = \"round_robin\"\nhealth.enabled = false\n\
         [timeouts]\ndrain = \"20s\"\n[discovery]\ninterval = \"100ms\"\n{discovery}\n{workers}"
    ))
}

fn served_by(router: &RouterProcess) -> String {
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.field("x-forebay-worker").unwrap().to_owned()
}

fn workers(router: &RouterProcess) -> String {
    get(router.admin, "/workers").text()
}

/// A pipe has no end that a reader could wait for: it is refused like any other fault, and the file
/// that comes in its place is read.
#[test]
fn what_is_no_regular_file_is_refused_and_the_next_file_is_read() {
    let [first, second] = [(); 2].map(|()| Worker::json("{}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    std::fs::write(&file, table(&first)).unwrap();
    let router = start(&format!("file = \"{}\"", file.display()), "");
    until("it serves", || get(router.admin, "/readyz").status == 200);
    let pipe = file.with_extension("pipe");
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
    std::fs::rename(&pipe, &file).unwrap();
    until("it is said", || router.logged("it is no regular file") == 1);
    assert_eq!(served_by(&router), first.address.to_string());
    replace(&file, &table(&second));
    until("it is read", || served_by(&router) == second.address.to_string());
    assert_eq!(router.logged("it is no regular file"), 1, "once");
}

#[test]
fn a_file_brings_workers_and_takes_them() {
    let [first, second, third] = [(); 3].map(|()| Worker::json("{}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    std::fs::write(&file, table(&first)).unwrap();
    let router = start(&format!("file = \"{}\"", file.display()), &table(&third));
    until("it serves", || get(router.admin, "/readyz").status == 200);
    let names = [&first, &second, &third].map(|worker| worker.address.to_string());
    let has = |worker: usize| workers(&router).contains(&names[worker]);
    assert!(has(0) && has(2), "from the first fleet on: {}", workers(&router));
    replace(&file, &[table(&first), table(&second)].concat());
    until("the second one has joined", || has(1));
    until("it serves too", || served_by(&router) == names[1]);
    // What is no file of workers changes nothing, and is said once.
    let broken = [
        ("", "workers.toml lists no worker. help: "),
        ("[[worker", "workers.toml:1:"),
        ("policy = \"random\"\n", "workers.toml:1:10: only [[worker]] tables"),
    ];
    let is_failing = || metric(router.admin, "forebay_source_failing{");
    assert_eq!(is_failing(), 0.0);
    for (count, (broken, fault)) in broken.into_iter().enumerate() {
        replace(&file, broken);
        until("that is said", || router.logged("nothing learnt of workers") == count + 1);
        let readiness = get(router.admin, "/readyz");
        assert_eq!(readiness.status, 200, "it serves on");
        let concern = format!("`discovery.file` workers.toml fails: {fault}");
        assert!(readiness.text().contains(&concern), "{}", readiness.text());
        assert_eq!(is_failing(), 1.0);
        let listed = get(router.admin, "/workers").text();
        assert!(listed.contains(fault), "{listed}");
        let mut admin = Client::connect(router.admin);
        admin.send(&admin_post("/admin/reload", b""));
        let reload = admin.reply().text();
        assert!(reload.contains("\"severity\":\"error\""), "the reload read it: {reload}");
        assert!(has(0) && has(1) && has(2));
    }
    assert_eq!(router.logged("those that are known stay"), 3);
    std::fs::remove_file(&file).unwrap();
    until("each fault is said", || router.logged("nothing learnt of workers") == 4);
    assert!(has(0) && has(1) && has(2));
    // The third one is configured too: the file takes it no more than it brought it.
    replace(&file, &[table(&second), table(&third)].concat());
    until("the first one is gone", || !has(0));
    replace(&file, &table(&second));
    until("it was read", || router.logged("by=") > 0);
    for _ in 0..20 {
        assert!(names[1..].contains(&served_by(&router)));
    }
    assert!(has(1) && has(2));
}

/// M1: a start with a faulty file keeps no workers, and its log claims none.
#[test]
fn a_start_with_a_faulty_file_knows_no_worker() {
    let worker = Worker::json("{}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    std::fs::write(&file, "[[worker]]\nurll = \"http://127.0.0.1:1\"\n").unwrap();
    let router = start(&format!("file = \"{}\"", file.display()), "");
    until("that is said", || router.logged("nothing learnt of workers: none is known") == 1);
    let fault = "workers.toml:2:1: unknown key `worker.urll`";
    until("it listens", || get(router.admin, "/readyz").status == 503);
    let readiness = get(router.admin, "/readyz").text();
    assert!(readiness.contains(fault), "{readiness}");
    assert_eq!(metric(router.admin, "forebay_source_failing{"), 1.0);
    replace(&file, &table(&worker));
    until("it serves", || get(router.admin, "/readyz").status == 200);
    assert_eq!(router.logged("read again: workers are those of the source"), 1);
    assert_eq!(metric(router.admin, "forebay_source_failing{"), 0.0);
}

/// M1: a worker of the file with the name of a configured worker is a fault until it has a name of
/// its own. The other workers of the file join.
#[test]
fn a_worker_without_a_place_is_a_fault_of_its_source() {
    let [first, second, third] = [(); 3].map(|()| Worker::json("{}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    let named = |worker: &Worker, name: &str| format!("{}name = \"{name}\"\n", table(worker));
    std::fs::write(&file, named(&second, "w") + &table(&third)).unwrap();
    let router = start(&format!("file = \"{}\"", file.display()), &named(&first, "w"));
    let is_failing = || metric(router.admin, "forebay_source_failing{");
    until("it is a fault", || is_failing() > 0.5);
    let concern = "`discovery.file` workers.toml fails: 1 of its workers not added: a worker of \
                   that name is there";
    until("it is a concern", || get(router.admin, "/readyz").text().contains(concern));
    let listed = workers(&router);
    assert!(listed.contains(&format!("not added: {}: ", second.url())), "{listed}");
    assert!(listed.contains(&third.address.to_string()), "{listed}");
    assert_eq!(router.logged("workers not added"), 1);
    replace(&file, &(named(&second, "v") + &table(&third)));
    until("it has joined", || workers(&router).contains("\"name\":\"v\""));
    until("the fault is over", || is_failing() < 0.5);
    assert_eq!(router.logged("all workers of the source are added"), 1);
}

/// M2: `/readyz` needs no token, so a fault has no folder there. `/workers` has the full text.
#[test]
fn no_folder_of_the_machine_is_shown_without_a_token() {
    let worker = Worker::json("{}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    let secret = "/etc/secret/folder/key";
    std::fs::write(&file, format!("{}api_key_file = \"{secret}\"\n", table(&worker))).unwrap();
    let router = start(&format!("file = \"{}\"", file.display()), &table(&worker));
    until("that is said", || router.logged("nothing learnt of workers") == 1);
    let readiness = get(router.admin, "/readyz").text();
    let brief = "`discovery.file` workers.toml fails: workers.toml:4:16: `api_key_file` is faulty";
    assert!(readiness.contains(brief), "{readiness}");
    let place = folder.path().display().to_string();
    assert!(!readiness.contains("secret") && !readiness.contains(&place), "{readiness}");
    let listed = workers(&router);
    assert!(listed.contains(secret) && listed.contains(&place), "{listed}");
}

/// M1: the first fleet waited for a good reading of each source, as long as for a silent worker.
#[test]
fn a_source_that_fails_at_once_does_not_delay_the_start() {
    let worker = Worker::json("{}");
    let router = RouterProcess::configured(&format!(
        "cores = [0]\nhealth.enabled = false\nhealth.timeout = \"90s\"\n\
         [discovery]\nfile = \"/no/such/file.toml\"\n{}",
        table(&worker)
    ));
    until("it serves", || get(router.admin, "/readyz").status == 200);
    assert_eq!(served_by(&router), worker.address.to_string());
}

#[test]
fn a_name_brings_its_addresses_and_a_resolver_that_fails_takes_nobody() {
    let worker = Worker::json("{}");
    let port = worker.address.port();
    let router = start(
        &format!("dns = [\"http://127.0.0.1:{port}\", \"http://no-such-name.invalid:1\"]"),
        "",
    );
    until("it serves", || get(router.admin, "/readyz").status == 200);
    assert_eq!(served_by(&router), worker.address.to_string());
    until("the fault is said", || router.logged("nothing learnt of workers") == 1);
    assert!(router.logged("no-such-name.invalid") > 0);
    assert!(router.logged("nothing learnt of workers: none is known") > 0);
    assert_eq!(metric(router.admin, "forebay_source_failing{source=\"http://no-such"), 1.0);
    let concern = "`discovery.dns` http://no-such-name.invalid:1 fails: ";
    assert!(get(router.admin, "/readyz").text().contains(concern));
    // A reload takes the names, and the worker with them.
    let url = worker.url();
    router.edit(|text| {
        text.replace(&format!("\"http://127.0.0.1:{port}\", \"http://no-such-name.invalid:1\""), "")
            + "[[worker]]\nurl = \"http://127.0.0.1:9\"\nmodels = [\"m\"]\n"
    });
    router.signal(rustix::process::Signal::HUP);
    until("it is gone", || !workers(&router).contains(&url));
    assert_eq!(router.logged("the fault ends: no source of workers any more"), 1);
}

#[test]
fn a_removed_worker_of_a_file_stays_away_from_the_next_process() {
    let [first, second] = [(); 2].map(|()| Worker::json("{}"));
    let folder = tempfile::tempdir().unwrap();
    let [file, state] = ["workers.toml", "state"].map(|name| folder.path().join(name));
    std::fs::write(&file, [table(&first), table(&second)].concat()).unwrap();
    // Above the first table.
    let router = RouterProcess::configured(&format!(
        "cores = [0]\npolicy = \"round_robin\"\nhealth.enabled = false\n\
         workers_state = \"{}\"\n[discovery]\ninterval = \"100ms\"\nfile = \"{}\"\n",
        state.display(),
        file.display()
    ));
    until("it serves", || get(router.admin, "/readyz").status == 200);
    let [a, b] = [&first, &second].map(|worker| worker.address.to_string());
    let call = |method: &str, path: &str| {
        let mut client = Client::connect(router.admin);
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        client.send(format!("{head}content-length: 0\r\n\r\n").as_bytes());
        client.reply().status
    };
    assert_eq!(call("DELETE", &format!("/workers/{b}")), 202);
    until("it is gone", || !workers(&router).contains(&b));
    let kept = || std::fs::read_to_string(&state).unwrap_or_default();
    until("that is written", || kept().contains(&second.url()));
    let _next = Second(router.second());
    until("it has taken over", || router.logged("handed over") > 0);
    until("it answers", || get(router.admin, "/readyz").status == 200);
    for _ in 0..10 {
        assert_eq!(served_by(&router), a, "{}", workers(&router));
    }
    assert!(kept().contains("\"removed\":true") && !kept().contains("added"), "{}", kept());
    // The file loses it, and lists it again: the call of before counts no more.
    replace(&file, &table(&first));
    until("nobody is expected", || !kept().contains(&b));
    replace(&file, &[table(&first), table(&second)].concat());
    until("it serves", || served_by(&router) == b);
}

/// What a reload answers.
fn reloaded(router: &RouterProcess) -> Reply {
    let mut client = Client::connect(router.admin);
    client.send(&admin_post("/admin/reload", b""));
    client.reply()
}

fn has_key(head: &str, key: &str) -> bool {
    head.to_ascii_lowercase().contains(&format!("authorization: bearer {key}\r\n"))
}

/// A key in a file reaches listed and discovered workers, and another key with the next reload.
#[test]
fn workers_of_every_source_get_the_default_key_and_its_successor() {
    let workers = [(); 2].map(|()| Worker::json("{}"));
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "first-key\n").unwrap();
    let file = folder.path().join("workers.toml");
    std::fs::write(&file, table(&workers[1])).unwrap();
    let discovery = format!("file = {file:?}\n[worker_defaults]\napi_key_file = {key:?}\n");
    let router = start(&discovery, &table(&workers[0]));
    let all_get = |key: &str| {
        let mut gets = [false; 2];
        until("each worker gets the key", || {
            let served = served_by(&router);
            let is_it = |worker: &Worker| served == worker.address.to_string();
            let place = workers.iter().position(is_it).unwrap();
            gets[place] = has_key(&workers[place].next().head, key);
            gets == [true; 2]
        });
    };
    all_get("first-key");
    std::fs::write(&key, "second-key\n").unwrap();
    let reply = reloaded(&router).text();
    assert!(reply.contains("\"applied\":[\"worker.api_key_file\"]"), "{reply}");
    all_get("second-key");
    std::fs::remove_file(&key).unwrap();
    let refused = reloaded(&router);
    assert!(refused.status == 400 && refused.text().contains("api_key_file"), "{}", refused.text());
    all_get("second-key");
    assert!(!router.log().contains("first-key") && !router.log().contains("second-key"));
}

#[test]
fn workers_of_a_name_are_asked_with_the_default_key() {
    let worker = Worker::json("{}");
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "first-key\n").unwrap();
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[health]\ninterval = \"100ms\"\n[worker_defaults]\napi_key_file = {key:?}\n\
         [discovery]\ndns = [\"http://localhost:{}\"]\n",
        worker.address.port()
    ));
    until("it is asked with the key", || has_key(&worker.next().head, "first-key"));
    std::fs::write(&key, "second-key\n").unwrap();
    assert!(reloaded(&router).text().contains("worker.api_key_file"));
    until("it is asked with the other key", || has_key(&worker.next().head, "second-key"));
}

/// M1: a worker of the file that changes is changed: its settings in place, its name by a removal
/// and an addition, and a name that goes to another URL too.
#[test]
fn a_changed_worker_of_a_file_is_changed() {
    let [first, second] = [(); 2].map(|()| Worker::json("{}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    let named = |worker: &Worker, more: &str| format!("{}{more}\n", table(worker));
    std::fs::write(&file, named(&first, "name = \"w\"")).unwrap();
    let router = start(&format!("file = \"{}\"", file.display()), "");
    until("it serves", || get(router.admin, "/readyz").status == 200);
    let limit = "name = \"w\"\nconcurrency_max = 7";
    replace(&file, &named(&first, limit));
    until("the limit is in use", || workers(&router).contains("\"concurrency_max\":7"));
    assert_eq!(router.logged("its settings were changed by its source"), 1);
    replace(&file, &named(&first, "name = \"v\""));
    until("the name is in use", || workers(&router).contains("\"name\":\"v\""));
    assert!(!workers(&router).contains("\"name\":\"w\""), "{}", workers(&router));
    replace(&file, &named(&second, "name = \"v\""));
    let url = format!("\"url\":\"{}\"", second.url());
    until("the name has the other URL", || workers(&router).contains(&url));
    until("it serves", || {
        let mut client = Client::connect(router.listen);
        client.send(&post("/v1/completions", ASK));
        client.reply().field("x-forebay-worker") == Some("v")
    });
    assert!(!workers(&router).contains(&first.url()), "{}", workers(&router));
    assert_eq!(router.logged("workers not added"), 0, "no fault: {}", router.log());
}
