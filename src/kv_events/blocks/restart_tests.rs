//! [`RankBlocks`](super::RankBlocks) that go through a snapshot.

use super::tests::{Index, Letters, SHARDS, blocks, key_of, keys_of, remove, slice_of, store};
use super::*;
use crate::ranks::rank_copy::BlocksCopy;
use crate::ranks::restore_builder::{OmittedEntries, RestoreBuilder};
use forebay_kv_decode::Medium;
use forebay_snapshot::{Link, Paths};
use std::time::Duration;

const ALL: LowerTiers = LowerTiers { host: true, disk: true, ttl: Duration::ZERO };
const NONE: LowerTiers = LowerTiers { host: false, disk: false, ttl: Duration::ZERO };

/// What a new process makes of what the old one held, with as many slices.
pub(super) fn restarted(
    before: &RankBlocks<Letters>,
    links: Vec<Link>,
    lower_tiers: LowerTiers,
    entries_max: usize,
) -> (RankBlocks<Letters>, SliceOps, OmittedEntries) {
    restarted_with(before, &Paths::new(links), SHARDS, lower_tiers, entries_max)
}

fn restarted_with(
    before: &RankBlocks<Letters>,
    paths: &Paths,
    shard_count: usize,
    lower_tiers: LowerTiers,
    entries_max: usize,
) -> (RankBlocks<Letters>, SliceOps, OmittedEntries) {
    let BlocksCopy { kept, trees, groups, .. } = before.copy();
    let mut restoring = RestoreBuilder::new(paths, shard_count, lower_tiers, trees, entries_max);
    restoring.groups(groups);
    restoring.add_all(kept.entries().collect());
    let (restored, ops, left) = restoring.finish();
    let mut after = blocks(entries_max);
    after.naming.shard_count = shard_count;
    after.set_lower_tiers(lower_tiers);
    after.restore(restored, 2);
    (after, ops, left)
}

fn links(index: &Index) -> Vec<Link> {
    index.seen.values().copied().collect()
}

fn two_chains() -> (RankBlocks<Letters>, Index) {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    blocks.stored(&store(None, &[10, 11, 12], &[0, 1, 2, 3, 4, 5]), &mut ops);
    blocks.stored(&store(None, &[20, 21, 22, 23], &[6, 7, 8, 9, 10, 11, 12, 13]), &mut ops);
    index.take(&mut ops);
    (blocks, index)
}

#[test]
fn restored_blocks_are_placed_by_their_first_block() {
    let (blocks, index) = two_chains();
    for shard_count in [1, 2, 5, 64] {
        let mut paths = Paths::new(links(&index));
        paths.reassign_slices(slice_of, SHARDS, shard_count);
        let (mut after, mut ops, left) = restarted_with(&blocks, &paths, shard_count, NONE, 100);
        assert_eq!((left, after.len()), (OmittedEntries::default(), 7));
        let mut again = Index::default();
        again.take(&mut ops);
        assert_eq!(again.keys(), index.keys());
        for (chain, first) in [(["ab", "abcd", "abcdef"], "ab"), (["gh", "ghij", "ghijkl"], "gh")] {
            let first = BlockKey::from_word(key_of(first)).unwrap();
            let [device, ..] = again.trees();
            let placed = |text: &str| device[&key_of(text)].0;
            assert!(chain.iter().all(|text| placed(text) == slice_of(first, shard_count)));
        }
        after.stored(&store(Some(12), &[13], &[20, 21]), &mut ops);
        after.clear(&mut ops);
        again.take(&mut ops);
        assert!(again.keys().is_empty());
    }
}

#[test]
fn what_is_not_among_the_links_is_left_out() {
    let (blocks, index) = two_chains();
    let mut some = links(&index);
    some.retain(|link| link.key.to_word() != key_of("ghij"));
    let (mut after, mut ops, left) = restarted(&blocks, some.clone(), NONE, 100);
    assert_eq!((left.orphans, after.len()), (1, 6));
    let mut again = Index::default();
    again.take(&mut ops);
    // Nothing leads to the last two until the engine stores what is between.
    let kept = ["ab", "abcd", "abcdef", "gh", "ghijkl", "ghijklmn"];
    assert_eq!(again.keys(), keys_of(&kept));
    after.stored(&store(Some(20), &[21], &[8, 9]), &mut ops);
    again.take(&mut ops);
    assert_eq!(again.trees(), index.trees(), "whole again");
    // With another number of slices the beginning of a path has to be there.
    some.retain(|link| link.key.to_word() != key_of("gh"));
    let ghijkl = BlockKey::from_word(key_of("ghijkl")).unwrap();
    let gh = BlockKey::from_word(key_of("gh")).unwrap();
    assert_ne!(slice_of(ghijkl, SHARDS), slice_of(gh, SHARDS), "else it may pass for a first one");
    let mut paths = Paths::new(some);
    paths.reassign_slices(slice_of, SHARDS, 2);
    let (after, _, left) = restarted_with(&blocks, &paths, 2, NONE, 100);
    assert_eq!((left.orphans, after.len()), (4, 3));
}

#[test]
fn what_came_last_brings_its_links() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    blocks.stored(&store(None, &[10], &[0, 1]), &mut ops);
    blocks.keep_recent();
    blocks.stored(&store(None, &[10, 11, 12], &[0, 1, 2, 3, 4, 5]), &mut ops);
    index.take(&mut ops);
    let link = |text| index.seen[&key_of(text)];
    assert_eq!(blocks.copy().recent, [link("abcd"), link("abcdef")]);
    blocks.clear(&mut ops);
    assert!(blocks.copy().recent.is_empty());
}

#[test]
fn restoring_keeps_to_the_limit_and_tells_parents_first() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let hashes: Vec<u64> = (10..20).collect();
    let tokens: Vec<u32> = (0..20).collect();
    blocks.stored(&store(None, &hashes, &tokens), &mut ops);
    let mut index = Index::default();
    index.take(&mut ops);
    let (after, mut some, left) = restarted(&blocks, links(&index), NONE, 4);
    assert_eq!((after.len(), left.over_limit), (4, 6));
    let mut again = Index::default();
    again.take(&mut some);
    assert_eq!(again.keys(), keys_of(&["ab", "abcd", "abcdef", "abcdefgh"]), "from the root on");

    let (_, mut ops, _) = restarted(&blocks, links(&index), NONE, 100);
    let mut known = Vec::new();
    for (_, ops) in ops.slices_mut() {
        for op in ops.drain(..) {
            let forebay_index::KvOp::Store { parent, key, .. } = op else { panic!("{op:?}") };
            assert!(known.is_empty() || known.contains(&parent), "a child before its parent");
            known.push(key);
        }
    }
    assert_eq!(known.len(), 10);

    let paths = Paths::new(links(&index));
    let mut restoring = RestoreBuilder::new(&paths, SHARDS, NONE, 1, 100);
    let entry = blocks.copy().kept.entries().next().unwrap();
    restoring.add(&entry);
    restoring.add(&entry);
    assert_eq!(restoring.finish().2, OmittedEntries { odd: 1, ..OmittedEntries::default() });
}

#[test]
fn tiers_and_counts_are_restored_as_far_as_they_count() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    blocks.set_lower_tiers(ALL);
    let chain = store(None, &[10, 11], &[0, 1, 2, 3]);
    for _ in 0..20 {
        blocks.stored(&chain, &mut ops);
    }
    blocks.stored(&BlockStored { medium: Medium::Host, ..chain }, &mut ops);
    blocks.stored(&BlockStored { medium: Medium::Disk, ..store(None, &[30], &[6, 7]) }, &mut ops);
    index.take(&mut ops);

    let (mut all, mut ops, left) = restarted(&blocks, links(&index), ALL, 100);
    assert_eq!((left, all.size().tier_blocks), (OmittedEntries::default(), [2, 2, 1]));
    let mut again = Index::default();
    again.take(&mut ops);
    assert_eq!(again.trees()[..2], index.trees()[..2]);
    // With their lengths known, what the nearer tiers hold is in the disk's tree too.
    assert_eq!(again.all_keys()[2], keys_of(&["ab", "abcd", "gh"]));
    for removals in 1..=20 {
        all.removed(&remove(&[10]), &mut ops);
        again.take(&mut ops);
        assert_eq!(again.keys().contains(&key_of("ab")), removals < 20, "{removals}");
    }
    assert!(again.all_keys()[1].contains(&key_of("ab")), "the host has it still");

    let (device, mut ops, left) = restarted(&blocks, links(&index), NONE, 100);
    assert_eq!((device.len(), left.tiers), (2, 1));
    let mut again = Index::default();
    again.take(&mut ops);
    assert_eq!(again.all_keys(), [keys_of(&["ab", "abcd"]), keys_of(&[]), keys_of(&[])]);
}

#[test]
fn copies_by_their_hash_alone_are_known_after_a_restart() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    blocks.set_lower_tiers(ALL);
    blocks.stored(&BlockStored { group: Some(0), ..store(None, &[10], &[0, 1]) }, &mut ops);
    let forgets =
        BlockStored { group: Some(2), attention: Attention::Other, ..store(None, &[10], &[0, 1]) };
    blocks.stored(&forgets, &mut ops);
    index.take(&mut ops);
    let (mut after, mut ops, _) = restarted(&blocks, links(&index), ALL, 100);
    let named = |group| BlockStored {
        group: Some(group),
        medium: Medium::Host,
        block_size_tokens: 0,
        ..store(None, &[10], &[])
    };
    assert_eq!(after.stored(&named(2), &mut ops), BatchOutcome::OtherGroup);
    assert_eq!(after.stored(&named(1), &mut ops), BatchOutcome::Applied);
    assert_eq!(after.len(), 2);
}
