//! The router's view of what ranks hold, next to the truth.

use super::{Client, PATIENCE, Publisher, Reply, admin_post, any_port, until};
use forebay::config::{Config, Policy, WorkerConfig};
use forebay::kv_events::FeedTimers;
use forebay::server::{ServerHandle, start_with};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A router that follows these ranks of one worker; nothing answers for the worker itself.
pub(crate) fn follower(kv_events: &[String], replay: &[String]) -> ServerHandle {
    timed_follower(kv_events, replay, FeedTimers::default())
}

/// The same, with feeds that wait for other times.
pub(crate) fn timed_follower(
    kv_events: &[String],
    replay: &[String],
    timers: FeedTimers,
) -> ServerHandle {
    let worker = WorkerConfig {
        url: "http://127.0.0.1:1".into(),
        models: vec!["m".into()],
        kv_events: kv_events.to_vec(),
        replay: replay.to_vec(),
        ..WorkerConfig::default()
    };
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0],
        policy: Policy::Kv,
        model_dir: Some("tests/data/tokenizer".into()),
        workers: vec![worker],
        ..Config::default()
    };
    config.health.enabled = false;
    let handle = start_with(config, timers).expect("the router starts");
    until("the worker is known", || get(handle.admin, "/workers").text().contains("\"up\""));
    handle
}

/// The same, straight to a publisher.
pub(crate) fn following(publisher: &Publisher, with_replay: bool) -> ServerHandle {
    let replay = with_replay.then(|| format!("tcp://{}", publisher.replay));
    follower(&[format!("tcp://{}", publisher.live)], replay.as_slice())
}

/// Blocks of a prompt that the router believes each rank to hold.
pub(crate) fn believed(client: &mut Client, prompt: &[u32]) -> Vec<usize> {
    let body = json!({ "model": "m", "prompt": prompt }).to_string();
    explained(client, "/v1/completions", body.as_bytes())
}

/// The same for any request body.
pub(crate) fn explained(client: &mut Client, endpoint: &str, body: &[u8]) -> Vec<usize> {
    client.send(&admin_post(&format!("/debug/overlap?endpoint={endpoint}"), body));
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let explained: Value = serde_json::from_slice(&reply.body).unwrap();
    let blocks = |rank: &Value| usize::try_from(rank["overlap_blocks"].as_u64().unwrap()).unwrap();
    explained["ranks"].as_array().unwrap().iter().map(blocks).collect()
}

/// What differs between belief and truth, over every prompt that ever was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Blocks believed and not held.
    pub(crate) ghosts: usize,
    /// Blocks held and not known.
    pub(crate) unknown: usize,
}

pub(crate) const NONE: Difference = Difference { ghosts: 0, unknown: 0 };

/// Compares all prompts of a publisher that is rank `rank`.
pub(crate) fn difference(view: SocketAddr, publisher: &Publisher, rank: usize) -> Difference {
    let mut client = Client::connect(view);
    let mut asked = HashMap::new();
    for prompt in &publisher.prompts {
        asked.entry(prompt).or_insert_with(|| {
            let believed = believed(&mut client, prompt).get(rank).copied().unwrap_or(0);
            (believed, publisher.held_blocks(prompt))
        });
    }
    asked.values().fold(Difference::default(), |sum, (believed, held)| Difference {
        ghosts: sum.ghosts + believed.saturating_sub(*held),
        unknown: sum.unknown + held.saturating_sub(*believed),
    })
}

/// Waits until the difference is acceptable.
pub(crate) fn until_difference(
    view: SocketAddr,
    publisher: &Publisher,
    good: impl Fn(Difference) -> bool,
) {
    let start = Instant::now();
    loop {
        let now = difference(view, publisher, 0);
        if good(now) {
            return;
        }
        let state = feed(view, 0);
        assert!(start.elapsed() < PATIENCE, "{now:?} after {PATIENCE:?}; feed {state}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A GET of the admin API.
pub(crate) fn get(view: SocketAddr, path: &str) -> Reply {
    let mut client = Client::connect(view);
    client.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes());
    client.reply()
}

/// Lines of the metrics that start with `name`.
pub(crate) fn samples(view: SocketAddr, name: &str) -> Vec<String> {
    let text = get(view, "/metrics").text();
    text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
}

/// Sum of all samples whose line starts with `name`.
pub(crate) fn metric(view: SocketAddr, name: &str) -> f64 {
    let lines = samples(view, name);
    lines.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// What `/workers` says about the feed of a rank.
pub(crate) fn feed(view: SocketAddr, rank: usize) -> Value {
    let workers: Value = serde_json::from_slice(&get(view, "/workers").body).unwrap();
    workers["workers"][0]["ranks"][rank]["kv_feed"].clone()
}

/// Times the rank was reset for that reason; for any, if it is empty.
pub(crate) fn resets(view: SocketAddr, reason: &str) -> f64 {
    metric(view, &format!("forebay_kv_resets_total{{reason=\"{reason}"))
}

/// Replays with that result.
pub(crate) fn replays(view: SocketAddr, result: &str) -> f64 {
    metric(view, &format!("forebay_kv_replays_total{{result=\"{result}\"}}"))
}

/// Connections that were lost for that reason; for any, if it is empty.
pub(crate) fn losses(view: SocketAddr, reason: &str) -> f64 {
    metric(view, &format!("forebay_kv_connections_lost_total{{reason=\"{reason}"))
}

/// Waits until the feed of rank 0 is in that state.
pub(crate) fn until_feed(view: SocketAddr, state: &str) {
    until(&format!("the feed is {state}"), || feed(view, 0)["state"] == state);
}
