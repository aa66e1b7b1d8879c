//! Any bytes as the payload of a KV-event message. Must hold: decoding allocates no more than the
//! payload can hold and does not depend on what was decoded before; a cut payload gives the same
//! events up to the cut; what a rank stores in the index it takes out again, each key once.

use forebay_base::ShardIndex;
use forebay_index::{BlockKey, KeySeed, KvOp};
use forebay_kv_decode::{Decoder, KvEvent};
use forebay_kv_events::{
    BlockText, FeedCounters, LowerTiers, NamedImages, Naming, RankFeed, SliceOps, Tier, Tree,
};
use std::collections::HashSet;
use std::time::Duration;

const ENTRIES_MAX: usize = 64;
const SLICES: usize = 3;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let mut decoder = Decoder::new();
    let (whole, sound) = decode(&mut decoder, data);
    assert_eq!(decode(&mut decoder, data), (whole.clone(), sound), "a second time");
    let cut = data.len() / 2;
    let (part, _) = decode(&mut Decoder::new(), &data[..cut]);
    assert!(part.len() <= whole.len());
    assert_eq!(part[..], whole[..part.len()], "cut at {cut}");
    follow(data);
}

/// The events in words, and whether the payload was sound as a whole.
fn decode(decoder: &mut Decoder, payload: &[u8]) -> (Vec<String>, bool) {
    let mut events = Vec::new();
    let decoded = decoder.decode(payload, |event| {
        match &event {
            KvEvent::Stored(stored) => {
                assert!(stored.hashes.len() + stored.token_ids.len() <= payload.len());
            }
            KvEvent::Removed(removed) => assert!(removed.hashes.len() <= payload.len()),
            _ => {}
        }
        events.push(in_words(&event));
    });
    (events, decoded.is_ok())
}

/// What it says, wherever in the payload it says so.
fn in_words(event: &KvEvent<'_>) -> String {
    let KvEvent::Stored(mut stored) = *event else { return format!("{event:?}") };
    let mut images = std::mem::take(&mut stored.extra_keys.images);
    let images: Vec<Vec<(&str, i32)>> =
        stored.hashes.iter().map(|_| images.next_block().collect()).collect();
    format!("{stored:?} with {images:?}")
}

/// Three messages with the same payload, then the end of the connection.
fn follow(payload: &[u8]) {
    let naming = Naming {
        seed: KeySeed(1),
        model: "m".into(),
        text: Some(Letters),
        slice_of,
        shard_count: SLICES,
    };
    let mut feed = RankFeed::new(naming, ENTRIES_MAX);
    feed.set_lower_tiers(
        LowerTiers { host: true, disk: true, ttl: Duration::from_secs(1) },
        payload.len().is_multiple_of(2),
    );
    let counters = FeedCounters::new();
    let mut ops = SliceOps::new(SLICES);
    let mut held = HashSet::new();
    for number in 0..3_u64 {
        feed.message(&[b"", &number.to_be_bytes(), payload], &counters, &mut ops);
        apply(&mut ops, &mut held);
        assert!(held.len() <= 5 * feed.block_count() && feed.block_count() <= ENTRIES_MAX);
        assert_eq!(counters.block_count(), feed.block_count());
    }
    feed.disconnected(&counters, &mut ops);
    apply(&mut ops, &mut held);
    assert!(held.is_empty() && counters.block_count() == 0 && counters.orphan_count() == 0);
    assert!(Tier::ALL.iter().all(|tier| counters.tier_block_count(*tier) == 0));
}

fn apply(ops: &mut SliceOps, held: &mut HashSet<(Tree, ShardIndex, u64)>) {
    for (tree, slice, ops) in ops.trees_mut() {
        let is_window = matches!(tree, Tree::Window(_));
        for op in ops.drain(..) {
            match op {
                KvOp::Store { key, block_bytes, .. } => {
                    assert!(block_bytes > 0 && !is_window);
                    assert!(held.insert((tree, slice, key.to_word())), "stored twice");
                }
                KvOp::Hold { key } => {
                    assert!(is_window, "held without a path");
                    held.insert((tree, slice, key.to_word()));
                }
                KvOp::Remove { key } => {
                    let was_there = held.remove(&(tree, slice, key.to_word()));
                    assert!(was_there || is_window, "removed without a store");
                }
            }
        }
    }
    let device = Tree::Tier(Tier::Device);
    let on_device = |slice: ShardIndex, key: u64| held.contains(&(device, slice, key));
    for (tree, slice, key) in held.iter() {
        let is_window = matches!(tree, Tree::Window(_));
        assert!(!is_window || on_device(*slice, *key), "a window keeps a block that is gone");
    }
}

/// Few different texts, so that different tokens share keys.
struct Letters;

impl BlockText for Letters {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        out.extend(token_ids.iter().map(|token| b'a' + u8::from(token % 2 == 0)));
        token_ids.iter().all(|token| token % 251 != 250)
    }

    fn has_media(&self, token_ids: &[u32]) -> bool {
        token_ids.iter().any(|token| token % 127 == 126)
    }

    /// Each block that an image goes on in has no text.
    fn decode_images(
        &self,
        _token_ids: &[u32],
        images: NamedImages<'_, '_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let begun = images.filter(|(_, begins)| *begins >= 0);
        begun.for_each(|(name, _)| out.extend_from_slice(name.as_bytes()));
        true
    }
}

fn slice_of(first_block: BlockKey, shard_count: usize) -> ShardIndex {
    let count = u64::try_from(shard_count).unwrap_or(1).max(1);
    ShardIndex(u16::try_from(first_block.to_word() % count).unwrap_or(0))
}
