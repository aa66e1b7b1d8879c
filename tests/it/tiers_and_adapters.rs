//! Scripted workers with a real publisher each: blocks in host memory draw requests, adapters are
//! matched and served by whom they belong to.

use crate::rig::{
    Client, Reply, Worker, admin_post, any_port, metric, post, router, until, usable,
};
use forebay::config::{Config, EngineKind, Policy, WorkerConfig};
use forebay::server::ServerHandle;
use rmp::encode::{write_array_len, write_f64, write_nil, write_str, write_uint};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

const BLOCK: u32 = 16;

/// A worker that is a vLLM server as far as discovery can see, with these model cards.
pub(crate) fn vllm(cards: &'static str) -> Worker {
    Worker::start(move |seen, stream| {
        let path = seen.head.split(' ').nth(1).unwrap_or_default();
        let (status, body) = match path {
            "/v1/models" => (200, cards),
            "/health" | "/version" | "/metrics" => (200, ""),
            "/v1/completions" => (200, r#"{"choices":[],"usage":{}}"#),
            _ => (404, ""),
        };
        let reply = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(reply.as_bytes()).is_ok()
    })
}

/// A worker's event stream.
pub(crate) struct Publisher {
    runtime: Runtime,
    socket: PubSocket,
    pub(crate) place: String,
    sent: u64,
}

impl Publisher {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut socket = PubSocket::new();
        let place = runtime.block_on(socket.bind("tcp://127.0.0.1:0")).unwrap().to_string();
        Self { runtime, socket, place, sent: 0 }
    }

    fn send(&mut self, event: impl Fn(&mut Vec<u8>)) {
        let mut payload = Vec::new();
        write_array_len(&mut payload, 2).unwrap();
        write_f64(&mut payload, 0.0).unwrap();
        write_array_len(&mut payload, 1).unwrap();
        event(&mut payload);
        let mut message = ZmqMessage::from("");
        message.push_back(self.sent.to_be_bytes().to_vec().into());
        message.push_back(payload.into());
        self.runtime.block_on(self.socket.send(message)).unwrap();
        self.sent += 1;
    }

    /// Clears the cache again and again until the router hears it: what comes before it listens is
    /// lost.
    pub(crate) fn meet(&mut self, handle: &ServerHandle) {
        let heard = || metric(handle, "forebay_kv_batches_total{");
        let before = heard();
        until("the publisher is heard", || {
            self.clear();
            std::thread::sleep(Duration::from_millis(20));
            heard() > before
        });
        let mut last = before;
        until("the last of them is received", || {
            std::thread::sleep(Duration::from_millis(50));
            (heard() - std::mem::replace(&mut last, heard())).abs() < 0.5
        });
    }

    pub(crate) fn clear(&mut self) {
        self.send(|out| {
            write_array_len(out, 1).unwrap();
            write_str(out, "AllBlocksCleared").unwrap();
        });
    }

    /// Removes the first so many blocks of a prompt.
    pub(crate) fn remove(&mut self, count: u32, medium: &str) {
        self.send(|out| {
            write_array_len(out, 3).unwrap();
            write_str(out, "BlockRemoved").unwrap();
            write_array_len(out, count).unwrap();
            (1..=count).for_each(|number| drop(write_uint(out, u64::from(number))));
            write_str(out, medium).unwrap();
        });
    }

    /// Stores the whole blocks of a prompt, in the form of vLLM 0.14.
    pub(crate) fn store(&mut self, prompt: &[u32], medium: &str, lora: Option<&str>) {
        let block = usize::try_from(BLOCK).unwrap();
        let count = prompt.len() / block;
        self.send(|out| {
            write_array_len(out, 8).unwrap();
            write_str(out, "BlockStored").unwrap();
            write_array_len(out, u32::try_from(count).unwrap()).unwrap();
            (1..=count).for_each(|number| drop(write_uint(out, number as u64)));
            write_nil(out).unwrap();
            write_array_len(out, u32::try_from(count * block).unwrap()).unwrap();
            prompt[..count * block].iter().for_each(|id| drop(write_uint(out, u64::from(*id))));
            write_uint(out, u64::from(BLOCK)).unwrap();
            write_nil(out).unwrap();
            write_str(out, medium).unwrap();
            match lora {
                Some(name) => write_str(out, name).unwrap(),
                None => write_nil(out).unwrap(),
            }
        });
    }
}

fn kv_router(workers: &[(&Worker, &Publisher)]) -> ServerHandle {
    kv_router_of(workers, |_, _| ())
}

/// The same, with something changed of each worker's table.
pub(crate) fn kv_router_of(
    workers: &[(&Worker, &Publisher)],
    change: impl Fn(usize, &mut WorkerConfig),
) -> ServerHandle {
    let worker = |(position, (worker, publisher)): (usize, &(&Worker, &Publisher))| {
        let mut table = WorkerConfig {
            url: worker.url(),
            engine: Some(EngineKind::Vllm),
            kv_events: vec![publisher.place.clone()],
            block_size_tokens: Some(BLOCK),
            ..WorkerConfig::default()
        };
        change(position, &mut table);
        table
    };
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0, 1],
        policy: Policy::Kv,
        model_dir: Some("tests/data/tokenizer".into()),
        workers: workers.iter().enumerate().map(worker).collect(),
        ..Config::default()
    };
    config.health.interval = Duration::from_millis(100);
    let handle = router(config);
    until("every worker is up", || usable(&handle) == workers.len());
    handle
}

pub(crate) fn ask(handle: &ServerHandle, model: &str, prompt: &[u32]) -> Reply {
    let body = json!({ "model": model, "prompt": prompt, "max_tokens": 1 });
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", body.to_string().as_bytes()));
    client.reply()
}

pub(crate) fn explain(handle: &ServerHandle, model: &str, prompt: &[u32]) -> Value {
    let body = json!({ "model": model, "prompt": prompt });
    let mut client = Client::connect(handle.admin);
    let path = "/debug/overlap?endpoint=/v1/completions";
    client.send(&admin_post(path, body.to_string().as_bytes()));
    serde_json::from_slice(&client.reply().body).expect("JSON")
}

/// What the explanation says of a worker's one rank; null if it does not serve the model.
pub(crate) fn of(explained: &Value, worker: &Worker) -> Value {
    let name = worker.address.to_string();
    let ranks = explained["ranks"].as_array().cloned().unwrap_or_default();
    ranks.into_iter().find(|rank| rank["worker"] == name.as_str()).unwrap_or_default()
}

pub(crate) fn prompt(seed: u32) -> Vec<u32> {
    (0..64).map(|position| 33 + (seed * 7 + position * 5) % 60).collect()
}

pub(crate) const BASE: &str =
    r#"{"object":"list","data":[{"id":"m","owned_by":"vllm","parent":null}]}"#;
const BOTH: &str = r#"{"object":"list","data":[{"id":"m","owned_by":"vllm","parent":null},
    {"id":"tuned","owned_by":"vllm","root":"/adapters/tuned","parent":"m"}]}"#;

#[test]
fn blocks_in_host_memory_draw_the_request() {
    let workers = [vllm(BASE), vllm(BASE), vllm(BASE)];
    let mut publishers = [Publisher::new(), Publisher::new(), Publisher::new()];
    let pairs: Vec<_> = workers.iter().zip(&publishers).collect();
    let handle = kv_router(&pairs);
    publishers.iter_mut().for_each(|publisher| publisher.meet(&handle));
    // The first has a quarter of it on its device, the second all of it in the host's memory, the
    // third nothing.
    publishers[0].store(&prompt(1)[..16], "GPU", None);
    publishers[1].store(&prompt(1), "CPU", None);
    until("both are in the index", || {
        let explained = explain(&handle, "m", &prompt(1));
        of(&explained, &workers[1])["host_overlap_bytes"].as_u64() > Some(0)
            && of(&explained, &workers[0])["overlap_bytes"].as_u64() > Some(0)
    });
    let explained = explain(&handle, "m", &prompt(1));
    let second = of(&explained, &workers[1]);
    assert_eq!(
        (&second["overlap_bytes"], &second["cached_tokens_expected"]),
        (&json!(0), &json!(0))
    );
    let host = &second["host_overlap_bytes"];
    let weighed = &second["weighed_overlap_bytes"];
    assert_eq!(weighed.as_u64().unwrap(), host.as_u64().unwrap() * 80 / 100);
    assert!((metric(&handle, r#"forebay_kv_tier_blocks{tier="host"}"#) - 4.0).abs() < 0.1);
    for _ in 0..3 {
        let reply = ask(&handle, "m", &prompt(1));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let name = workers[1].address.to_string();
        assert_eq!(reply.field("x-forebay-worker"), Some(name.as_str()));
    }
}

#[test]
fn adapters_are_served_and_matched_where_they_are() {
    let workers = [vllm(BOTH), vllm(BOTH), vllm(BASE)];
    let mut publishers = [Publisher::new(), Publisher::new(), Publisher::new()];
    let pairs: Vec<_> = workers.iter().zip(&publishers).collect();
    let handle = kv_router(&pairs);
    publishers.iter_mut().for_each(|publisher| publisher.meet(&handle));
    // The same tokens: the adapter's on the second worker, the model's own on the first and the
    // third.
    publishers[0].store(&prompt(1), "GPU", None);
    publishers[1].store(&prompt(1), "GPU", Some("tuned"));
    publishers[2].store(&prompt(1), "GPU", None);
    let bytes = |model: &str| {
        let explained = explain(&handle, model, &prompt(1));
        [0, 1, 2].map(|number| of(&explained, &workers[number])["overlap_bytes"].as_u64())
    };
    until("all are in the index", || {
        let of = |model: &str| bytes(model).iter().flatten().sum::<u64>();
        of("m") == 2 * 64 && of("tuned") == 64
    });
    assert_eq!(bytes("m"), [Some(64), Some(0), Some(64)]);
    assert_eq!(bytes("tuned"), [Some(0), Some(64), None], "the third does not serve it");
    assert_eq!(bytes("m:tuned"), bytes("tuned"), "SGLang's way of naming it");
    let worker_of = |model: &str, prompt: &[u32]| {
        let reply = ask(&handle, model, prompt);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let name = reply.field("x-forebay-worker").expect("named").to_owned();
        workers.iter().position(|worker| worker.address.to_string() == name).expect("known")
    };
    assert_eq!(worker_of("tuned", &prompt(1)), 1);
    assert_ne!(worker_of("m", &prompt(1)), 1);
    for seed in 2..12 {
        assert_ne!(worker_of("tuned", &prompt(seed)), 2);
    }
    assert_eq!(ask(&handle, "m:unheard", &prompt(1)).status, 404);
    assert_eq!(ask(&handle, "unheard", &prompt(1)).status, 404);
}
