//! Hybrid models: which blocks windows hold, as events come.

use super::tests::{Index, SHARDS, blocks, key_of, remove, store};
use super::*;
use crate::paths::windows::Resume;
use forebay_kv_decode::Attention;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const WINDOW: Attention = Attention::Window(5);

/// A rank whose group 0 sees all; others as the events tell.
struct Rig {
    blocks: RankBlocks<super::tests::Letters>,
    ops: SliceOps,
    index: Index,
}

impl Rig {
    fn new(entries_max: usize) -> Self {
        let ops = SliceOps::new(SHARDS);
        let index = Index::default();
        Self { blocks: blocks(entries_max), ops, index }
    }

    /// `hashes` of the text `a`, `b`… from a block on, in a group.
    fn store(&mut self, group: u32, attention: Attention, hashes: std::ops::Range<u64>) {
        let ids: Vec<u64> = hashes.clone().map(|at| at + 100).collect();
        let tokens: Vec<u32> = hashes.clone().flat_map(|at| [number(at), number(at)]).collect();
        let parent = hashes.start.checked_sub(1).map(|before| before + 100);
        let whole = attention == Attention::Whole;
        let tokens = if whole { &tokens[..] } else { &[] };
        let event = BlockStored { group: Some(group), attention, ..store(parent, &ids, tokens) };
        self.blocks.stored(&event, &mut self.ops);
        self.index.take(&mut self.ops);
    }

    fn remove(&mut self, group: u32, at: u64) {
        let hashes = [at + 100];
        let event = BlockRemoved { group: Some(group), ..remove(&hashes) };
        self.blocks.removed(&event, &mut self.ops);
        self.index.take(&mut self.ops);
    }

    /// Blocks that a window of the index holds.
    fn held(&self, window: usize) -> Vec<u64> {
        (0..30).filter(|at| self.index.windows[window].contains(&key(*at))).collect()
    }
}

fn number(at: u64) -> u32 {
    u32::try_from(at).unwrap()
}

/// The key of the text up to a block.
fn key(at: u64) -> u64 {
    let letter = |at: u64| char::from(b'a' + u8::try_from(at).unwrap());
    let text: String = (0..=at).flat_map(|at| [letter(at), letter(at)]).collect();
    key_of(&text)
}

#[test]
fn a_window_holds_what_all_its_groups_hold() {
    let mut rig = Rig::new(1_000);
    assert_eq!(rig.blocks.resume(), Resume::Anywhere);
    // vLLM tells of the groups in their order, whole prefixes first or last.
    rig.store(1, WINDOW, 0..4);
    rig.store(2, WINDOW, 1..4);
    rig.store(0, Attention::Whole, 0..4);
    assert_eq!(rig.blocks.resume(), Resume::Windows([Some(2), None]));
    assert_eq!(rig.held(0), [1, 2, 3]);
    rig.store(0, Attention::Whole, 4..6);
    rig.store(1, WINDOW, 4..6);
    assert_eq!(rig.held(0), [1, 2, 3], "one group of two");
    rig.store(2, WINDOW, 4..6);
    assert_eq!(rig.held(0), [1, 2, 3, 4, 5]);
    // Stored twice by one group: two removals.
    rig.store(2, WINDOW, 5..6);
    rig.remove(2, 5);
    assert_eq!(rig.held(0), [1, 2, 3, 4, 5]);
    rig.remove(2, 5);
    rig.remove(1, 1);
    rig.remove(1, 1);
    assert_eq!(rig.held(0), [2, 3, 4]);
    // A prefix that goes takes its windows with it, and brings them back.
    rig.remove(0, 4);
    assert_eq!(rig.held(0), [2, 3]);
    rig.store(0, Attention::Whole, 4..5);
    assert_eq!(rig.held(0), [2, 3, 4]);
    rig.blocks.clear(&mut rig.ops);
    rig.index.take(&mut rig.ops);
    assert_eq!((rig.held(0), rig.blocks.resume()), (vec![], Resume::Anywhere));
}

#[test]
fn groups_that_need_different_lengths_are_different_windows() {
    let mut rig = Rig::new(1_000);
    rig.store(0, Attention::Whole, 0..4);
    rig.store(1, WINDOW, 0..4);
    rig.store(2, Attention::State, 3..4);
    assert_eq!(rig.blocks.resume(), Resume::Windows([Some(2), Some(1)]));
    assert_eq!((rig.held(0), rig.held(1)), (vec![0, 1, 2, 3], vec![3]));
    rig.store(3, Attention::Window(9), 0..4);
    assert_eq!(rig.blocks.resume(), Resume::Unknown, "more than are counted");
    rig.remove(0, 3);
    assert_eq!(rig.held(0), [0, 1, 2], "what the index was told goes all the same");
}

#[test]
fn a_group_that_comes_late_takes_out_what_it_does_not_hold() {
    let mut rig = Rig::new(1_000);
    rig.store(0, Attention::Whole, 0..4);
    rig.store(1, WINDOW, 0..4);
    assert_eq!(rig.held(0), [0, 1, 2, 3]);
    rig.store(2, WINDOW, 2..3);
    assert_eq!(rig.held(0), [2]);
}

/// Two tokenizations of one text: two hashes, one block of the index.
#[test]
fn a_text_with_two_hashes_is_held_while_one_of_them_is() {
    let mut rig = Rig::new(1_000);
    rig.store(0, Attention::Whole, 0..2);
    rig.store(1, WINDOW, 0..2);
    // 26 letters on, the letters are the same again.
    let tokens = [26, 26];
    let again = BlockStored { group: Some(0), ..store(None, &[900], &tokens) };
    rig.blocks.stored(&again, &mut rig.ops);
    let window = BlockStored { group: Some(1), attention: WINDOW, ..store(None, &[900], &[]) };
    rig.blocks.stored(&window, &mut rig.ops);
    rig.index.take(&mut rig.ops);
    for id in [0, 7, u64::MAX, 1 << 63] {
        assert_eq!(rig.blocks.hash_of(rig.blocks.id(id, 3), 3), id);
    }
    rig.remove(1, 0);
    assert_eq!(rig.held(0), [0, 1], "the other hash is held");
    rig.store(1, WINDOW, 0..1);
    rig.remove(0, 0);
    assert_eq!(rig.held(0), [0, 1]);
    rig.remove(0, 800);
    assert_eq!(rig.held(0), [1], "no hash of the text is on the device");
}

#[test]
fn what_cannot_be_understood_leaves_an_upper_bound() {
    type Lie = fn(&mut Rig);
    let lies: [(&str, Lie); 5] = [
        ("another length", |rig| rig.store(1, Attention::Window(50), 4..5)),
        ("another kind", |rig| rig.store(1, Attention::State, 4..5)),
        ("no known kind", |rig| rig.store(2, Attention::Other, 4..5)),
        ("a window too long to count", |rig| rig.store(2, Attention::Window(u32::MAX), 4..5)),
        ("too many groups", |rig| (2..40).for_each(|group| rig.store(group, WINDOW, 0..1))),
    ];
    for (what, lie) in lies {
        let mut rig = Rig::new(1_000);
        rig.store(0, Attention::Whole, 0..4);
        rig.store(1, WINDOW, 0..4);
        lie(&mut rig);
        assert_eq!(rig.blocks.resume(), Resume::Unknown, "{what}");
        let bytes = rig.blocks.size().bytes;
        (0..1_000).for_each(|_| rig.store(1, WINDOW, 5..9));
        assert_eq!(rig.blocks.size().bytes, bytes, "{what}: nothing is kept any more");
        rig.blocks.clear(&mut rig.ops);
        rig.index.take(&mut rig.ops);
        assert_eq!((rig.blocks.resume(), rig.held(0)), (Resume::Anywhere, vec![]));
    }
}

#[test]
fn windows_count_against_the_limit_of_the_rank() {
    let mut rig = Rig::new(20);
    rig.store(0, Attention::Whole, 0..10);
    rig.store(1, WINDOW, 0..10);
    assert_eq!(rig.blocks.resume(), Resume::Windows([Some(2), None]));
    rig.store(1, WINDOW, 10..11);
    assert_eq!(rig.blocks.resume(), Resume::Unknown);
}

proptest! {
    /// Against sets of what each group holds.
    #[test]
    fn agrees_with_plain_sets(
        steps in proptest::collection::vec((0..4_u32, any::<bool>(), 0..12_u64, 1..6_u64), 1..80),
    ) {
        let mut rig = Rig::new(10_000);
        let kinds = [Attention::Whole, WINDOW, WINDOW, Attention::State];
        let mut stores: BTreeMap<(u32, u64), u32> = BTreeMap::new();
        // All groups are met at the start, as in the first batch of an engine.
        for (group, kind) in (0..4).zip(kinds) {
            rig.store(group, kind, 0..1);
            stores.insert((group, 0), 1);
        }
        for (group, is_store, first, count) in steps {
            let kind = kinds[group as usize];
            let range = first..first + count;
            if is_store {
                // The parent of a whole block is held, so that it is no orphan.
                let known = first == 0 || stores.contains_key(&(0, first - 1));
                if kind == Attention::Whole && !known {
                    continue;
                }
                rig.store(group, kind, range.clone());
                range.for_each(|at| *stores.entry((group, at)).or_insert(0) += 1);
            } else {
                for at in range {
                    rig.remove(group, at);
                    if let Some(left) = stores.get_mut(&(group, at)) {
                        *left -= 1;
                        if *left == 0 {
                            stores.remove(&(group, at));
                        }
                    }
                }
            }
            let of = |group: u32| -> BTreeSet<u64> {
                (0..30).filter(|at| stores.contains_key(&(group, *at))).collect()
            };
            let first: BTreeSet<u64> = &(&of(0) & &of(1)) & &of(2);
            let second: BTreeSet<u64> = &of(0) & &of(3);
            prop_assert_eq!(rig.held(0), first.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(rig.held(1), second.into_iter().collect::<Vec<_>>());
        }
        rig.blocks.clear(&mut rig.ops);
        rig.index.take(&mut rig.ops);
        prop_assert!(rig.index.windows.iter().all(BTreeSet::is_empty));
        prop_assert!(rig.index.keys().is_empty());
    }
}
