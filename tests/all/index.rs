//! The index against a naive model, and under threads.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails must stop")]

use forebay::base::{NanosSinceStart, RankIndex, ShardIndex};
use forebay::index::{
    BlockKey, IndexReader, KeySeed, KvOp, Overlap, Overlaps, RootName, Shape, SliceWriter,
    index_of_shape, slice_of,
};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const SEED: KeySeed = KeySeed(0x5eed);
/// Blocks that begin alike and differ in length, so that one text has many readings.
const BLOCKS: [&str; 12] = [
    "a",
    "b",
    "ab",
    "ba",
    "aab",
    "abb",
    "abab",
    "aaaaa",
    "bbbbbb",
    "abaabaa",
    "baabaaba",
    "aabbaabba",
];

fn root() -> BlockKey {
    BlockKey::root(SEED, &RootName { model: "m", block_size_tokens: 16, ..RootName::default() })
}

/// Index and writers, with stores and removals of whole paths.
struct Index {
    reader: IndexReader,
    writers: Vec<SliceWriter>,
}

impl Index {
    fn new(shard_count: usize, segment_slots: usize, memory_bytes_max: usize) -> Self {
        let shape = Shape { segment_slots, memory_bytes_max };
        let (reader, writers) = index_of_shape(shard_count, SEED, shape);
        Self { reader, writers }
    }

    fn apply(&mut self, rank: u16, path: &[&[u8]], store: bool) {
        let keys: Vec<BlockKey> = path
            .iter()
            .scan(root(), |key, block| {
                *key = key.child(SEED, block);
                Some(*key)
            })
            .collect();
        let key = *keys.last().unwrap();
        let parent = keys.iter().rev().nth(1).copied().unwrap_or_else(root);
        let slice = slice_of(keys[0], self.writers.len()).index();
        let block_bytes = u16::try_from(path.last().unwrap().len()).unwrap();
        let op = match store {
            true => KvOp::Store { parent, key, block_bytes },
            false => KvOp::Remove { key },
        };
        self.writers[slice].apply(RankIndex(rank), op);
    }

    fn overlaps(&self, text: &[u8], rank_count: u16) -> Vec<Overlap> {
        let mut overlaps = Overlaps::new(usize::from(rank_count));
        self.reader.overlap(root(), text, &mut overlaps);
        (0..rank_count).map(|rank| overlaps.get(RankIndex(rank))).collect()
    }
}

/// What one rank holds: paths as lists of block numbers.
type Held = HashSet<Vec<usize>>;

fn naive_overlap(held: &Held, path: &mut Vec<usize>, text: &[u8]) -> Overlap {
    let mut best = Overlap::default();
    for (number, block) in BLOCKS.iter().enumerate() {
        let Some(rest) = text.strip_prefix(block.as_bytes()) else { continue };
        path.push(number);
        if held.contains(path) {
            let further = naive_overlap(held, path, rest);
            let bytes = further.bytes + u32::try_from(block.len()).unwrap();
            let found = Overlap { blocks: further.blocks + 1, bytes };
            if (found.bytes, found.blocks) > (best.bytes, best.blocks) {
                best = found;
            }
        }
        path.pop();
    }
    best
}

#[derive(Clone, Debug)]
struct Change {
    store: bool,
    rank: u16,
    path: Vec<usize>,
}

fn change(rank_count: u16) -> impl Strategy<Value = Change> {
    // Low block numbers are more likely, so that paths meet.
    let block = prop_oneof![3 => 0..4_usize, 1 => 0..BLOCKS.len()];
    let path = prop::collection::vec(block, 1..6);
    (prop::bool::weighted(0.7), 0..rank_count, path).prop_map(|(store, rank, path)| Change {
        store,
        rank,
        path,
    })
}

fn agree(index: &Index, held: &[Held], texts: &[String]) {
    let rank_count = u16::try_from(held.len()).unwrap();
    for text in texts {
        let found = index.overlaps(text.as_bytes(), rank_count);
        let expected: Vec<Overlap> =
            held.iter().map(|held| naive_overlap(held, &mut Vec::new(), text.as_bytes())).collect();
        assert_eq!(found, expected, "text {text}");
    }
}

fn replay(index: &mut Index, held: &mut [Held], change: &Change, with_prefixes: bool) {
    let blocks: Vec<&[u8]> = change.path.iter().map(|number| BLOCKS[*number].as_bytes()).collect();
    let first = if with_prefixes { 1 } else { blocks.len() };
    for length in first..=blocks.len() {
        index.apply(change.rank, &blocks[..length], change.store);
        let held = &mut held[usize::from(change.rank)];
        let path = change.path[..length].to_vec();
        if change.store {
            held.insert(path)
        } else {
            held.remove(&path)
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Any order of stores and removals, with and without the blocks before them, on few and on
    /// many ranks, in tables that split often: the overlap of every rank is that of the model, and
    /// nothing is left at the end.
    #[test]
    fn agrees_with_the_naive_model(
        shard_count in 1..4_usize,
        rank_count in prop_oneof![Just(3_u16), Just(9), Just(70)],
        changes in prop::collection::vec((change(9), any::<bool>()), 1..300),
        texts in prop::collection::vec("[ab]{0,24}", 8),
    ) {
        let mut index = Index::new(shard_count, 16, 1 << 20);
        let mut held = vec![Held::new(); usize::from(rank_count)];
        for (step, (mut change, with_prefixes)) in changes.into_iter().enumerate() {
            // Spread over the ranks, also across the words of a bitset.
            change.rank = change.rank * 31 % rank_count;
            replay(&mut index, &mut held, &change, with_prefixes);
            if step % 50 == 0 {
                agree(&index, &held, &texts);
            }
        }
        agree(&index, &held, &texts);
        prop_assert_eq!(index.reader.refused_count(), 0);
        for (rank, held) in held.iter().enumerate() {
            for path in held {
                let blocks: Vec<&[u8]> =
                    path.iter().map(|number| BLOCKS[*number].as_bytes()).collect();
                index.apply(u16::try_from(rank).unwrap(), &blocks, false);
            }
        }
        prop_assert_eq!(index.reader.entry_count(), 0);
    }

    /// First blocks of any length, among first blocks of other prompts: several slices, which know
    /// lengths by bits, have the overlaps of a single slice, which knows them by a list.
    #[test]
    fn slices_have_the_first_blocks_of_one(
        slice_count in 2..6_usize,
        lengths in prop::collection::vec(
            prop_oneof![4 => 1..80_usize, 1 => 440..600_usize], 1..60),
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..4_u8, any::<bool>()), 1..400),
    ) {
        let byte = |at: u32| (at * at / 4).to_le_bytes()[0];
        let text = |number: u8| (0..600).map(|at| byte(at) ^ number).collect();
        let texts: Vec<Vec<u8>> = (0..4).map(text).collect();
        let mut one = Index::new(1, 16, 1 << 20);
        let mut several = Index::new(slice_count, 16, 1 << 20);
        for (step, (index, text, store)) in changes.into_iter().enumerate() {
            let length = *index.get(&lengths);
            let block = &texts[usize::from(text)][..length];
            let rank = u16::try_from(length % 5).unwrap();
            one.apply(rank, &[block], store);
            several.apply(rank, &[block], store);
            if step % 8 == 0 {
                for text in &texts {
                    prop_assert_eq!(one.overlaps(text, 5), several.overlaps(text, 5));
                }
            }
        }
        prop_assert_eq!(one.reader.refused_count() + several.reader.refused_count(), 0);
    }

    /// Entry count: paths that some rank holds, and some of those that such paths go through, no
    /// others.
    #[test]
    fn entries_are_what_is_held_or_goes_on(
        changes in prop::collection::vec((change(6), any::<bool>()), 1..120),
    ) {
        let mut index = Index::new(1, 16, 1 << 20);
        let mut held = vec![Held::new(); 6];
        for (change, with_prefixes) in changes {
            replay(&mut index, &mut held, &change, with_prefixes);
            let paths: BTreeSet<&[usize]> = held.iter().flatten().map(Vec::as_slice).collect();
            let before: BTreeSet<&[usize]> = paths
                .iter()
                .flat_map(|path| (0..path.len()).map(|length| &path[..length]))
                .collect();
            let count = usize::try_from(index.reader.entry_count()).unwrap();
            prop_assert!(count >= paths.len() && count <= paths.union(&before).count());
        }
    }

    /// What a visitor sees, stored into another index for one rank, is all that any rank holds.
    #[test]
    fn a_visit_sees_every_block(
        changes in prop::collection::vec((change(6), any::<bool>()), 1..120),
        texts in prop::collection::vec("[ab]{0,24}", 8),
    ) {
        let mut index = Index::new(2, 16, 1 << 20);
        let mut held = vec![Held::new(); 6];
        for (change, _) in changes {
            replay(&mut index, &mut held, &change, true);
        }
        let all: Vec<(BlockKey, BlockKey, u16)> = {
            let mut all = Vec::new();
            index.reader.visit(&mut |parent, key, bytes| all.push((parent, key, bytes)));
            let count = all.len();
            let all: HashSet<(u64, u64, u16)> = all
                .into_iter()
                .map(|(parent, key, bytes)| (parent.to_word(), key.to_word(), bytes))
                .collect();
            prop_assert_eq!(all.len(), count, "each once when nothing changes");
            all.into_iter()
                .map(|(parent, key, bytes)| {
                    (BlockKey::from_word(parent).unwrap(), BlockKey::from_word(key).unwrap(), bytes)
                })
                .collect()
        };
        let (reader, mut writers) =
            index_of_shape(1, SEED, Shape { segment_slots: 16, memory_bytes_max: 1 << 20 });
        for (parent, key, block_bytes) in all {
            writers[0].apply(RankIndex(0), KvOp::Store { parent, key, block_bytes });
        }
        for text in texts {
            let longest = index
                .overlaps(text.as_bytes(), 6)
                .into_iter()
                .max_by_key(|found| found.bytes)
                .unwrap();
            let mut overlaps = Overlaps::new(1);
            reader.overlap(root(), text.as_bytes(), &mut overlaps);
            prop_assert!(overlaps.get(RankIndex(0)).bytes >= longest.bytes);
        }
    }

    /// Long paths that part and are held in part, in any order: runs are split, cut and extended.
    #[test]
    fn long_paths_agree_with_the_naive_model(
        rank_count in prop_oneof![Just(3_u16), Just(9), Just(70)],
        steps in prop::collection::vec(
            (0..9_u16, 0..4_usize, 0..150_usize, 0..150_usize, 0..5_u8),
            1..60,
        ),
    ) {
        let mut index = Index::new(1, 16, 8 << 20);
        let mut held = vec![Held::new(); usize::from(rank_count)];
        // Path p is that of 0 up to block 40 * p, and then of its own.
        let path = |number: usize, length: usize| -> Vec<usize> {
            (0..length)
                .map(|at| if at < 40 * number { at % 4 } else { (at * 7 + number) % 4 })
                .collect()
        };
        for (rank, number, from, to, what) in steps {
            let rank = rank * 31 % rank_count;
            let longest = from.max(to) + 1;
            let from = from.min(to);
            let mut lengths: Vec<usize> = match what {
                0 | 1 => (1..=longest).collect(),
                _ => (from + 1..=longest).collect(),
            };
            if what == 3 {
                lengths.reverse();
            }
            let store = what < 2 || what == 4;
            for length in lengths {
                let path = path(number, length);
                let blocks: Vec<&[u8]> =
                    path.iter().map(|number| BLOCKS[*number].as_bytes()).collect();
                index.apply(rank, &blocks, store);
                let held = &mut held[usize::from(rank)];
                if store {
                    held.insert(path);
                } else {
                    held.remove(&path);
                }
            }
        }
        let texts: Vec<String> = (0..4)
            .flat_map(|number| [150, 61, 60, 41, 13].map(|length| (number, length)))
            .map(|(number, length)| {
                path(number, length).iter().map(|block| BLOCKS[*block]).collect()
            })
            .collect();
        for text in &texts {
            let found = index.overlaps(text.as_bytes(), rank_count);
            for (rank, held) in held.iter().enumerate() {
                let best = naive_longest(held, text);
                prop_assert_eq!(found[rank], best, "rank {} text {}", rank, text);
            }
        }
        prop_assert_eq!(index.reader.refused_count(), 0);
        for (rank, held) in held.iter().enumerate() {
            for path in held {
                let blocks: Vec<&[u8]> =
                    path.iter().map(|number| BLOCKS[*number].as_bytes()).collect();
                index.apply(u16::try_from(rank).unwrap(), &blocks, false);
            }
        }
        prop_assert_eq!(index.reader.entry_count(), 0);
    }
}

/// As `naive_overlap`, for texts that have many readings: the frontier of paths, block by block.
fn naive_longest(held: &Held, text: &str) -> Overlap {
    let mut frontier: Vec<(Vec<usize>, usize)> = vec![(Vec::new(), 0)];
    let mut best = Overlap::default();
    while let Some((path, bytes)) = frontier.pop() {
        let found = Overlap {
            blocks: u32::try_from(path.len()).unwrap(),
            bytes: u32::try_from(bytes).unwrap(),
        };
        if (found.bytes, found.blocks) > (best.bytes, best.blocks) {
            best = found;
        }
        for (number, block) in BLOCKS.iter().enumerate() {
            if !text[bytes..].starts_with(block) {
                continue;
            }
            let mut longer = path.clone();
            longer.push(number);
            if held.contains(&longer) {
                frontier.push((longer, bytes + block.len()));
            }
        }
    }
    best
}

fn numbered(number: usize, length: usize) -> Vec<u8> {
    let mut block = vec![b'.'; length];
    let digits = number.to_string();
    block[..digits.len()].copy_from_slice(digits.as_bytes());
    block
}

/// More child lengths than a word, a cell and a list can hold, added and dropped in different
/// orders.
#[test]
fn a_walk_that_may_cost_little_says_that_it_is_cut() {
    let mut index = Index::new(1, 64, 1 << 22);
    let path: Vec<Vec<u8>> = (0..1_000).map(|number| numbered(number, 8)).collect();
    let blocks: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
    (1..=blocks.len()).for_each(|end| index.apply(0, &blocks[..end], true));
    let text = path.concat();
    let mut overlaps = Overlaps::new(1);
    let mut found = |probes_max| {
        overlaps.clear();
        overlaps.limit(probes_max);
        index.reader.overlap(root(), &text, &mut overlaps);
        (overlaps.get(RankIndex(0)).blocks, overlaps.is_cut())
    };
    assert_eq!(found(usize::MAX), (1_000, false));
    let (blocks, is_cut) = found(500);
    assert!(is_cut && (400..=500).contains(&blocks), "{blocks}");
    assert_eq!(found(usize::MAX), (1_000, false), "the next walk is not");
}

#[test]
fn many_child_lengths() {
    let mut index = Index::new(1, 64, 8 << 20);
    let system: &[u8] = b"system";
    index.apply(0, &[system], true);
    let blocks: Vec<Vec<u8>> = (0..500).map(|number| numbered(number, 8 + number)).collect();
    let held =
        |index: &Index, block: &[u8]| index.overlaps(&[system, block].concat(), 1)[0].blocks == 2;
    for block in &blocks {
        index.apply(0, &[system, block], true);
    }
    assert_eq!(index.reader.refused_count(), 20, "480 different lengths are kept");
    for (number, block) in blocks.iter().enumerate() {
        assert_eq!(held(&index, block), number < 480, "{number}");
    }
    // Every third, then from both ends.
    let third = (0..480).filter(|number| number % 3 == 0);
    let rest: Vec<usize> = (0..480).filter(|number| number % 3 != 0).collect();
    let (front, back) = rest.split_at(160);
    let order: Vec<usize> =
        third.chain(back.iter().rev().copied()).chain(front.iter().copied()).collect();
    let mut left: BTreeSet<usize> = (0..480).collect();
    for (step, number) in order.into_iter().enumerate() {
        assert!(held(&index, &blocks[number]));
        index.apply(0, &[system, &blocks[number]], false);
        left.remove(&number);
        if step % 37 == 0 || left.len() < 10 {
            assert!(left.iter().all(|number| held(&index, &blocks[*number])), "step {step}");
            assert!(!held(&index, &blocks[number]));
        }
    }
    index.apply(0, &[system], false);
    assert_eq!(index.reader.entry_count(), 0);
}

/// A length goes with its last child, not with the first one that goes.
#[test]
fn children_of_one_length_are_counted() {
    let mut index = Index::new(1, 64, 1 << 20);
    let blocks: Vec<Vec<u8>> = (0..12).map(|number| numbered(number, 4 + number % 6)).collect();
    for block in &blocks {
        index.apply(0, &[block], true);
        index.apply(1, &[block], true);
        index.apply(1, &[block], true);
    }
    for gone in 0..12 {
        index.apply(0, &[&blocks[gone]], false);
        index.apply(1, &[&blocks[gone]], false);
        for (number, block) in blocks.iter().enumerate() {
            let blocks = index.overlaps(block, 2).map_blocks();
            assert_eq!(blocks, [u32::from(number > gone); 2], "{number} after {gone}");
        }
    }
    assert_eq!(index.reader.entry_count(), 0);
}

trait MapBlocks {
    fn map_blocks(self) -> Vec<u32>;
}

impl MapBlocks for Vec<Overlap> {
    fn map_blocks(self) -> Vec<u32> {
        self.into_iter().map(|overlap| overlap.blocks).collect()
    }
}

/// All ranks of the largest fleet on one path, leaving it at different depths.
#[test]
fn a_thousand_ranks() {
    let mut index = Index::new(2, 64, 8 << 20);
    let blocks: Vec<Vec<u8>> = (0..8).map(|number| numbered(number, 10)).collect();
    let path: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
    let depth = |rank: u16| usize::from(rank % 9);
    for rank in 0..1_024 {
        for length in 1..=depth(rank) {
            index.apply(rank, &path[..length], true);
        }
    }
    let found = index.overlaps(&path.concat(), 1_024);
    for (rank, found) in (0..).zip(&found) {
        let blocks = u32::try_from(depth(rank)).unwrap();
        assert_eq!(*found, Overlap { blocks, bytes: blocks * 10 }, "rank {rank}");
    }
    index.apply(1_024, &path[..1], true);
    assert_eq!(index.reader.refused_count(), 1, "a rank outside of the limit");
}

#[test]
fn limits_of_blocks() {
    let mut index = Index::new(1, 64, 1 << 20);
    let longest = vec![b'x'; 32_767];
    index.apply(0, &[&longest], true);
    assert_eq!(index.overlaps(&longest, 1)[0], Overlap { blocks: 1, bytes: 32_767 });
    assert_eq!(index.overlaps(&longest[1..], 1)[0], Overlap::default());
    index.apply(0, &[&vec![b'x'; 32_768]], true);
    index.apply(0, &[b""], true);
    assert_eq!(index.reader.refused_count(), 2);
}

/// At the budget the coldest paths go, memory stays within it, and room that is given back is used
/// again.
#[test]
fn the_budget_holds() {
    let budget = 256 * 1_024;
    let mut index = Index::new(1, 64, budget);
    let blocks: Vec<Vec<u8>> = (0..20_000).map(|number| numbered(number, 12)).collect();
    for (number, block) in blocks.iter().enumerate() {
        let seconds = u64::try_from(number / 100).unwrap();
        index.writers[0].tick(NanosSinceStart(seconds * 1_000_000_000));
        index.apply(0, &[block], true);
        // A reader keeps the first ones warm.
        if number % 100 == 0 {
            for block in &blocks[..20.min(number)] {
                index.overlaps(block, 1);
            }
        }
    }
    let evicted = index.reader.evicted_count();
    let kept = index.reader.entry_count();
    assert!(index.reader.memory_bytes() <= budget as u64);
    assert_eq!(index.reader.refused_count(), 0);
    assert_eq!(evicted + kept, 20_001, "one is the root");
    assert!(kept > 800, "{kept} paths of one block in {budget} bytes");
    let held = |block: &Vec<u8>| index.overlaps(block, 1)[0].blocks == 1;
    assert_eq!(blocks[..20].iter().filter(|block| held(block)).count(), 20, "in use");
    let recent = blocks[19_900..].iter().filter(|block| held(block)).count();
    let middle = blocks[10_000..10_100].iter().filter(|block| held(block)).count();
    assert!(recent == 100 && middle == 0, "{recent} of the last, {middle} of the middle");
    for block in &blocks {
        index.apply(0, &[block], false);
    }
    assert_eq!(index.reader.entry_count(), 0);
    for block in &blocks[10_000..10_500] {
        index.apply(0, &[block], true);
    }
    assert_eq!(index.reader.evicted_count(), evicted);
    assert_eq!(index.reader.entry_count(), 501);
}

/// Stores and evictions for a long time at one size: neither memory nor the outcome drifts.
#[test]
fn churn_does_not_wear_it_out() {
    let mut index = Index::new(1, 64, 4 << 20);
    let mut bytes = 0;
    for number in 0..60_000 {
        index.apply(0, &[&numbered(number, 16)], true);
        if number >= 1_000 {
            index.apply(0, &[&numbered(number - 1_000, 16)], false);
        }
        if number == 20_000 {
            bytes = index.reader.memory_bytes();
        }
    }
    assert_eq!(index.reader.entry_count(), 1_001);
    assert!(
        index.reader.memory_bytes() <= bytes * 3 / 2,
        "{} after {bytes}",
        index.reader.memory_bytes()
    );
    assert_eq!(index.overlaps(&numbered(59_500, 16), 1)[0].blocks, 1);
    assert_eq!(index.overlaps(&numbered(58_900, 16), 1)[0].blocks, 0);
}

#[test]
fn every_shard_owns_a_fair_share() {
    for shard_count in [1, 2, 3, 7, 64] {
        let mut owned = vec![0_usize; shard_count];
        for number in 0..64_000_u32 {
            let key = root().child(SEED, &number.to_le_bytes());
            let ShardIndex(shard) = slice_of(key, shard_count);
            owned[usize::from(shard)] += 1;
        }
        let fair = 64_000 / shard_count;
        assert!(owned.iter().all(|owned| owned.abs_diff(fair) < fair / 4), "{owned:?}");
    }
}

/// One thread applies, others walk. Conversation `c` may only ever be held by the ranks `r` with
/// `r % 5 == c % 5`, more than fit a word; the stable ones must always be found whole. A small
/// table that splits, shifts and reuses cells.
#[test]
fn readers_never_see_a_false_rank() {
    const RANKS: u16 = 40;
    let mut index = Index::new(1, 64, 16 << 20);
    let text = |conversation: usize| -> Vec<Vec<u8>> {
        (0..6).map(|block| numbered(conversation * 10 + block, 8 + conversation % 7)).collect()
    };
    let stable: Vec<Vec<Vec<u8>>> = (0..20).map(text).collect();
    let owners = |conversation: usize| {
        (0..RANKS).filter(move |rank| usize::from(rank % 5) == conversation % 5)
    };
    for (conversation, blocks) in stable.iter().enumerate() {
        let path: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        for rank in owners(conversation) {
            for length in 1..=path.len() {
                index.apply(rank, &path[..length], true);
            }
        }
    }
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2_usize)
        .map(|reader_number| {
            let reader = index.reader.clone();
            let done = Arc::clone(&done);
            thread::spawn(move || {
                let mut overlaps = Overlaps::new(usize::from(RANKS));
                let mut walks = 0_u64;
                let mut partly = 0_u64;
                let mut conversation = reader_number;
                while !done.load(Ordering::Relaxed) {
                    conversation = (conversation + 7) % 400;
                    overlaps.clear();
                    reader.overlap(root(), &text(conversation).concat(), &mut overlaps);
                    for (rank, overlap) in overlaps.iter_held() {
                        assert_eq!(
                            usize::from(rank.0 % 5),
                            conversation % 5,
                            "a rank that never held it"
                        );
                        assert!(overlap.blocks <= 6);
                    }
                    if conversation < 20 {
                        let whole =
                            overlaps.iter_held().filter(|(_, found)| found.blocks == 6).count();
                        partly += u64::from(whole != 8);
                    }
                    walks += 1;
                }
                (walks, partly)
            })
        })
        .collect();
    for round in 0..24_usize {
        for conversation in 20..400 {
            let blocks = text(conversation);
            let path: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
            let store = (conversation + round) % 3 != 0;
            for rank in owners(conversation).skip(round % 4) {
                for length in 1..=path.len() {
                    let length = if store { length } else { path.len() + 1 - length };
                    index.apply(rank, &path[..length], store);
                }
            }
        }
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        let (walks, partly) = reader.join().unwrap();
        assert!(walks > 100, "{walks} walks");
        assert_eq!(partly, 0, "stable conversations found only in part, of {walks} walks");
    }
}
