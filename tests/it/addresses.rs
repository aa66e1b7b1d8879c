//! One engine is one worker, however its address is spelled, and a router is no worker of itself.

use crate::rig::stub::Stub;
use crate::rig::stub_pages::Pages;
use crate::rig::{
    ASK, Client, Gate, Reply, Worker, admin, admin_post, config, metric, post, router, until,
};
use forebay::server::ServerHandle;
use forebay_config::{Config, QueueMode, WorkerConfig};
use serde_json::Value;
use std::time::Duration;

fn at(url: String) -> WorkerConfig {
    WorkerConfig { url, ..WorkerConfig::default() }
}

/// In front of these, with health checks.
fn watching(urls: &[String]) -> Config {
    let mut config = config(&[]);
    config.workers = urls.iter().cloned().map(at).collect();
    config.health.enabled = true;
    config.health.interval = Duration::from_millis(20);
    config.health.unhealthy_after = 1;
    config
}

fn worker(router: &ServerHandle, name: &str) -> Value {
    let reply = admin(router, &format!("/workers/{name}"));
    serde_json::from_slice(&reply.body).unwrap_or_default()
}

fn state(router: &ServerHandle, name: &str) -> String {
    worker(router, name)["state"].as_str().unwrap_or_default().to_owned()
}

fn add(router: &ServerHandle, url: &str) -> u16 {
    let mut client = Client::connect(router.admin);
    client.send(&admin_post("/workers", format!("{{\"url\":\"{url}\"}}").as_bytes()));
    client.reply().status
}

fn ask(router: &ServerHandle, fields: &str) -> Reply {
    let mut client = Client::connect(router.listen);
    let ask = String::from_utf8(post("/v1/completions", ASK)).unwrap();
    client.send(ask.replacen("\r\n", &format!("\r\n{fields}"), 1).as_bytes());
    client.reply()
}

#[test]
fn one_engine_by_two_spellings_has_the_limit_of_one() {
    let engine = Stub::start(Pages::vllm());
    let port = engine.address.port();
    let urls = [format!("http://127.0.0.1:{port}"), format!("http://localhost:{port}")];
    let mut config = watching(&urls);
    config.flow.rank_concurrency_max = Some(1);
    let router = router(config);
    let names = urls.each_ref().map(|url| url.trim_start_matches("http://").to_owned());
    until("one is used, and one is not", || {
        let mut states = names.each_ref().map(|name| state(&router, name));
        states.sort_unstable();
        states == ["unused", "up"]
    });
    let unused = names.iter().find(|name| state(&router, name) == "unused").unwrap();
    let used = names.iter().find(|name| *name != unused).unwrap();
    assert_eq!(worker(&router, unused)["engine_used_by"], **used);
    let answers = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..6).map(|_| scope.spawn(|| ask(&router, ""))).collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    for answer in answers {
        assert_eq!((answer.status, answer.field("x-forebay-worker")), (200, Some(&**used)));
    }
    assert_eq!(engine.in_flight_peak(), 1);
    for host in ["[::ffff:127.0.0.1]", "LOCALHOST", "localhost."] {
        assert_eq!(add(&router, &format!("http://{host}:{port}")), 409, "{host}");
    }
    for host in ["2130706433", "0x7f.1"] {
        assert_eq!(add(&router, &format!("http://{host}:{port}")), 400, "{host}");
    }
}

/// Issue 39: 4 requests of an engine with a limit of 2, once the name that had the first 2 left.
#[test]
fn an_engine_keeps_its_limit_when_its_other_name_takes_over() {
    let gate = Gate::start();
    let port = gate.worker.address.port();
    let mut config = config(&[]);
    config.workers =
        ["127.0.0.1", "[::ffff:127.0.0.1]"].map(|host| at(format!("http://{host}:{port}"))).into();
    config.flow.rank_concurrency_max = Some(2);
    config.flow.queue.mode = QueueMode::Pool;
    let router = router(config);
    let asking = || {
        let mut client = Client::connect(router.listen);
        client.send(&post("/v1/completions", ASK));
        client
    };
    until("a single name is used", || {
        let hosts = ["127.0.0.1", "[::ffff:127.0.0.1]"]
            .map(|host| state(&router, &format!("{host}:{port}")));
        hosts == ["up", "unused"]
    });
    let first = [(); 2].map(|()| asking());
    gate.holds(2);
    let mut client = Client::connect(router.admin);
    let order = format!("DELETE /workers/127.0.0.1:{port} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    client.send(order.as_bytes());
    assert_eq!(client.reply().status, 202);
    until("the other name is used", || {
        state(&router, &format!("[::ffff:127.0.0.1]:{port}")) == "up"
    });
    let second = [(); 2].map(|()| asking());
    until("both wait", || metric(&router, "forebay_queue_depth") == 2.0);
    gate.holds(2);
    (0..4).for_each(|_| gate.open());
    for mut client in first.into_iter().chain(second) {
        assert_eq!(client.reply().status, 200);
    }
}

#[test]
fn a_router_is_no_worker_of_itself() {
    let engine = Stub::start(Pages::vllm());
    let router = router(watching(&[engine.url()]));
    for (name, address) in [("listen", router.listen), ("admin", router.admin)] {
        assert_eq!(add(&router, &format!("http://{address}")), 201, "{name}");
        let name = address.to_string();
        for _ in 0..20 {
            assert_eq!(state(&router, &name), "unknown", "it is never up");
            let answer = ask(&router, "");
            assert_eq!(answer.field("x-forebay-worker"), Some(&*engine.address.to_string()));
        }
    }
}

/// Two routers on purpose, and a third that leads back to the first.
#[test]
fn routers_stand_in_front_of_routers_and_a_loop_ends() {
    let engine = Worker::json("{}");
    let last = router(config(&[&engine]));
    let url_of = |router: &ServerHandle| format!("http://{}", router.listen);
    let mut middle = config(&[]);
    middle.workers = vec![at(url_of(&last))];
    let middle = router(middle);
    let mut first = config(&[]);
    first.workers = vec![at(url_of(&middle))];
    let first = router(first);
    let answer = ask(&first, "");
    assert_eq!((answer.status, answer.text().contains("{}")), (200, true), "{}", answer.text());
    let seen = engine.next();
    let via: Vec<&str> = seen.head.lines().filter_map(|line| line.strip_prefix("via: ")).collect();
    assert_eq!(via.len(), 3, "{via:?}");
    assert!(via.iter().all(|via| via.starts_with("1.1 forebay-")), "{via:?}");
    // The last one gets a worker that leads to the first: requests that take this way come back
    // to the last one, and go to its engine.
    assert_eq!(add(&last, &url_of(&first)), 201);
    let loop_name = first.listen.to_string();
    until("it is used", || state(&last, &loop_name) == "up");
    for _ in 0..8 {
        let answer = ask(&first, "");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // A client that writes the field harms nothing but its own request.
    let own = via.last().unwrap();
    let forged = ask(&last, &format!("Via: {own}, {own}\r\n"));
    assert_eq!((forged.status, forged.field("x-forebay-reason")), (508, Some("request-loop")));
    assert_eq!(ask(&last, "Via: 1.1 nginx, 1.0 fred (forebay-x)\r\n").status, 200);
    for _ in 0..8 {
        assert_eq!(ask(&last, "").status, 200, "a loop of which one way leads out");
    }
    let many: String = (0..5).map(|n| format!("Via: 1.1 forebay-{n}\r\n")).collect();
    assert_eq!(ask(&last, &many).status, 508);
}
