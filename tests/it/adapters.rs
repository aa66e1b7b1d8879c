//! LoRA adapters that are loaded when a client asks for them: where, how often, and what the client
//! hears if it cannot be.

use crate::rig::{
    Client, Reply, Worker, admin_post, any_port, metric, post, router, until, usable,
};
use forebay::config::{AdapterConfig, Config, EngineKind, WorkerConfig};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A vLLM with the model `base`, and what it is told to load; it answers that with `status`.
struct Engine {
    worker: Worker,
    loaded: Arc<Mutex<Vec<String>>>,
    /// Bodies of the calls that load.
    calls: Arc<Mutex<Vec<Value>>>,
    is_well: Arc<AtomicBool>,
    /// It lists what it has loaded some time after it said so.
    lists_late: Arc<AtomicBool>,
    /// Its answer for a model that it lacks.
    lacks: Arc<AtomicU16>,
}

impl Engine {
    fn start(status: u16) -> Self {
        let loaded: Arc<Mutex<Vec<String>>> = Arc::default();
        let calls: Arc<Mutex<Vec<Value>>> = Arc::default();
        let has = Arc::clone(&loaded);
        let called = Arc::clone(&calls);
        let is_well = Arc::new(AtomicBool::new(true));
        let well = Arc::clone(&is_well);
        let lists_late = Arc::new(AtomicBool::new(false));
        let late = Arc::clone(&lists_late);
        let lacks = Arc::new(AtomicU16::new(200));
        let status_of_lost = Arc::clone(&lacks);
        let worker = Worker::start(move |seen, stream| {
            let path = seen.head.split(' ').nth(1).unwrap_or_default();
            let (status, body) = match path {
                "/v1/models" => (200, cards(&has.lock().unwrap())),
                "/health" if !well.load(Ordering::Relaxed) => (503, String::new()),
                "/health" | "/version" | "/metrics" => (200, String::new()),
                "/v1/completions" => {
                    let asked: Value = serde_json::from_slice(&seen.body).unwrap();
                    let model = asked["model"].as_str().unwrap().to_owned();
                    match model == "base" || has.lock().unwrap().contains(&model) {
                        true => (200, r#"{"choices":[],"usage":{}}"#.to_owned()),
                        false => (
                            status_of_lost.load(Ordering::Relaxed),
                            r#"{"choices":[],"usage":{}}"#.to_owned(),
                        ),
                    }
                }
                "/v1/unload_lora_adapter" => {
                    has.lock().unwrap().clear();
                    (200, "{}".to_owned())
                }
                "/v1/load_lora_adapter" => {
                    let asked: Value = serde_json::from_slice(&seen.body).unwrap();
                    let name = asked["lora_name"].as_str().unwrap().to_owned();
                    if status == 200 && late.load(Ordering::Relaxed) {
                        let has = Arc::clone(&has);
                        std::thread::spawn(move || {
                            std::thread::sleep(Duration::from_millis(900));
                            has.lock().unwrap().push(name);
                        });
                    } else if status == 200 {
                        has.lock().unwrap().push(name);
                    }
                    called.lock().unwrap().push(asked);
                    (status, "no such folder".to_owned())
                }
                _ => (404, String::new()),
            };
            let length = body.len();
            let reply = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
            stream.write_all(reply.as_bytes()).is_ok()
        });
        Self { worker, loaded, calls, is_well, lists_late, lacks }
    }

    fn calls(&self) -> Vec<Value> {
        self.calls.lock().unwrap().clone()
    }
}

fn cards(adapters: &[String]) -> String {
    let base = json!({ "id": "base", "object": "model", "owned_by": "vllm", "root": "base" });
    let card = |name: &String| json!({ "id": name, "object": "model", "parent": "base" });
    let all: Vec<Value> = std::iter::once(base).chain(adapters.iter().map(card)).collect();
    json!({ "object": "list", "data": all }).to_string()
}

/// `sql` is to be at so many of the engines.
fn front(engines: &[&Engine], copies: u32) -> Config {
    let worker = |engine: &&Engine| WorkerConfig {
        url: engine.worker.url(),
        engine: Some(EngineKind::Vllm),
        ..WorkerConfig::default()
    };
    let [name, path, of] = ["sql", "/adapters/sql", "base"].map(str::to_owned);
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        workers: engines.iter().map(worker).collect(),
        adapters: vec![AdapterConfig { name, path, of, copies }],
        cores: vec![0],
        ..Config::default()
    };
    config.health.interval = Duration::from_millis(200);
    config.flow.router_in_flight_max = 100;
    config
}

fn in_front_of(engines: &[&Engine], copies: u32) -> ServerHandle {
    let router = router(front(engines, copies));
    until("all engines are up", || usable(&router) == engines.len());
    router
}

fn ask(router: &ServerHandle, model: &str) -> Reply {
    let mut client = Client::connect(router.listen);
    let body = json!({ "model": model, "prompt": "hello", "max_tokens": 1 }).to_string();
    client.send(&post("/v1/completions", body.as_bytes()));
    client.reply()
}

#[test]
fn the_first_request_waits_until_one_engine_has_the_adapter() {
    let engines = [Engine::start(200), Engine::start(200), Engine::start(200)];
    let router = in_front_of(&engines.each_ref(), 1);
    for _ in 0..5 {
        let reply = ask(&router, "sql");
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let calls: Vec<Value> = engines.iter().flat_map(Engine::calls).collect();
    assert_eq!(calls, [json!({ "lora_name": "sql", "lora_path": "/adapters/sql" })]);
    let served = |engine: &Engine| !engine.loaded.lock().unwrap().is_empty();
    assert_eq!(engines.iter().filter(|engine| served(engine)).count(), 1, "on one of three");
    assert!(lists_sql(&router));
}

fn lists_sql(router: &ServerHandle) -> bool {
    let mut client = Client::connect(router.listen);
    client.send(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n");
    client.reply().text().contains("\"sql\"")
}

/// Engines that have had the adapter from the start.
fn in_front_of_holders(engines: &[&Engine]) -> ServerHandle {
    for engine in engines {
        engine.loaded.lock().unwrap().push("sql".to_owned());
    }
    let mut config = front(engines, 1);
    config.adapters.clear();
    let router = router(config);
    until("all engines are up", || usable(&router) == engines.len());
    router
}

/// A worker that is up is described every 30 s otherwise.
const SOON: Duration = Duration::from_secs(10);

/// vLLM answers 404 for an adapter that it has lost, and SGLang 400.
#[test]
fn a_refused_request_for_an_adapter_has_its_list_read_again() {
    for status in [404, 400] {
        let engine = Engine::start(200);
        engine.lacks.store(status, Ordering::Relaxed);
        let router = in_front_of_holders(&[&engine]);
        assert_eq!(ask(&router, "sql").status, 200);
        engine.loaded.lock().unwrap().clear();
        let begin = Instant::now();
        assert_eq!(ask(&router, "sql").status, status);
        until("the adapter is gone", || !lists_sql(&router));
        assert!(begin.elapsed() < SOON, "{status}: {:?}", begin.elapsed());
        let reply = ask(&router, "sql");
        assert_eq!(reply.field("x-forebay-reason"), Some("unknown-model"), "{status}");
    }
}

#[test]
fn requests_for_an_adapter_that_an_engine_lost_go_to_another() {
    let engines = [Engine::start(200), Engine::start(200)];
    let router = in_front_of_holders(&engines.each_ref());
    engines.iter().for_each(|engine| engine.lacks.store(404, Ordering::Relaxed));
    engines[0].loaded.lock().unwrap().clear();
    let begin = Instant::now();
    until("all go to the other", || (0..8).all(|_| ask(&router, "sql").status == 200));
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn an_adapter_that_is_unloaded_by_a_call_is_gone_without_a_failed_request() {
    let engine = Engine::start(200);
    let router = in_front_of_holders(&[&engine]);
    assert!(lists_sql(&router));
    let begin = Instant::now();
    let mut client = Client::connect(router.admin);
    let body = br#"{"lora_name":"sql"}"#;
    client.send(&admin_post("/engines/v1/unload_lora_adapter", body));
    assert_eq!(client.reply().status, 200);
    until("the adapter is gone", || !lists_sql(&router));
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn an_engine_that_lists_it_late_is_told_once_whoever_asks_meanwhile() {
    let engine = Engine::start(200);
    engine.lists_late.store(true, Ordering::Relaxed);
    let router = in_front_of(&[&engine], 1);
    let clients: Vec<Client> = (0..8)
        .map(|_| {
            let mut client = Client::connect(router.listen);
            client.send(&post("/v1/completions", br#"{"model":"sql","prompt":"a"}"#));
            std::thread::sleep(Duration::from_millis(60));
            client
        })
        .collect();
    for mut client in clients {
        assert_eq!(client.reply().status, 200);
    }
    assert_eq!(engine.calls().len(), 1);
}

#[test]
fn an_engine_that_lost_it_gets_it_again() {
    let engines = [Engine::start(200), Engine::start(200)];
    let router = in_front_of(&engines.each_ref(), 2);
    assert_eq!(ask(&router, "sql").status, 200);
    let loads = || engines.iter().map(|engine| engine.calls().len()).sum::<usize>();
    until("both have it", || loads() == 2);
    engines[0].is_well.store(false, Ordering::Relaxed);
    until("one is down", || usable(&router) == 1);
    engines[0].loaded.lock().unwrap().clear();
    engines[0].is_well.store(true, Ordering::Relaxed);
    until("it is loaded again", || engines[0].calls().len() == 2);
    assert_eq!(ask(&router, "sql").status, 200);
    assert_eq!(engines[1].calls().len(), 1);
}

#[test]
fn an_adapter_whose_only_engine_is_down_is_loaded_by_another() {
    let engines = [Engine::start(200), Engine::start(200)];
    let router = in_front_of(&engines.each_ref(), 1);
    assert_eq!(ask(&router, "sql").status, 200);
    let has_it = |engine: &&Engine| engine.calls().len() == 1;
    let [holder] = *engines.iter().filter(has_it).collect::<Vec<_>>() else { panic!("one has it") };
    holder.is_well.store(false, Ordering::Relaxed);
    until("it is down", || usable(&router) == 1);
    assert_eq!(ask(&router, "sql").status, 200);
    assert!(engines.iter().all(|engine| has_it(&engine)));
}

#[test]
fn without_health_checks_nothing_is_loaded() {
    let engine = Engine::start(404);
    let mut config = front(&[&engine], 1);
    config.health.enabled = false;
    let router = router(config);
    assert_eq!(ask(&router, "sql").status, 200, "the engine decides");
    assert!(engine.calls().is_empty());
}

#[test]
fn a_client_hears_why_no_engine_has_loaded_it() {
    let engine = Engine::start(404);
    let router = in_front_of(&[&engine], 1);
    for _ in 0..2 {
        let reply = ask(&router, "sql");
        let text = reply.text();
        assert_eq!(reply.status, 503, "{text}");
        assert!(text.contains("No worker could load the adapter `sql`"), "{text}");
        assert!(text.contains("it answered 404: no such folder"), "{text}");
    }
    assert_eq!(engine.calls().len(), 1, "the second hears it at once");
    assert_eq!(ask(&router, "base").status, 200);
    assert_eq!(ask(&router, "other").status, 404, "no table has it");
}

#[test]
fn a_client_that_leaves_waits_for_nothing() {
    let engine = Engine::start(200);
    let router = in_front_of(&[&engine], 1);
    let in_flight = || metric(&router, "forebay_router_in_flight ");
    let held = engine.loaded.lock().unwrap();
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", br#"{"model":"sql","prompt":"a"}"#));
    until("it waits for the adapter", || in_flight() == 1.0);
    drop(client);
    until("it is not in flight any more", || in_flight() == 0.0);
    drop(held);
}
