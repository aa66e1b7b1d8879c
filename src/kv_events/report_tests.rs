//! Situations from public bug reports of engines and routers, each with the report's name: events
//! in, claims out. The rule of each: what an engine may have lost is not claimed, and no event
//! panics.

use super::blocks::tests::{Index, Letters, SHARDS, naming};
use super::{FeedCounters, RankFeed, ResetReason, SliceOps};
use forebay_index::{BlockKey, KeySeed, RootName};
use serde_json::{Value, json};

/// Writes a value in MessagePack, as an engine's encoder does.
fn pack(value: &Value, out: &mut Vec<u8>) {
    let length = |length: usize| u8::try_from(length).unwrap();
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(flag) => out.push(if *flag { 0xc3 } else { 0xc2 }),
        Value::Number(number) => match number.as_u64() {
            Some(small @ 0..=127) => out.push(u8::try_from(small).unwrap()),
            Some(large) => {
                out.push(0xcf);
                out.extend_from_slice(&large.to_be_bytes());
            }
            None => {
                out.push(0xcb);
                out.extend_from_slice(&number.as_f64().unwrap().to_be_bytes());
            }
        },
        Value::String(text) => {
            out.extend_from_slice(&[0xd9, length(text.len())]);
            out.extend_from_slice(text.as_bytes());
        }
        Value::Array(items) => {
            out.extend_from_slice(&[0xdc, 0, length(items.len())]);
            items.iter().for_each(|item| pack(item, out));
        }
        Value::Object(fields) => {
            out.extend_from_slice(&[0xde, 0, length(fields.len())]);
            for (key, item) in fields {
                pack(&key.as_str().into(), out);
                pack(item, out);
            }
        }
    }
}

/// A rank's feed, and the claims that follow from its events.
struct Rig {
    feed: RankFeed<Letters>,
    counters: FeedCounters,
    ops: SliceOps,
    index: Index,
    number: u64,
}

impl Rig {
    fn new() -> Self {
        Self {
            feed: RankFeed::new(naming(), 1_000),
            counters: FeedCounters::new(),
            ops: SliceOps::new(SHARDS),
            index: Index::default(),
            number: 0,
        }
    }

    /// Sends a batch of events with that number; returns the reset that it caused.
    fn send_as(&mut self, number: u64, events: Value) -> Option<ResetReason> {
        let mut payload = Vec::new();
        pack(&Value::Array(vec![number.into(), events, Value::Null]), &mut payload);
        let parts: [&[u8]; 3] = [b"", &number.to_be_bytes(), &payload];
        let taken = self.feed.message(&parts, &self.counters, &mut self.ops);
        self.index.take(&mut self.ops);
        self.number = number + 1;
        taken.reset
    }

    fn send(&mut self, events: Value) -> Option<ResetReason> {
        self.send_as(self.number, events)
    }

    /// Blocks of two tokens that are claimed for a prompt.
    fn claimed(&self, prompt: &str) -> usize {
        self.claimed_under(prompt, &RootName { block_size_tokens: 2, ..RootName::default() })
    }

    fn claimed_under(&self, prompt: &str, name: &RootName<'_>) -> usize {
        let name = RootName { model: "m", ..*name };
        let mut key = BlockKey::root(KeySeed(7), &name);
        let size = usize::try_from(name.block_size_tokens).unwrap();
        let held = |block: &&[u8]| {
            key = key.child(KeySeed(7), block);
            self.index.held.contains_key(&key.to_word())
        };
        prompt.as_bytes().chunks(size).take_while(held).count()
    }
}

/// Blocks of two tokens: `first` is the id of the first block, and the text is `a`, `b`, `c` and so
/// on from token `from`.
fn stored(first: u64, count: u64, parent: Option<u64>, from: u64) -> Value {
    json!({ "type": "BlockStored", "block_hashes": (first..first + count).collect::<Vec<_>>(),
        "parent_block_hash": parent, "block_size": 2, "lora_id": null, "medium": "GPU",
        "token_ids": (from..from + 2 * count).collect::<Vec<_>>() })
}

fn removed(ids: &[u64]) -> Value {
    json!({ "type": "BlockRemoved", "block_hashes": ids, "medium": "GPU" })
}

fn with(mut event: Value, key: &str, value: Value) -> Value {
    event.as_object_mut().unwrap().insert(key.to_owned(), value);
    event
}

/// aibrix#2287, #2385, llm-d-kv-cache#593.
#[test]
fn a_cleared_rank_is_empty_and_late_removals_are_harmless() {
    let mut rig = Rig::new();
    rig.send(json!([stored(10, 3, None, 0)]));
    assert_eq!(rig.claimed("abcdef"), 3);
    rig.send(json!([{ "type": "AllBlocksCleared" }]));
    assert_eq!(rig.claimed("abcdef"), 0);
    assert_eq!(rig.send(json!([removed(&[10, 11, 12])])), None);
    rig.send(json!([stored(20, 1, None, 0)]));
    assert_eq!(rig.claimed("abcdef"), 1);
}

/// aibrix#2287: an engine that emptied its cache by an order reports it only with its next step.
#[test]
fn an_order_empties_the_rank_before_the_engines_event() {
    let mut rig = Rig::new();
    rig.send(json!([stored(10, 3, None, 0)]));
    rig.feed.empty(&rig.counters, &mut rig.ops);
    rig.index.take(&mut rig.ops);
    assert_eq!((rig.claimed("abcdef"), rig.feed.block_count()), (0, 0));
    assert_eq!(rig.send(json!([{ "type": "AllBlocksCleared" }])), None, "the stream goes on");
    rig.send(json!([stored(10, 2, None, 0)]));
    assert_eq!(rig.claimed("abcdef"), 2);
}

/// vllm#57296 proposes `TierBlocksCleared`.
#[test]
fn an_unknown_event_that_clears_is_taken_as_a_clearing_of_the_rank() {
    for event in [
        json!({ "type": "TierBlocksCleared", "medium": "CPU" }),
        json!(["TierBlocksCleared", "CPU"]),
        json!({ "type": "GroupCleared", "group_idx": 1 }),
    ] {
        let mut rig = Rig::new();
        rig.send(json!([stored(10, 3, None, 0), event]));
        assert_eq!(rig.claimed("abcdef"), 0, "{event}");
    }
    let mut rig = Rig::new();
    rig.send(json!([stored(10, 3, None, 0), { "type": "BlockPinned", "block_hashes": [10] }]));
    assert_eq!(rig.claimed("abcdef"), 3, "other unknown events change nothing");
}

/// vLLM 0.9 to 0.13 names an adapter by a number alone.
#[test]
fn an_adapter_with_a_number_alone_is_not_its_base_model() {
    let of_adapter = |event: Value| with(event, "lora_id", json!(7));
    let mut rig = Rig::new();
    rig.send(json!([of_adapter(stored(10, 3, None, 0))]));
    assert_eq!(rig.claimed("abcdef"), 0);
    let positional = json!(["BlockStored", [30, 31], null, [0, 1, 2, 3], 2, 7]);
    rig.send(json!([positional]));
    assert_eq!(rig.claimed("abcdef"), 0);
    // The base model's own blocks count beside them, and removals of the adapter's do no harm.
    rig.send(json!([stored(20, 2, None, 0), removed(&[10, 11, 12])]));
    assert_eq!(rig.claimed("abcdef"), 2);
    // Later versions have the name too.
    let named = with(of_adapter(stored(40, 1, None, 0)), "lora_name", json!("l"));
    rig.send(json!([named]));
    let lora = RootName { block_size_tokens: 2, lora: "l", ..RootName::default() };
    assert_eq!(rig.claimed_under("abcdef", &lora), 1);
    // Numbers that stand for no adapter.
    let mut rig = Rig::new();
    rig.send(json!([with(stored(10, 1, None, 0), "lora_id", json!(0))]));
    assert_eq!(rig.claimed("abcdef"), 1);
}

/// llm-d-router#2853: the engine restarts in place and counts from 0.
#[test]
fn a_restart_is_forgotten_and_learnt_again() {
    let mut rig = Rig::new();
    rig.send_as(5, json!([stored(10, 3, None, 0)]));
    assert_eq!(rig.send_as(0, json!([stored(10, 1, None, 0)])), Some(ResetReason::Restart));
    assert_eq!(rig.claimed("abcdef"), 1);
}

/// llm-d-router#1737, and a publisher whose queue was full.
#[test]
fn after_a_gap_nothing_is_believed_that_was_stored_before() {
    let mut rig = Rig::new();
    rig.send(json!([stored(10, 3, None, 0)]));
    // Batch 1 removed block 11, and was lost.
    assert_eq!(rig.send_as(2, json!([stored(13, 1, Some(12), 6)])), Some(ResetReason::Gap));
    assert_eq!(rig.claimed("abcdefgh"), 0, "nothing from the middle of a chain");
}

/// A router that joins late, before an engine without a replay.
#[test]
fn a_late_joiner_claims_nothing_from_the_middle_of_a_chain() {
    let mut rig = Rig::new();
    rig.send_as(7, json!([stored(13, 1, Some(12), 6)]));
    assert_eq!((rig.claimed("abcdefgh"), rig.claimed("gh")), (0, 0));
    rig.send(json!([stored(10, 3, None, 0)]));
    assert_eq!(rig.claimed("abcdefgh"), 4, "whole with its beginning");
}

/// A publisher at its high-water mark drops two of three batches: each removal is lost.
#[test]
fn dropped_batches_leave_no_removed_block() {
    let mut rig = Rig::new();
    for step in 0..20 {
        let reset = rig.send_as(3 * step, json!([stored(10 + step, 1, None, 2 * step)]));
        assert_eq!(reset, (step > 0).then_some(ResetReason::Gap));
        let held = ["ab", "cd", "ef", "gh"].map(|prompt| rig.claimed(prompt)).iter().sum::<usize>();
        assert!(held <= 1, "only the block of the last batch, not {held}");
    }
}

/// llm-d-router#1887: a replay overlaps the live stream.
#[test]
fn a_batch_that_comes_twice_counts_once() {
    let mut rig = Rig::new();
    rig.feed.expect_repeats();
    rig.send_as(0, json!([stored(10, 2, None, 0)]));
    rig.send_as(1, json!([removed(&[11])]));
    assert_eq!(rig.send_as(0, json!([stored(10, 2, None, 0)])), None);
    assert_eq!(rig.send_as(1, json!([removed(&[11])])), None);
    assert_eq!(rig.claimed("abcdef"), 1, "one removal is enough, and nothing comes back");
}

/// dynamo#4394: blocks that are their own parents, cycles, and a hash twice.
#[test]
fn chains_that_cannot_be_are_no_panic() {
    let mut rig = Rig::new();
    rig.send(json!([stored(10, 1, Some(10), 0), stored(11, 1, Some(12), 0)]));
    rig.send(json!([stored(12, 1, Some(11), 2), removed(&[12, 12, 11, 10])]));
    let twice = json!({ "type": "BlockStored", "block_hashes": [20, 20], "block_size": 2,
        "parent_block_hash": null, "medium": "GPU", "token_ids": [0, 1, 2, 3] });
    rig.send(json!([twice]));
    assert!(rig.claimed("abcdef") <= 2);
    rig.send(json!([{ "type": "AllBlocksCleared" }]));
    assert_eq!(rig.claimed("abcdef"), 0);
}

/// vllm#58119: the parent of a block is never reported.
#[test]
fn a_block_without_a_known_parent_is_not_claimed() {
    let mut rig = Rig::new();
    rig.send(json!([stored(11, 2, Some(99), 0)]));
    assert_eq!(rig.claimed("abcd"), 0);
    rig.send(json!([stored(20, 1, None, 0)]));
    assert_eq!(rig.claimed("abcd"), 1);
}

/// vllm-ascend#12012, #15428: a block is reported behind the wrong parent.
#[test]
fn a_wrong_parent_does_not_lengthen_the_true_prefix() {
    let mut rig = Rig::new();
    rig.send(json!([stored(10, 2, None, 0), stored(30, 1, None, 8)]));
    // The block with tokens e and f belongs behind 11, and is reported behind 30.
    rig.send(json!([stored(12, 1, Some(30), 4)]));
    assert_eq!((rig.claimed("abcdef"), rig.claimed("ijef")), (2, 2));
}

/// vllm#53749: blocks of 2,096 tokens; and blocks of 2 and 4 tokens side by side.
#[test]
fn each_block_size_has_a_root_of_its_own() {
    let mut rig = Rig::new();
    rig.send(json!([stored(10, 2, None, 0)]));
    let wide = json!({ "type": "BlockStored", "block_hashes": [20], "parent_block_hash": null,
        "block_size": 4, "medium": "GPU", "token_ids": [0, 1, 2, 3] });
    rig.send(json!([wide]));
    let root = RootName { block_size_tokens: 4, ..RootName::default() };
    assert_eq!((rig.claimed("abcd"), rig.claimed_under("abcd", &root)), (2, 1));
    assert_eq!(rig.claimed_under("abc", &root), 0, "part of a block is no block");
}

/// sglang#38486, #32537: removals from the host without a store, and demotion.
#[test]
fn a_tier_loses_only_its_own_copy() {
    let on_host = |event: Value| with(event, "medium", json!("CPU_PINNED"));
    let mut rig = Rig::new();
    rig.send(json!([stored(10, 2, None, 0), on_host(removed(&[10, 11]))]));
    assert_eq!(rig.claimed("abcd"), 2);
    rig.send(json!([on_host(stored(10, 2, None, 0)), removed(&[10, 11])]));
    assert_eq!(rig.claimed("abcd"), 0, "demoted to the host");
}

/// ROCm/ATOM#2203: messages with a wrong number of frames, and a short number.
#[test]
fn messages_of_a_wrong_form_are_refused() {
    let mut rig = Rig::new();
    rig.send(json!([stored(10, 1, None, 0)]));
    let number = 1_u64.to_be_bytes();
    let wrong: [&[&[u8]]; 4] =
        [&[b""], &[b"", &number], &[b"", &number, b"", b""], &[b"", &number[1..], b""]];
    for parts in wrong {
        let taken = rig.feed.message(parts, &rig.counters, &mut rig.ops);
        assert_eq!(taken.reset, None);
    }
    assert_eq!(rig.claimed("ab"), 1);
}
