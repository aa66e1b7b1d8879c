//! Recordings: an engine's events through a file, into an index here and over sockets again,
//! against an index that followed the engine itself.

use crate::rig::{PATIENCE, router};
use forebay::base::RankIndex;
use forebay::config::{Config, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::index::{KeySeed, Overlap, Overlaps};
use forebay::record::{
    FileReader, Publisher, RebuiltIndex, RecordSource, RecordedMessage, RecordingEnd, TokenText,
    inspect, record,
};
use forebay::text::chat::load_model_text;
use forebay::zmq::{Side, ZmqAddress, ZmqEndpoint, ZmqSource};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

const RANKS: usize = 2;
const BLOCK_TOKENS: u32 = 16;

fn block_on_local<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "gave up waiting: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn engine() -> EngineHandle {
    let config = EngineConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        ranks: 2,
        kv_events: Some("tcp://127.0.0.1:0".into()),
        kv_blocks: 4_096,
        block_size: BLOCK_TOKENS,
        prefill_tokens_per_s: 1e6,
        itl_ms: 1.0,
        ..EngineConfig::default()
    };
    Engine::start_with(config, EngineText::load(None).unwrap()).unwrap()
}

fn empty() -> RebuiltIndex {
    let parts = load_model_text(Path::new("tests/data/tokenizer")).unwrap();
    let text = TokenText::Vocabulary(Arc::new(parts.vocabulary));
    RebuiltIndex::new(KeySeed(11), &text, RANKS, 64 << 20)
}

fn any_port() -> ZmqEndpoint {
    ZmqEndpoint {
        side: Side::Connect,
        place: ZmqAddress::Tcp { host: "127.0.0.1".into(), port: 0 },
    }
}

/// An index that follows sockets.
struct Tap {
    index: Rc<RefCell<RebuiltIndex>>,
    last: [Rc<Cell<Option<u64>>>; RANKS],
}

impl Tap {
    fn follow(endpoints: &[ZmqEndpoint]) -> Self {
        let tap = Self { index: Rc::new(RefCell::new(empty())), last: Default::default() };
        for (number, (endpoint, last)) in endpoints.iter().zip(&tap.last).enumerate() {
            let endpoint = endpoint.clone();
            let last = Rc::clone(last);
            let index = Rc::clone(&tap.index);
            spawn_local(async move {
                let mut connection =
                    ZmqSource::open(&endpoint).await.unwrap().subscribe("").await.unwrap();
                while let Ok((parts, end)) = connection.message().await {
                    let frames: Vec<&[u8]> =
                        parts.iter().map(|part| connection.part(part)).collect();
                    let number = u16::try_from(number).unwrap();
                    index.borrow_mut().take(&RecordedMessage::new(0, number, &frames).unwrap());
                    last.set(Some(u64::from_be_bytes(frames[1].try_into().unwrap())));
                    connection.done(end);
                }
            });
        }
        tap
    }

    fn last(&self) -> [Option<u64>; RANKS] {
        [self.last[0].get(), self.last[1].get()]
    }
}

/// Last sequence number of each source in a file that may still be written.
fn last_recorded(path: &Path) -> [Option<u64>; RANKS] {
    let mut last = [None; RANKS];
    let Ok(mut reader) = FileReader::open(path) else { return last };
    loop {
        let end = reader.next_chunk().unwrap();
        for message in reader.messages().filter(|message| !message.is_end_of_connection()) {
            let number = message.frames()[1].try_into().unwrap();
            last[usize::from(message.source)] = Some(u64::from_be_bytes(number));
        }
        if end.is_some() {
            return last;
        }
    }
}

async fn complete(engine: &EngineHandle, rank: usize, prompt: &str) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 1 });
    let request = client.post(format!("{}/v1/completions", engine.url()));
    let request = request.header("x-data-parallel-rank", rank.to_string()).json(&body);
    assert_eq!(request.send().await.unwrap().status(), 200);
}

fn overlaps(index: &RebuiltIndex, prompt: &str) -> Vec<Overlap> {
    let mut overlaps = Overlaps::new(RANKS);
    index.index().overlap(index.root(BLOCK_TOKENS), prompt.as_bytes(), &mut overlaps);
    (0..2).map(|rank| overlaps.get(RankIndex(rank))).collect()
}

fn from_file(path: &Path) -> RebuiltIndex {
    let mut index = empty();
    let mut reader = FileReader::open(path).unwrap();
    loop {
        let end = reader.next_chunk().unwrap();
        for message in reader.messages() {
            index.take(&message);
        }
        if end.is_some() {
            return index;
        }
    }
}

/// Publishes a file as fast as it goes; the publisher stays open.
async fn publish_all(path: &Path, publisher: &mut Publisher) {
    let mut reader = FileReader::open(path).unwrap();
    while reader.next_chunk().unwrap().is_none() {
        for message in reader.messages() {
            publisher.publish(&message).await;
        }
    }
}

/// Records an engine while prompts go to its ranks in turn. Returns the index that followed it.
async fn record_prompts(engine: &EngineHandle, path: &Path, prompts: &[String]) -> Tap {
    let endpoint =
        |source: &forebay::engine::KvEndpoints| ZmqEndpoint::parse(&source.endpoint, "x").unwrap();
    let endpoints: Vec<ZmqEndpoint> = engine.kv_sources().iter().map(endpoint).collect();
    let tap = Tap::follow(&endpoints);
    let (stop, stopped) = oneshot::channel::<()>();
    let out = path.to_owned();
    let recording = spawn_local(async move {
        let source = |endpoint| RecordSource { endpoint, topic: String::new() };
        let sources: Vec<RecordSource> = endpoints.into_iter().map(source).collect();
        record(&sources, None, &out, async { drop(stopped.await) }).await.unwrap()
    });
    // A publisher drops what comes before it knows its subscribers.
    let start = Instant::now();
    let mut word = 0;
    while tap.last().contains(&None) || last_recorded(path).contains(&None) {
        assert!(start.elapsed() < PATIENCE, "the engine is not heard");
        word += 1;
        for rank in 0..RANKS {
            complete(engine, rank, &format!("warm up {word} on {rank}. ").repeat(8)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (number, prompt) in prompts.iter().enumerate() {
        complete(engine, number % RANKS, prompt).await;
    }
    until("the last event is recorded", || {
        let stats = engine.stats();
        let sent = [0, 1].map(|rank: usize| stats[rank].kv_batches.checked_sub(1));
        tap.last() == sent && last_recorded(path) == sent
    })
    .await;
    stop.send(()).unwrap();
    assert!(recording.await.unwrap().messages.iter().all(|count| *count > 0));
    tap
}

fn prompts() -> Vec<String> {
    (0..6).map(|n| format!("story {} goes on: ", n / 2).repeat(20 + n)).collect()
}

#[test]
fn a_recording_gives_the_index_that_the_engine_gave() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engine.kvrec");
    let engine = engine();
    block_on_local(async {
        let live = record_prompts(&engine, &path, &prompts()).await;
        let summary = inspect(&path).unwrap();
        assert_eq!((summary.end, summary.header.sources.len()), (RecordingEnd::Complete, RANKS));
        let replayed = from_file(&path);

        let mut publisher = Publisher::bind(&any_port(), RANKS).await.unwrap();
        let endpoints: Vec<ZmqEndpoint> = publisher.endpoints().cloned().collect();
        let heard = Tap::follow(&endpoints);
        publisher.wait_for_subscribers(1).await;
        publish_all(&path, &mut publisher).await;
        until("everything is heard again", || heard.last() == live.last()).await;

        for prompt in prompts() {
            let expected = overlaps(&live.index.borrow(), &prompt);
            assert!(expected.iter().any(|overlap| overlap.blocks > 3), "{expected:?}");
            assert_eq!(overlaps(&replayed, &prompt), expected, "from the file");
            assert_eq!(overlaps(&heard.index.borrow(), &prompt), expected, "over sockets");
        }
    });
}

#[test]
fn a_router_follows_a_recording_as_it_would_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engine.kvrec");
    let recorded = engine();
    // The worker behind the router publishes nothing itself.
    let silent = EngineConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        ranks: 2,
        block_size: BLOCK_TOKENS,
        ..EngineConfig::default()
    };
    let silent = Engine::start_with(silent, EngineText::load(None).unwrap()).unwrap();
    block_on_local(async {
        let live = record_prompts(&recorded, &path, &prompts()).await;
        let mut publisher = Publisher::bind(&any_port(), RANKS).await.unwrap();
        let worker = WorkerConfig {
            url: silent.url(),
            kv_events: publisher.endpoints().map(ToString::to_string).collect(),
            ..WorkerConfig::default()
        };
        let handle = router(Config {
            listen: ([127, 0, 0, 1], 0).into(),
            admin: ([127, 0, 0, 1], 0).into(),
            cores: vec![0],
            model_dir: Some("tests/data/tokenizer".into()),
            workers: vec![worker],
            ..Config::default()
        });
        publisher.wait_for_subscribers(1).await;
        publish_all(&path, &mut publisher).await;
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{}/debug/overlap?endpoint=/v1/completions", handle.admin);
        for prompt in prompts() {
            let expected: Vec<u32> = overlaps(&live.index.borrow(), &prompt)
                .iter()
                .map(|overlap| overlap.blocks)
                .collect();
            let start = Instant::now();
            loop {
                let asked = client.post(&url).json(&json!({ "model": "sim", "prompt": prompt }));
                let explained: Value = asked.send().await.unwrap().json().await.unwrap();
                let ranks = explained["ranks"].as_array().unwrap().iter();
                let blocks: Vec<u64> =
                    ranks.map(|rank| rank["overlap_blocks"].as_u64().unwrap()).collect();
                if blocks == expected.iter().map(|&blocks| u64::from(blocks)).collect::<Vec<_>>() {
                    break;
                }
                assert!(start.elapsed() < PATIENCE, "{expected:?} of {explained}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
}
