//! [`RankBlocks`](super::RankBlocks) case by case.

use super::*;
use crate::paths::tier::Tree;
use forebay_index::{KeySeed, KvOp, WINDOWS_MAX};
use forebay_kv_decode::{ExtraKeys, Medium};
use forebay_snapshot::Link;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

/// Token n is the letter n mod 26, so that different tokens share bytes; tokens from 1000 are
/// unknown.
pub(crate) struct Letters;

impl BlockText for Letters {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        out.extend(token_ids.iter().map(|token| b'a' + u8::try_from(token % 26).unwrap()));
        token_ids.iter().all(|token| *token < 1_000)
    }

    fn has_media(&self, token_ids: &[u32]) -> bool {
        token_ids.contains(&IMAGE)
    }
}

/// A token that stands for any image.
const IMAGE: u32 = 999;

pub(super) const SEED: KeySeed = KeySeed(7);
pub(crate) const SHARDS: usize = 3;

pub(super) fn slice_of(first_block: BlockKey, shard_count: usize) -> ShardIndex {
    let shard = first_block.to_word() % u64::try_from(shard_count).unwrap();
    ShardIndex(u16::try_from(shard).unwrap())
}

pub(crate) fn naming() -> Naming<Letters> {
    Naming { seed: SEED, model: "m".into(), text: Some(Letters), slice_of, shard_count: SHARDS }
}

pub(super) fn blocks(entries_max: usize) -> RankBlocks<Letters> {
    RankBlocks::new(naming(), entries_max)
}

pub(crate) fn store<'a>(
    parent: Option<u64>,
    hashes: &'a [u64],
    token_ids: &'a [u32],
) -> BlockStored<'a> {
    BlockStored {
        hashes,
        parent,
        token_ids,
        block_size_tokens: 2,
        medium: Medium::Device,
        extra_keys: ExtraKeys::default(),
        group: None,
        attention: Attention::Whole,
    }
}

/// Keys of an event with input that is not text from that block on.
fn opaque(from: usize) -> ExtraKeys<'static> {
    ExtraKeys { opaque_from: Some(from), ..ExtraKeys::default() }
}

pub(super) fn remove(hashes: &[u64]) -> BlockRemoved<'_> {
    BlockRemoved { hashes, medium: Medium::Device, group: None }
}

/// What the index would hold after the operations, checking that each slice sees each key
/// consistently.
#[derive(Default)]
pub(crate) struct Index {
    pub(crate) held: BTreeMap<u64, (ShardIndex, u64, u16)>,
    /// Trees of the lower tiers.
    pub(super) lower: [BTreeMap<u64, (ShardIndex, u64, u16)>; 2],
    /// What windows hold.
    pub(super) windows: [BTreeSet<u64>; WINDOWS_MAX],
    /// Blocks of the second size.
    pub(super) odd: BTreeSet<u64>,
    /// Every block that was ever stored, by key.
    pub(super) seen: BTreeMap<u64, Link>,
}

impl Index {
    pub(crate) fn take(&mut self, ops: &mut SliceOps) {
        for (tree, slice, ops) in ops.trees_mut() {
            let held = match tree {
                Tree::Tier(Tier::Device) => &mut self.held,
                Tree::Tier(Tier::Host) => &mut self.lower[0],
                Tree::Tier(Tier::Disk) => &mut self.lower[1],
                Tree::Window(place) => {
                    self.take_window(place, ops);
                    continue;
                }
                Tree::Odd => {
                    self.take_odd(ops);
                    continue;
                }
            };
            for op in ops.drain(..) {
                match op {
                    KvOp::Store { parent, key, block_bytes } => {
                        let entry = (slice, parent.to_word(), block_bytes);
                        self.seen.insert(key.to_word(), Link { parent, key, block_bytes, slice });
                        assert_eq!(held.insert(key.to_word(), entry), None, "stored twice");
                    }
                    KvOp::Hold { .. } => panic!("no tree of a tier"),
                    KvOp::Remove { key } => {
                        let (owner, ..) = held.remove(&key.to_word()).expect("removed unknown");
                        assert_eq!(owner, slice, "removed from another slice");
                    }
                }
            }
        }
    }

    /// As a slice does it: what is not there is not held.
    fn take_odd(&mut self, ops: &mut VecDeque<KvOp>) {
        for op in ops.drain(..) {
            match op {
                KvOp::Hold { key } if self.held.contains_key(&key.to_word()) => {
                    self.odd.insert(key.to_word());
                }
                KvOp::Hold { .. } => {}
                KvOp::Remove { key } => {
                    self.odd.remove(&key.to_word());
                }
                KvOp::Store { .. } => panic!("odd blocks have no path"),
            }
        }
    }

    fn take_window(&mut self, place: usize, ops: &mut VecDeque<KvOp>) {
        for op in ops.drain(..) {
            match op {
                KvOp::Store { .. } => panic!("windows have no paths"),
                KvOp::Hold { key } if self.held.contains_key(&key.to_word()) => {
                    self.windows[place].insert(key.to_word());
                }
                KvOp::Hold { .. } => {}
                KvOp::Remove { key } => {
                    self.windows[place].remove(&key.to_word());
                }
            }
        }
    }

    /// All trees, with where each block is and what it follows.
    pub(super) fn trees(&self) -> [&BTreeMap<u64, (ShardIndex, u64, u16)>; 3] {
        [&self.held, &self.lower[0], &self.lower[1]]
    }

    pub(super) fn keys(&self) -> BTreeSet<u64> {
        self.held.keys().copied().collect()
    }

    /// By tree.
    pub(super) fn all_keys(&self) -> [BTreeSet<u64>; 3] {
        let keys = |tree: &BTreeMap<u64, _>| tree.keys().copied().collect();
        [self.keys(), keys(&self.lower[0]), keys(&self.lower[1])]
    }
}

pub(super) fn key_of(text: &str) -> u64 {
    let name = RootName { model: "m", block_size_tokens: 2, ..RootName::default() };
    let mut key = BlockKey::root(SEED, &name);
    for block in text.as_bytes().chunks(2) {
        key = key.child(SEED, block);
    }
    key.to_word()
}

pub(super) fn keys_of(texts: &[&str]) -> BTreeSet<u64> {
    texts.iter().map(|text| key_of(text)).collect()
}

#[test]
fn a_chain_becomes_keys_and_goes_again() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    assert_eq!(
        blocks.stored(&store(None, &[10, 11], &[0, 1, 2, 3]), &mut ops),
        BatchOutcome::Applied
    );
    assert_eq!(blocks.stored(&store(Some(11), &[12], &[4, 5]), &mut ops), BatchOutcome::Applied);
    index.take(&mut ops);
    assert_eq!(index.keys(), keys_of(&["ab", "abcd", "abcdef"]));
    let slices: HashSet<ShardIndex> = index.held.values().map(|(slice, ..)| *slice).collect();
    assert_eq!(slices.len(), 1, "descendants stay in the slice of the first block");
    assert_eq!(index.held[&key_of("abcd")].1, key_of("ab"));

    assert_eq!(blocks.removed(&remove(&[12, 99]), &mut ops), BatchOutcome::Applied);
    index.take(&mut ops);
    assert_eq!(index.keys(), keys_of(&["ab", "abcd"]));
    blocks.clear(&mut ops);
    index.take(&mut ops);
    assert!(index.held.is_empty() && blocks.is_empty());
}

#[test]
fn repeated_stores_need_as_many_removals() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    for _ in 0..3 {
        assert_eq!(blocks.stored(&store(None, &[10], &[0, 1]), &mut ops), BatchOutcome::Applied);
    }
    for left in [1, 1, 0] {
        blocks.removed(&remove(&[10]), &mut ops);
        index.take(&mut ops);
        assert_eq!(index.held.len(), left);
    }
}

#[test]
fn two_tokenizations_of_one_text_are_one_key() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    blocks.stored(&store(None, &[10], &[0, 1]), &mut ops);
    blocks.stored(&store(None, &[20], &[26, 27]), &mut ops);
    blocks.removed(&remove(&[10]), &mut ops);
    index.take(&mut ops);
    assert_eq!(index.keys(), keys_of(&["ab"]));
    blocks.removed(&remove(&[20]), &mut ops);
    index.take(&mut ops);
    assert!(index.held.is_empty());
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let mut ops = SliceOps::new(SHARDS);
    let mut blocks = blocks(100);
    let plain = store(None, &[10], &[0, 1]);
    for (event, outcome) in [
        (BlockStored { medium: Medium::Host, ..plain }, BatchOutcome::Elsewhere),
        (BlockStored { medium: Medium::Unknown, ..plain }, BatchOutcome::Elsewhere),
        (BlockStored { medium: Medium::Shared, ..plain }, BatchOutcome::Elsewhere),
        (BlockStored { attention: Attention::Other, ..plain }, BatchOutcome::OtherGroup),
        (BlockStored { block_size_tokens: 3, ..plain }, BatchOutcome::Unpaired),
        (BlockStored { block_size_tokens: 0, token_ids: &[], ..plain }, BatchOutcome::Unpaired),
        (BlockStored { block_size_tokens: 32, hashes: &[], ..plain }, BatchOutcome::Unpaired),
        (BlockStored { extra_keys: opaque(0), ..plain }, BatchOutcome::NotText),
        (BlockStored { token_ids: &[0, IMAGE], ..plain }, BatchOutcome::NotText),
        (BlockStored { token_ids: &[0, 1_000], ..plain }, BatchOutcome::NoText),
    ] {
        assert_eq!(blocks.stored(&event, &mut ops), outcome, "{event:?}");
        assert!(ops.is_empty());
    }
    blocks.stored(&plain, &mut ops);
    let mut index = Index::default();
    index.take(&mut ops);
    assert_eq!(
        blocks.removed(&BlockRemoved { medium: Medium::Host, ..remove(&[10]) }, &mut ops),
        BatchOutcome::Elsewhere
    );
    assert_eq!(
        blocks.removed(&BlockRemoved { group: Some(3), ..remove(&[10]) }, &mut ops),
        BatchOutcome::Applied
    );
    assert!(ops.is_empty());
}

#[test]
fn loops_and_unchained_hashes_are_conflicts() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    assert_eq!(
        blocks.stored(&store(None, &[10, 10], &[0, 1, 2, 3]), &mut ops),
        BatchOutcome::Conflict
    );
    assert_eq!(blocks.stored(&store(Some(10), &[10], &[4, 5]), &mut ops), BatchOutcome::Conflict);
    assert_eq!(blocks.len(), 1);
}

#[test]
fn lora_and_salt_have_roots_of_their_own() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    let plain = store(None, &[10], &[0, 1]);
    blocks.stored(&plain, &mut ops);
    let with_lora = ExtraKeys { lora_name: "l", ..ExtraKeys::default() };
    let with_salt = ExtraKeys { cache_salt: "l", ..ExtraKeys::default() };
    blocks.stored(&BlockStored { hashes: &[11], extra_keys: with_lora, ..plain }, &mut ops);
    blocks.stored(&BlockStored { hashes: &[12], extra_keys: with_salt, ..plain }, &mut ops);
    index.take(&mut ops);
    assert_eq!(index.held.len(), 3);
}

#[test]
fn the_limit_refuses_new_blocks_and_lets_old_ones_go() {
    let mut blocks = blocks(2);
    let mut ops = SliceOps::new(SHARDS);
    assert_eq!(
        blocks.stored(&store(None, &[1, 2, 3], &[0, 1, 2, 3, 4, 5]), &mut ops),
        BatchOutcome::Full
    );
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks.stored(&store(None, &[1], &[0, 1]), &mut ops), BatchOutcome::Applied);
    blocks.removed(&remove(&[2]), &mut ops);
    assert_eq!(blocks.len(), 1);
}

#[test]
fn orphans_are_applied_when_their_parent_comes_with_all_that_follows() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    let third = store(Some(11), &[12, 13], &[4, 5, 6, 7]);
    assert_eq!(blocks.stored(&third, &mut ops), BatchOutcome::Orphaned);
    assert_eq!(blocks.stored(&store(Some(13), &[14], &[8, 9]), &mut ops), BatchOutcome::Orphaned);
    assert!(ops.is_empty() && blocks.is_empty());
    assert_eq!(blocks.size().orphans, 3);
    assert!(blocks.size().bytes > 0);
    assert_eq!(blocks.stored(&store(None, &[10], &[0, 1]), &mut ops), BatchOutcome::Applied);
    assert_eq!(blocks.size().orphans, 3, "their parent is another one");
    assert_eq!(blocks.stored(&store(Some(10), &[11], &[2, 3]), &mut ops), BatchOutcome::Applied);
    index.take(&mut ops);
    assert_eq!(
        index.keys(),
        keys_of(&["ab", "abcd", "abcdef", "abcdefgh", "abcdefghij"]),
        "one by one and recursively"
    );
    let gone = blocks.take_orphan_outcomes();
    assert_eq!(gone, OrphanOutcomes { applied: 3, ..OrphanOutcomes::default() });
    blocks.clear(&mut ops);
    index.take(&mut ops);
    assert!(index.keys().is_empty());
}

#[test]
fn orphans_that_the_engine_removes_or_clears_never_come() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    blocks.stored(&store(Some(10), &[11, 12, 13], &[2, 3, 4, 5, 6, 7]), &mut ops);
    blocks.removed(&remove(&[13, 99]), &mut ops);
    assert_eq!(blocks.take_orphan_outcomes().removed, 1);
    blocks.stored(&store(None, &[10], &[0, 1]), &mut ops);
    index.take(&mut ops);
    assert_eq!(index.keys(), keys_of(&["ab", "abcd", "abcdef"]));
    blocks.stored(&store(Some(20), &[21], &[0, 1]), &mut ops);
    blocks.clear(&mut ops);
    assert_eq!(
        blocks.take_orphan_outcomes(),
        OrphanOutcomes { applied: 2, dropped: 1, removed: 0 }
    );
    blocks.stored(&store(None, &[20], &[0, 1]), &mut ops);
    index.take(&mut ops);
    assert_eq!(index.keys(), keys_of(&["ab"]));
}

#[test]
fn the_oldest_orphans_are_dropped_and_counted() {
    use forebay_base::limits::ORPHAN_BLOCKS_MAX;
    let mut blocks = blocks(10_000);
    let mut ops = SliceOps::new(SHARDS);
    let most = u64::try_from(ORPHAN_BLOCKS_MAX).unwrap();
    for number in 0..most + 5 {
        let token = u32::try_from(number).unwrap();
        let text = [token % 26, token / 26 % 26];
        blocks.stored(&store(Some(1), &[number + 2], &text), &mut ops);
    }
    assert_eq!(blocks.size().orphans, ORPHAN_BLOCKS_MAX);
    assert_eq!(blocks.take_orphan_outcomes().dropped, 5);
    blocks.stored(&store(None, &[1], &[0, 1]), &mut ops);
    assert_eq!(blocks.len(), ORPHAN_BLOCKS_MAX + 1);
}

/// An image in the middle: what comes behind it is not stored, in the same event or in the next.
#[test]
fn nothing_behind_an_image_is_ever_stored() {
    let plain = store(None, &[10, 11, 12], &[0, 1, 2, 3, 4, 5]);
    let by_key = BlockStored { extra_keys: opaque(1), ..plain };
    let by_token = BlockStored { token_ids: &[0, 1, IMAGE, 3, 4, 5], ..plain };
    for with_image in [by_key, by_token] {
        let mut blocks = blocks(100);
        let mut ops = SliceOps::new(SHARDS);
        let mut index = Index::default();
        assert_eq!(blocks.stored(&with_image, &mut ops), BatchOutcome::NotText);
        for (parent, hash) in [(12, 13), (13, 14), (11, 15)] {
            let next = [hash];
            let event = store(Some(parent), &next, &[6, 7]);
            assert_eq!(
                blocks.stored(&event, &mut ops),
                BatchOutcome::NotText,
                "does not wait either"
            );
        }
        assert_eq!(blocks.size().orphans, 0);
        index.take(&mut ops);
        assert_eq!(index.keys(), keys_of(&["ab"]));
    }
}

/// Whatever the shape of the events: one long chain, chains behind chains, or one block at a time.
#[test]
fn blocks_of_another_tokenizer_are_a_mismatch_and_those_of_images_are_not() {
    use crate::TextFit;
    let hashes: Vec<u64> = (1..=40).collect();
    let fit = |token_ids: &[u32], chained: bool, opaque_from| {
        let extra_keys = ExtraKeys { opaque_from, ..ExtraKeys::default() };
        let mut blocks = blocks(100);
        let mut ops = SliceOps::new(SHARDS);
        for (index, pair) in token_ids.chunks(2).enumerate().filter(|_| chained) {
            let parent = index.checked_sub(1).map(|before| hashes[before]);
            let event = BlockStored { extra_keys, ..store(parent, &hashes[index..=index], pair) };
            blocks.stored(&event, &mut ops);
        }
        if !chained {
            blocks.stored(&BlockStored { extra_keys, ..store(None, &hashes, token_ids) }, &mut ops);
        }
        blocks.text_fit()
    };
    let foreign = [1_000_u32; 80];
    let own = [1_u32; 80];
    let images: Vec<u32> = [IMAGE; 2].into_iter().chain([1; 78]).collect();
    for chained in [false, true] {
        assert_eq!(fit(&foreign, chained, None), Some(TextFit::Mismatch), "{chained}");
        assert_eq!(fit(&own, chained, None), Some(TextFit::Ok), "{chained}");
        assert_eq!(fit(&images, chained, None), None, "{chained}");
        assert_eq!(fit(&foreign, chained, Some(0)), None, "{chained}");
    }
}
