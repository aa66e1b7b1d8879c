//! [`RankBlocks`](super::RankBlocks) with lower tiers, case by case.

use super::tests::{Index, Letters, SEED, SHARDS, blocks, remove, store};
use super::*;
use forebay_kv_decode::Medium;
use std::collections::BTreeSet;
use std::time::Duration;

const BOTH: LowerTiers = LowerTiers { host: true, disk: true, ttl: Duration::ZERO };

fn tiered() -> RankBlocks<Letters> {
    let mut blocks = blocks(100);
    blocks.set_lower_tiers(BOTH);
    blocks
}

fn of(index: &Index) -> [usize; 3] {
    index.all_keys().map(|keys| keys.len())
}

#[test]
fn a_block_moves_down_the_tiers_and_leaves_with_the_last() {
    let mut blocks = tiered();
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    blocks.expect_lower_tiers();
    let on_device = store(None, &[10, 11], &[0, 1, 2, 3]);
    let store_in = |medium| Some(BlockStored { medium, ..on_device });
    let second = [11];
    let leaf = remove(&second);
    let both = remove(&[11, 10]);
    let from_host = BlockRemoved { medium: Medium::Host, ..leaf };
    let steps = [
        (store_in(Medium::Device), None, [2, 2, 2]),
        (store_in(Medium::Host), None, [2, 2, 2]),
        (None, Some(both), [0, 2, 2]),
        (store_in(Medium::Disk), None, [0, 2, 2]),
        (None, Some(from_host), [0, 1, 2]),
        (store_in(Medium::Device), None, [2, 2, 2]),
    ];
    for (position, (stored, removed, wanted)) in steps.into_iter().enumerate() {
        if let Some(event) = stored {
            assert_eq!(blocks.stored(&event, &mut ops), BatchOutcome::Applied);
        }
        if let Some(event) = removed {
            assert_eq!(blocks.removed(&event, &mut ops), BatchOutcome::Applied);
        }
        index.take(&mut ops);
        assert_eq!(of(&index), wanted, "step {position}");
    }
    assert_eq!(blocks.size().tier_blocks, [2, 1, 2]);
    blocks.clear(&mut ops);
    index.take(&mut ops);
    assert_eq!(of(&index), [0, 0, 0]);
    assert_eq!(blocks.size().tier_blocks, [0; 3]);
}

#[test]
fn a_tier_has_its_tree_from_its_first_event_on() {
    let mut blocks = tiered();
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    let first = store(None, &[10], &[0, 1]);
    blocks.stored(&first, &mut ops);
    let second = store(Some(10), &[11], &[2, 3]);
    blocks.stored(&BlockStored { medium: Medium::Host, ..second }, &mut ops);
    index.take(&mut ops);
    assert!(blocks.has_tree(Tier::Host) && !blocks.has_tree(Tier::Disk));
    assert_eq!(of(&index), [1, 1, 0], "the first was there before the tree");
    blocks.stored(&first, &mut ops);
    index.take(&mut ops);
    assert_eq!(of(&index), [1, 2, 0], "stored again it joins");
    for _ in 0..2 {
        blocks.removed(&remove(&[10]), &mut ops);
    }
    index.take(&mut ops);
    assert_eq!(of(&index), [0, 1, 0]);
}

#[test]
fn copies_known_by_their_hash_alone_keep_the_block() {
    let mut blocks = tiered();
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    blocks.expect_lower_tiers();
    let plain = store(None, &[10, 11], &[0, 1, 2, 3]);
    let copy = |hashes: &'static [u64], group| BlockStored {
        medium: Medium::Host,
        token_ids: &[],
        block_size_tokens: 0,
        group,
        ..store(None, hashes, &[])
    };
    assert_eq!(blocks.stored(&copy(&[10], None), &mut ops), BatchOutcome::HashUnknown);
    blocks.stored(&BlockStored { group: Some(0), ..plain }, &mut ops);
    assert_eq!(
        blocks.stored(&copy(&[10, 11], None), &mut ops),
        BatchOutcome::Applied,
        "of any group"
    );
    assert_eq!(blocks.stored(&copy(&[11, 12], Some(0)), &mut ops), BatchOutcome::HashUnknown);
    blocks.removed(&BlockRemoved { group: Some(0), ..remove(&[10, 11]) }, &mut ops);
    index.take(&mut ops);
    assert_eq!(of(&index), [0, 2, 2]);
    blocks.removed(&BlockRemoved { medium: Medium::Host, ..remove(&[10, 11]) }, &mut ops);
    index.take(&mut ops);
    assert_eq!(of(&index), [0, 1, 1], "one copy of the second is left");
    let sliding = BlockStored { attention: Attention::Other, group: Some(1), ..plain };
    assert_eq!(blocks.stored(&sliding, &mut ops), BatchOutcome::OtherGroup);
    assert_eq!(blocks.stored(&copy(&[11], Some(1)), &mut ops), BatchOutcome::OtherGroup);
}

#[test]
fn tiers_that_do_not_count_are_elsewhere() {
    let mut blocks = blocks(100);
    let mut ops = SliceOps::new(SHARDS);
    blocks.set_lower_tiers(LowerTiers { host: false, disk: true, ttl: Duration::ZERO });
    let plain = store(None, &[10], &[0, 1]);
    for (medium, outcome) in [
        (Medium::Host, BatchOutcome::Elsewhere),
        (Medium::Unknown, BatchOutcome::Elsewhere),
        (Medium::Shared, BatchOutcome::Elsewhere),
        (Medium::Disk, BatchOutcome::Applied),
    ] {
        assert_eq!(blocks.stored(&BlockStored { medium, ..plain }, &mut ops), outcome);
    }
}

#[test]
fn larger_blocks_of_a_lower_tier_are_found_under_the_devices_root() {
    let mut blocks = tiered();
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    blocks.stored(&store(None, &[10], &[0, 1]), &mut ops);
    let large = BlockStored {
        medium: Medium::Host,
        block_size_tokens: 4,
        ..store(None, &[20], &[0, 1, 2, 3])
    };
    assert_eq!(blocks.stored(&large, &mut ops), BatchOutcome::Applied);
    index.take(&mut ops);
    let name = RootName { model: "m", block_size_tokens: 2, ..RootName::default() };
    let key = BlockKey::root(SEED, &name).child(SEED, b"abcd").to_word();
    assert_eq!(index.all_keys()[1], BTreeSet::from([key]));
}
