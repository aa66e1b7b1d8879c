//! [`RankBlocks`](super::RankBlocks) against a model that has no tricks: every hash with its reference count and
//! its whole text.

use super::super::held::{Left, Restoring};
use super::*;
use crate::snapshot::Block;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Token n is the letter n mod 26, so that different tokens share bytes; tokens from 1000 are unknown.
struct Letters;

impl BlockText for Letters {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        out.extend(token_ids.iter().map(|token| b'a' + u8::try_from(token % 26).unwrap()));
        token_ids.iter().all(|token| *token < 1_000)
    }
}

const SEED: KeySeed = KeySeed(7);
const SHARDS: usize = 3;

fn slice_of(first_block: BlockKey, shard_count: usize) -> ShardIndex {
    let shard = first_block.to_word() % u64::try_from(shard_count).unwrap();
    ShardIndex(u16::try_from(shard).unwrap())
}

fn blocks(entries_max: usize) -> RankBlocks<Letters> {
    let naming = Naming {
        seed: SEED,
        model: "m".into(),
        text: Some(Letters),
        slice_of,
        shard_count: SHARDS,
    };
    RankBlocks::new(naming, entries_max)
}

fn store<'a>(parent: Option<u64>, hashes: &'a [u64], token_ids: &'a [u32]) -> Stored<'a> {
    Stored {
        hashes,
        parent,
        token_ids,
        block_size_tokens: 2,
        medium: Medium::Device,
        lora_name: "",
        cache_salt: "",
        opaque_from: None,
        group: None,
        whole_prefix: true,
        remote: false,
    }
}

fn remove(hashes: &[u64]) -> Removed<'_> {
    Removed { hashes, medium: Medium::Device, group: None, remote: false }
}

/// What the index would hold after the operations, checking that each slice sees each key consistently.
#[derive(Default)]
struct Index {
    held: BTreeMap<u64, (ShardIndex, u64, u16)>,
}

impl Index {
    fn take(&mut self, ops: &mut SliceOps) {
        for (slice, ops) in ops.slices_mut() {
            for op in ops.drain(..) {
                match op {
                    KvOp::Store { parent, key, block_bytes } => {
                        let entry = (slice, parent.to_word(), block_bytes);
                        assert_eq!(self.held.insert(key.to_word(), entry), None, "stored twice");
                    }
                    KvOp::Remove { key } => {
                        let (owner, ..) =
                            self.held.remove(&key.to_word()).expect("removed unknown");
                        assert_eq!(owner, slice, "removed from another slice");
                    }
                }
            }
        }
    }

    fn keys(&self) -> BTreeSet<u64> {
        self.held.keys().copied().collect()
    }
}

fn key_of(text: &str) -> u64 {
    let name = RootName { model: "m", block_size_tokens: 2, ..RootName::default() };
    let mut key = BlockKey::root(SEED, &name);
    for block in text.as_bytes().chunks(2) {
        key = key.child(SEED, block);
    }
    key.to_word()
}

fn keys_of(texts: &[&str]) -> BTreeSet<u64> {
    texts.iter().map(|text| key_of(text)).collect()
}

#[test]
fn a_chain_becomes_keys_and_goes_again() {
    let (mut blocks, mut ops, mut index) = (blocks(100), SliceOps::new(SHARDS), Index::default());
    assert_eq!(blocks.stored(&store(None, &[10, 11], &[0, 1, 2, 3]), &mut ops), Outcome::Applied);
    assert_eq!(blocks.stored(&store(Some(11), &[12], &[4, 5]), &mut ops), Outcome::Applied);
    index.take(&mut ops);
    assert_eq!(index.keys(), keys_of(&["ab", "abcd", "abcdef"]));
    let slices: HashSet<ShardIndex> = index.held.values().map(|(slice, ..)| *slice).collect();
    assert_eq!(slices.len(), 1, "descendants stay in the slice of the first block");
    assert_eq!(index.held[&key_of("abcd")].1, key_of("ab"));

    assert_eq!(blocks.removed(&remove(&[12, 99]), &mut ops), Outcome::Applied);
    index.take(&mut ops);
    assert_eq!(index.keys(), keys_of(&["ab", "abcd"]));
    blocks.clear(&mut ops);
    index.take(&mut ops);
    assert!(index.held.is_empty() && blocks.is_empty());
}

#[test]
fn repeated_stores_need_as_many_removals() {
    let (mut blocks, mut ops, mut index) = (blocks(100), SliceOps::new(SHARDS), Index::default());
    for _ in 0..3 {
        assert_eq!(blocks.stored(&store(None, &[10], &[0, 1]), &mut ops), Outcome::Applied);
    }
    for left in [1, 1, 0] {
        blocks.removed(&remove(&[10]), &mut ops);
        index.take(&mut ops);
        assert_eq!(index.held.len(), left);
    }
}

#[test]
fn two_tokenizations_of_one_text_are_one_key() {
    let (mut blocks, mut ops, mut index) = (blocks(100), SliceOps::new(SHARDS), Index::default());
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
        (Stored { medium: Medium::Host, ..plain }, Outcome::Elsewhere),
        (Stored { medium: Medium::Unknown, ..plain }, Outcome::Elsewhere),
        (Stored { remote: true, ..plain }, Outcome::Elsewhere),
        (Stored { whole_prefix: false, ..plain }, Outcome::OtherGroup),
        (Stored { parent: Some(5), ..plain }, Outcome::ParentUnknown),
        (Stored { block_size_tokens: 3, ..plain }, Outcome::Unpaired),
        (Stored { block_size_tokens: 0, token_ids: &[], ..plain }, Outcome::Unpaired),
        (Stored { block_size_tokens: 32, hashes: &[], ..plain }, Outcome::Unpaired),
        (Stored { opaque_from: Some(0), ..plain }, Outcome::NotText),
        (Stored { token_ids: &[0, 1_000], ..plain }, Outcome::NoText),
    ] {
        assert_eq!(blocks.stored(&event, &mut ops), outcome, "{event:?}");
        assert!(ops.is_empty());
    }
    blocks.stored(&plain, &mut ops);
    let mut index = Index::default();
    index.take(&mut ops);
    assert_eq!(
        blocks.removed(&Removed { medium: Medium::Host, ..remove(&[10]) }, &mut ops),
        Outcome::Elsewhere
    );
    assert_eq!(
        blocks.removed(&Removed { group: Some(3), ..remove(&[10]) }, &mut ops),
        Outcome::Applied
    );
    assert!(ops.is_empty());
}

#[test]
fn loops_and_unchained_hashes_are_conflicts() {
    let (mut blocks, mut ops) = (blocks(100), SliceOps::new(SHARDS));
    assert_eq!(blocks.stored(&store(None, &[10, 10], &[0, 1, 2, 3]), &mut ops), Outcome::Conflict);
    assert_eq!(blocks.stored(&store(Some(10), &[10], &[4, 5]), &mut ops), Outcome::Conflict);
    assert_eq!(blocks.len(), 1);
}

#[test]
fn lora_and_salt_have_roots_of_their_own() {
    let (mut blocks, mut ops, mut index) = (blocks(100), SliceOps::new(SHARDS), Index::default());
    let plain = store(None, &[10], &[0, 1]);
    blocks.stored(&plain, &mut ops);
    blocks.stored(&Stored { hashes: &[11], lora_name: "l", ..plain }, &mut ops);
    blocks.stored(&Stored { hashes: &[12], cache_salt: "l", ..plain }, &mut ops);
    index.take(&mut ops);
    assert_eq!(index.held.len(), 3);
}

#[test]
fn the_limit_refuses_new_blocks_and_lets_old_ones_go() {
    let (mut blocks, mut ops) = (blocks(2), SliceOps::new(SHARDS));
    assert_eq!(
        blocks.stored(&store(None, &[1, 2, 3], &[0, 1, 2, 3, 4, 5]), &mut ops),
        Outcome::Full
    );
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks.stored(&store(None, &[1], &[0, 1]), &mut ops), Outcome::Applied);
    blocks.removed(&remove(&[2]), &mut ops);
    assert_eq!(blocks.len(), 1);
}

/// The model: per (hash, group) the text and the count of stores.
#[derive(Default)]
struct Model {
    held: BTreeMap<(u64, u32), (String, u32)>,
}

impl Model {
    fn keys(&self) -> BTreeSet<u64> {
        self.held.values().map(|(text, _)| key_of(text)).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Store {
        path: Vec<u32>,
        from: usize,
        group: u32,
    },
    Remove {
        path: Vec<u32>,
        group: u32,
    },
    Clear,
    /// The router is stopped and started again.
    Restart,
}

/// An engine's hash: of the whole path of tokens.
fn hash_of(path: &[u32]) -> u64 {
    path.iter().fold(1, |hash, token| hash * 1_000 + u64::from(*token) + 1)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Tokens 0 and 26 have the same bytes; paths are 1 to 3 blocks of two equal tokens.
    let path = || proptest::collection::vec(prop_oneof![Just(0_u32), Just(26), Just(1)], 1..=3);
    let step = prop_oneof![
        6 => (path(), 0_usize..3, 0_u32..2).prop_map(|(path, from, group)| Step::Store { path, from, group }),
        5 => (path(), 0_u32..2).prop_map(|(path, group)| Step::Remove { path, group }),
        1 => Just(Step::Clear),
        2 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 0..60)
}

/// What a new process makes of what the old one held.
fn restarted(
    before: &RankBlocks<Letters>,
    entries_max: usize,
    shard_count: usize,
) -> (RankBlocks<Letters>, SliceOps, Left) {
    let mut restoring = Restoring::new(slice_of, shard_count, SHARDS, entries_max);
    let each = before.held().each(|block, names| {
        restoring.add(block, names);
        Ok::<(), ()>(())
    });
    assert_eq!(each, Ok(()));
    let (held, ops, left) = restoring.finish();
    let mut after = blocks(entries_max);
    after.naming.shard_count = shard_count;
    after.restore(held);
    (after, ops, left)
}

#[test]
fn restored_blocks_are_placed_by_their_first_block() {
    let (mut blocks, mut ops) = (blocks(100), SliceOps::new(SHARDS));
    blocks.stored(&store(None, &[10, 11, 12], &[0, 1, 2, 3, 4, 5]), &mut ops);
    blocks.stored(&store(None, &[20, 21, 22, 23], &[6, 7, 8, 9, 10, 11, 12, 13]), &mut ops);
    // What hangs on a block that is gone has no first block any more.
    blocks.removed(&remove(&[20]), &mut ops);
    for shard_count in [1, 2, 5, 64] {
        let (mut after, mut ops, left) = restarted(&blocks, 100, shard_count);
        assert_eq!((left.orphans, after.len()), (3, 3), "{shard_count}");
        let mut index = Index::default();
        index.take(&mut ops);
        assert_eq!(index.keys(), keys_of(&["ab", "abcd", "abcdef"]));
        let first = BlockKey::from_word(key_of("ab")).unwrap();
        assert!(index.held.values().all(|(slice, ..)| *slice == slice_of(first, shard_count)));
        after.stored(&store(Some(12), &[13], &[20, 21]), &mut ops);
        after.clear(&mut ops);
        index.take(&mut ops);
        assert!(index.held.is_empty());
    }
    let (after, _, left) = restarted(&blocks, 100, SHARDS);
    assert_eq!((left, after.len()), (Left::default(), 6), "the same slices: nothing is lost");
}

#[test]
fn restoring_keeps_to_the_limit_and_refuses_what_cannot_be() {
    let (mut blocks, mut ops) = (blocks(100), SliceOps::new(SHARDS));
    let hashes: Vec<u64> = (10..20).collect();
    let tokens: Vec<u32> = (0..20).collect();
    blocks.stored(&store(None, &hashes, &tokens), &mut ops);
    let (after, mut ops, left) = restarted(&blocks, 4, SHARDS);
    assert_eq!((after.len(), left.over_limit), (4, 6));
    let mut index = Index::default();
    index.take(&mut ops);
    assert_eq!(index.keys(), keys_of(&["ab", "abcd", "abcdef", "abcdefgh"]), "from the root on");

    let mut restoring = Restoring::new(slice_of, SHARDS, SHARDS, 100);
    let mut all = Vec::new();
    let each = blocks.held().each(|block, names| {
        all.push((*block, names.to_vec()));
        Ok::<(), ()>(())
    });
    assert_eq!((each, all.len()), (Ok(()), 10));
    let (second, names) = &all[1];
    restoring.add(second, &[]);
    restoring.add(&Block { slice: ShardIndex(9), is_first: false, ..*second }, names);
    restoring.add(second, names);
    restoring.add(second, names);
    restoring.add(&Block { key: all[2].0.key, ..*second }, names);
    let (held, _, left) = restoring.finish();
    assert_eq!((held.block_count(), left.odd), (1, 4));
}

proptest! {
    #[test]
    fn agrees_with_the_model(steps in steps()) {
        let (mut blocks, mut ops, mut index) = (blocks(1_000), SliceOps::new(SHARDS), Index::default());
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Store { path, from, group } => {
                    let from = from.min(path.len() - 1);
                    let hashes: Vec<u64> = (from..path.len()).map(|end| hash_of(&path[..=end])).collect();
                    let tokens: Vec<u32> = path[from..].iter().flat_map(|token| [*token; 2]).collect();
                    let parent = (from > 0).then(|| hash_of(&path[..from]));
                    let event = Stored { group: Some(group), ..store(parent, &hashes, &tokens) };
                    let known = parent.is_none_or(|parent| model.held.contains_key(&(parent, group)));
                    let outcome = blocks.stored(&event, &mut ops);
                    prop_assert_eq!(outcome == Outcome::Applied, known);
                    if known {
                        for end in from..path.len() {
                            let text: String = path[..=end].iter()
                                .flat_map(|token| [char::from(b'a' + u8::try_from(token % 26).unwrap()); 2])
                                .collect();
                            let held = model.held.entry((hash_of(&path[..=end]), group)).or_insert((text, 0));
                            held.1 += 1;
                        }
                    }
                }
                Step::Remove { path, group } => {
                    let hash = hash_of(&path);
                    let hashes = [hash];
                    blocks.removed(&Removed { group: Some(group), ..remove(&hashes) }, &mut ops);
                    if let Some(held) = model.held.get_mut(&(hash, group)) {
                        held.1 -= 1;
                        if held.1 == 0 {
                            model.held.remove(&(hash, group));
                        }
                    }
                }
                Step::Clear => {
                    blocks.clear(&mut ops);
                    model.held.clear();
                }
                Step::Restart => {
                    let (again, mut restored, left) = restarted(&blocks, 1_000, SHARDS);
                    prop_assert_eq!(left, Left::default());
                    let mut new_index = Index::default();
                    new_index.take(&mut restored);
                    prop_assert_eq!(&new_index.held, &index.held);
                    (blocks, index) = (again, new_index);
                }
            }
            index.take(&mut ops);
            prop_assert_eq!(index.keys(), model.keys());
            prop_assert_eq!(blocks.len(), model.held.len());
        }
    }
}
