//! Workers that their operator takes out and brings back through the admin API.

use crate::rig::pairs::{ask, pair_config, ready};
use crate::rig::stub::{Stub, answer};
use crate::rig::stub_pages::Pages;
use crate::rig::{
    ASK, Client, Gate, Reply, Worker, admin, admin_post, config, metric, post, router, until,
};
use forebay::config::{Policy, QueueMode};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::time::Duration;

/// Says `drain` or `undrain`; the worker as it is then.
fn say(router: &ServerHandle, name: &str, word: &str) -> Value {
    let mut client = Client::connect(router.admin);
    client.send(&admin_post(&format!("/workers/{name}/{word}"), b""));
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    serde_json::from_slice(&reply.body).unwrap()
}

fn shown(router: &ServerHandle, name: &str) -> Value {
    serde_json::from_slice(&admin(router, &format!("/workers/{name}")).body).unwrap()
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

/// A router in front of `w0` and `w1`.
fn two(workers: &[&Worker], policy: Policy) -> ServerHandle {
    let mut config = config(workers);
    for (number, worker) in config.workers.iter_mut().enumerate() {
        worker.name = Some(format!("w{number}"));
    }
    config.policy = policy;
    let router = router(config);
    until("both are up", || metric(&router, "forebay_worker_up") == 2.0);
    router
}

#[test]
fn a_draining_worker_finishes_its_requests_and_gets_no_new_one() {
    let held = Gate::start();
    let other = Worker::json("{}");
    let router = two(&[&held.worker, &other], Policy::LeastLoaded);
    say(&router, "w1", "drain");
    let mut kept = Client::connect(router.listen);
    kept.send(&post("/v1/completions", ASK));
    held.holds(1);
    say(&router, "w1", "undrain");
    let drains = say(&router, "w0", "drain");
    assert_eq!((&drains["draining"], &drains["in_flight"]), (&true.into(), &1.into()));
    assert_eq!((&drains["state"], &drains["name"]), (&"up".into(), &"w0".into()));
    assert_eq!(metric(&router, "forebay_worker_draining{worker=\"w0\"}"), 1.0);
    assert_eq!(metric(&router, "forebay_worker_up{worker=\"w0\""), 1.0, "it is well");
    for _ in 0..20 {
        assert_eq!(worker_of(&complete(&router)), "w1");
    }
    held.open();
    let reply = kept.reply();
    assert_eq!(worker_of(&reply), "w0", "it kept what it had");
    until("nothing is left", || shown(&router, "w0")["in_flight"] == 0);
    assert_eq!(say(&router, "w0", "undrain")["draining"], false);
    let worker = held.open_for_good();
    let again = (0..20).map(|_| complete(&router)).filter(|reply| worker_of(reply) == "w0");
    assert!(again.count() > 0, "it is back");
    drop(worker);
}

#[test]
fn every_policy_passes_by_a_draining_worker() {
    for policy in
        [Policy::Kv, Policy::LeastLoaded, Policy::PowerOfTwo, Policy::RoundRobin, Policy::Random]
    {
        let workers = [Worker::json("{}"), Worker::json("{}")];
        let router = two(&[&workers[0], &workers[1]], policy);
        // A guess of policy `kv` leads to the worker that has had the prompt.
        let first = worker_of(&complete(&router)).to_owned();
        say(&router, &first, "drain");
        for _ in 0..20 {
            assert_ne!(worker_of(&complete(&router)), first, "{policy:?}");
        }
    }
}

#[test]
fn when_all_drain_requests_are_refused_as_if_none_were_usable() {
    let worker = Worker::json("{}");
    let router = two(&[&worker, &Worker::json("{}")], Policy::RoundRobin);
    say(&router, "w0", "drain");
    say(&router, "w1", "drain");
    let reply = complete(&router);
    assert_eq!((reply.status, reply.field("x-forebay-reason")), (503, Some("no-healthy-worker")));
    let ready = admin(&router, "/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("none of 2 workers is usable (2 drain)"), "{}", ready.text());
    say(&router, "w1", "undrain");
    assert_eq!(worker_of(&complete(&router)), "w1");
}

#[test]
fn who_waits_goes_to_a_worker_that_does_not_drain() {
    let first = Gate::start();
    let second = Gate::start();
    let mut config = config(&[&first.worker, &second.worker]);
    for (number, worker) in config.workers.iter_mut().enumerate() {
        worker.name = Some(format!("w{number}"));
    }
    config.flow.rank_concurrency_max = Some(1);
    config.flow.queue.mode = QueueMode::Pool;
    config.flow.queue.wait_max = Duration::from_secs(60);
    config.flow.queue.stale_after = Duration::from_secs(60);
    let router = router(config);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(router.listen)).collect();
    for client in &mut clients {
        client.send(&post("/v1/completions", ASK));
    }
    until("one waits", || metric(&router, "forebay_queue_depth") == 1.0);
    say(&router, "w0", "drain");
    first.open();
    until("it is drained", || shown(&router, "w0")["in_flight"] == 0);
    assert_eq!(metric(&router, "forebay_queue_depth"), 1.0, "the free place is not for who waits");
    second.open();
    second.open();
    let mut came: Vec<String> =
        clients.iter_mut().map(|client| worker_of(&client.reply()).to_owned()).collect();
    came.sort_unstable();
    assert_eq!(came, ["w0", "w1", "w1"]);
}

#[test]
fn a_pair_is_made_of_workers_that_do_not_drain() {
    let [prefill, spare, decode] = [(); 3].map(|()| Stub::start(Pages::vllm()));
    let workers = [
        (&prefill, "role = \"prefill\"\nname = \"p0\""),
        (&spare, "role = \"prefill\"\nname = \"p1\""),
        (&decode, "role = \"decode\"\nname = \"d\""),
    ];
    let router = ready(pair_config(&workers, ""), &workers);
    for worker in [&prefill, &spare] {
        worker.always(answer(br#"{"kv_transfer_params":{"do_remote_prefill":true}}"#));
    }
    say(&router, "p0", "drain");
    for _ in 0..6 {
        let body = r#"{"model":"m","prompt":"hi"}"#;
        assert_eq!(ask(&router, "/v1/completions", body).reply().status, 200);
    }
    assert_eq!((prefill.arrivals().len(), spare.arrivals().len()), (0, 6));
    say(&router, "d", "drain");
    let reply = ask(&router, "/v1/completions", r#"{"model":"m","prompt":"hi"}"#).reply();
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert_eq!(decode.arrivals().len(), 6);
}

#[test]
fn names_that_no_worker_has_and_calls_without_the_token_are_refused() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.admin_token_file = Some("tests/data/admin_token".into());
    let router = router(config);
    let unknown = admin(&router, "/workers/nobody");
    assert_eq!(unknown.status, 404);
    assert!(unknown.text().contains(r#"{"error":"no worker is called"#), "{}", unknown.text());
    let name = worker.address;
    assert_eq!(admin(&router, &format!("/workers/{name}")).status, 200);
    let call = |path: &str, fields: &str| {
        let mut client = Client::connect(router.admin);
        client.send(format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n").as_bytes());
        client.reply().status
    };
    let token = std::fs::read_to_string("tests/data/admin_token").unwrap();
    let bearer = format!("authorization: Bearer {}\r\n", token.trim());
    let path = format!("/workers/{name}/drain");
    assert_eq!((call(&path, ""), call(&path, &bearer)), (401, 200));
    assert_eq!(call("/workers/nobody/drain", &bearer), 404);
    assert_eq!(call("/workers/nobody/undrain", &bearer), 404);
}

/// Without a wait, an idle worker is drained at once, and a busy one is not.
#[test]
fn a_drain_that_waits_for_nothing_shows_whether_the_worker_is_idle() {
    let held = Gate::start();
    let idle = Worker::json("{}");
    let router = two(&[&held.worker, &idle], Policy::RoundRobin);
    say(&router, "w1", "drain");
    let mut kept = Client::connect(router.listen);
    kept.send(&post("/v1/completions", ASK));
    held.holds(1);
    say(&router, "w1", "undrain");
    let drain = |worker: &str, order: &str| {
        let address = format!("http://{}", router.admin);
        let ran = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args([order, worker, "--wait=0s", "--router", &address])
            .output()
            .unwrap();
        let text = String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap();
        (ran.status.code(), text)
    };
    let (code, said) = drain("w1", "drain");
    assert!(code == Some(0) && said.contains("drained and idle"), "{code:?} {said}");
    let (code, said) = drain("w1", "undrain");
    assert!(code == Some(0) && said.contains("takes requests"), "{code:?} {said}");
    let (code, said) = drain("w0", "drain");
    assert!(code == Some(1) && said.contains("the order holds"), "{code:?} {said}");
    assert_eq!(shown(&router, "w0")["draining"], true);
    held.open();
    assert_eq!(kept.reply().status, 200);
}
