//! [`RankBlocks`](super::RankBlocks) against a model that has no tricks: every hash with its counts
//! by tier and its whole text, and a list of what waits.

use super::restart_tests::restarted;
use super::tests::{Index, Letters, SHARDS, blocks, key_of, remove, store};
use super::*;
use crate::ledger::SAME_KEY_MAX;
use crate::paths::tier::TIERS;
use crate::ranks::restore_builder::OmittedEntries;
use forebay_kv_decode::Medium;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MEDIA: [Medium; TIERS] = [Medium::Device, Medium::Host, Medium::Disk];

type Name = (u64, u32);

#[derive(Clone, Debug)]
struct Block {
    text: String,
    counts: [u32; TIERS],
    trees: u8,
}

/// What the rank says it holds, told in the plainest way.
#[derive(Debug)]
struct Model {
    blocks: BTreeMap<Name, Block>,
    /// Own name, parent, tier, text.
    waiting: Vec<(Name, Name, usize, String)>,
    groups: Vec<u32>,
    trees: u8,
}

impl Model {
    fn store(&mut self, event: &BlockStored<'_>, tier: usize) {
        let group = event.group.unwrap();
        self.trees |= 1 << tier;
        if event.token_ids.is_empty() {
            event.hashes.iter().for_each(|hash| self.store_name((*hash, group), tier));
            return self.adopt();
        }
        if !self.groups.contains(&group) {
            self.groups.push(group);
        }
        let mut tip = match event.parent {
            None => Some(String::new()),
            Some(parent) => self.blocks.get(&(parent, group)).map(|block| block.text.clone()),
        };
        let mut parent = event.parent;
        for (hash, tokens) in event.hashes.iter().zip(event.token_ids.chunks(2)) {
            let name = (*hash, group);
            let text = text_of(tokens);
            tip = match (tip, self.blocks.get_mut(&name)) {
                (Some(before), _) => {
                    let text = before + &text;
                    if !self.add(name, tier, text.clone()) {
                        break;
                    }
                    Some(text)
                }
                (None, Some(known)) => {
                    known.counts[tier] += 1;
                    Some(known.text.clone())
                }
                (None, None) => {
                    self.waiting.push((name, (parent.unwrap(), group), tier, text));
                    None
                }
            };
            parent = Some(*hash);
        }
        self.adopt();
    }

    fn store_name(&mut self, name: Name, tier: usize) {
        if let Some(known) = self.blocks.get_mut(&name) {
            known.counts[tier] += 1;
            return;
        }
        let others = self.groups.iter().filter_map(|group| self.blocks.get(&(name.0, *group)));
        let Some(text) = others.map(|block| block.text.clone()).next() else { return };
        if self.has_too_many(&text) {
            return;
        }
        let same = self.blocks.values().filter(|block| block.text == text);
        let trees = same.fold(0, |all, block| all | block.trees) & behind(tier);
        let mut counts = [0; TIERS];
        counts[tier] = 1;
        self.blocks.insert(name, Block { text, counts, trees });
    }

    /// False for one more name of a text that has as many as it may have.
    fn add(&mut self, name: Name, tier: usize, text: String) -> bool {
        if !self.blocks.contains_key(&name) && self.has_too_many(&text) {
            return false;
        }
        let trees = self.trees & behind(tier);
        let block = self.blocks.entry(name).or_insert(Block { text, counts: [0; TIERS], trees: 0 });
        block.counts[tier] += 1;
        block.trees |= trees;
        true
    }

    fn has_too_many(&self, text: &str) -> bool {
        self.blocks.values().filter(|block| block.text == text).count() >= SAME_KEY_MAX
    }

    fn adopt(&mut self) {
        let ready = |model: &Self| {
            model.waiting.iter().position(|(_, parent, ..)| model.blocks.contains_key(parent))
        };
        while let Some(position) = ready(self) {
            let (name, parent, tier, text) = self.waiting.remove(position);
            let text = self.blocks[&parent].text.clone() + &text;
            let _ = self.add(name, tier, text);
        }
    }

    fn remove(&mut self, name: Name, tier: usize) {
        match self.blocks.get_mut(&name).filter(|block| block.counts[tier] > 0) {
            Some(block) => {
                block.counts[tier] -= 1;
                match block.counts.iter().position(|count| *count > 0) {
                    Some(lowest) => block.trees &= behind(lowest),
                    None => drop(self.blocks.remove(&name)),
                }
            }
            None => {
                let same =
                    |(own, _, of, _): &(Name, Name, usize, String)| *own == name && *of == tier;
                if let Some(position) = self.waiting.iter().position(same) {
                    self.waiting.remove(position);
                }
            }
        }
    }

    fn tree(&self, tree: usize) -> BTreeSet<u64> {
        let in_tree = self.blocks.values().filter(|block| block.trees >> tree & 1 == 1);
        in_tree.map(|block| key_of(&block.text)).collect()
    }

    /// What the tiers up to that one hold.
    fn truth(&self, tier: usize) -> BTreeSet<u64> {
        let there = |block: &&Block| block.counts[..=tier].iter().any(|count| *count > 0);
        self.blocks.values().filter(there).map(|block| key_of(&block.text)).collect()
    }
}

/// Trees of a tier and of those behind it.
fn behind(tier: usize) -> u8 {
    0b111 & (0b111 << tier)
}

fn text_of(tokens: &[u32]) -> String {
    tokens.iter().map(|token| char::from(b'a' + u8::try_from(token % 26).unwrap())).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Store {
        path: Vec<u32>,
        from: usize,
        group: u32,
        tier: usize,
    },
    Name {
        path: Vec<u32>,
        group: u32,
        tier: usize,
    },
    Remove {
        path: Vec<u32>,
        group: u32,
        tier: usize,
    },
    Clear,
    /// The router is stopped and started again.
    Restart,
}

/// An engine's hash: of the whole path of tokens.
fn hash_of(path: &[u32]) -> u64 {
    path.iter().fold(1, |hash, token| hash * 1_000 + u64::from(*token) + 1)
}

fn steps(names: bool) -> impl Strategy<Value = Vec<Step>> {
    // Tokens 0 and 26 have the same bytes; paths are 1 to 4 blocks of two equal tokens.
    let path = || {
        proptest::collection::vec(prop_oneof![3 => Just(0_u32), 1 => Just(26), 1 => Just(1)], 1..=4)
    };
    let group = || 0_u32..2;
    let tier = || prop_oneof![4 => Just(0_usize), 2 => Just(1), 1 => Just(2)];
    let step = prop_oneof![
        8 => (path(), 0_usize..4, group(), tier())
            .prop_map(|(path, from, group, tier)| Step::Store { path, from, group, tier }),
        2 * u32::from(names) => (path(), group(), 1_usize..3)
            .prop_map(|(path, group, tier)| Step::Name { path, group, tier }),
        6 => (path(), group(), tier())
            .prop_map(|(path, group, tier)| Step::Remove { path, group, tier }),
        1 => Just(Step::Clear),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 0..80)
}

fn apply(step: &Step, (blocks, ops): (&mut RankBlocks<Letters>, &mut SliceOps), model: &mut Model) {
    match step {
        Step::Store { path, from, group, tier } => {
            let from = *from.min(&(path.len() - 1));
            let hashes: Vec<u64> = (from..path.len()).map(|end| hash_of(&path[..=end])).collect();
            let tokens: Vec<u32> = path[from..].iter().flat_map(|token| [*token; 2]).collect();
            let parent = (from > 0).then(|| hash_of(&path[..from]));
            let plain = store(parent, &hashes, &tokens);
            let event = BlockStored { group: Some(*group), medium: MEDIA[*tier], ..plain };
            let _ = blocks.stored(&event, ops);
            model.store(&event, *tier);
        }
        Step::Name { path, group, tier } => {
            let hashes = [hash_of(path)];
            let event = BlockStored {
                group: Some(*group),
                medium: MEDIA[*tier],
                block_size_tokens: 0,
                ..store(None, &hashes, &[])
            };
            let _ = blocks.stored(&event, ops);
            model.store(&event, *tier);
        }
        Step::Remove { path, group, tier } => {
            let hashes = [hash_of(path)];
            let event =
                BlockRemoved { group: Some(*group), medium: MEDIA[*tier], ..remove(&hashes) };
            let _ = blocks.removed(&event, ops);
            model.remove((hashes[0], *group), *tier);
        }
        Step::Clear => {
            blocks.clear(ops);
            model.blocks.clear();
            model.waiting.clear();
        }
        Step::Restart => {
            model.waiting.clear();
            for block in model.blocks.values_mut() {
                // With its length known, a block is in all trees that it may be in.
                let lowest = block.counts.iter().position(|count| *count > 0).unwrap();
                block.trees = behind(lowest) & model.trees;
            }
        }
    }
}

/// Applies the steps to both, and compares after each. `names`: some steps name blocks without
/// their tokens.
fn agree(names: bool, steps: Vec<Step>, expected: bool) -> Result<(), TestCaseError> {
    let mut blocks = blocks(1_000);
    let mut ops = SliceOps::new(SHARDS);
    let mut index = Index::default();
    let tiers = || LowerTiers { host: true, disk: true, ttl: Duration::ZERO };
    blocks.set_lower_tiers(tiers());
    if expected {
        blocks.expect_lower_tiers();
    }
    let trees = if expected { 0b111 } else { 1 };
    let mut model =
        Model { blocks: BTreeMap::new(), waiting: Vec::new(), groups: Vec::new(), trees };
    for step in steps {
        apply(&step, (&mut blocks, &mut ops), &mut model);
        if matches!(step, Step::Restart) {
            let links = index.seen.values().copied().collect();
            let (again, restored, left) = restarted(&blocks, links, tiers(), 1_000);
            prop_assert_eq!(left, OmittedEntries::default());
            blocks = again;
            ops = restored;
            index = Index { seen: index.seen, ..Index::default() };
        }
        index.take(&mut ops);
        let trees = index.all_keys();
        let whole = [true, expected && !names, expected && !names];
        for (tier, tree) in trees.iter().enumerate() {
            prop_assert_eq!(tree, &model.tree(tier), "tree {}", tier);
            let truth = model.truth(tier);
            prop_assert!(tree.is_subset(&truth), "tree {} says too much", tier);
            // Without text a block cannot join a tree; and a block whose parent is not known was in
            // none.
            if whole[tier] && model.waiting.is_empty() && tier > 0 {
                prop_assert!(trees[tier - 1].is_subset(tree), "trees are nested");
            }
        }
        let size = blocks.size();
        prop_assert_eq!(size.blocks, model.blocks.len());
        prop_assert_eq!(size.orphans, model.waiting.len());
        for tier in 0..TIERS {
            let there = model.blocks.values().filter(|block| block.counts[tier] > 0).count();
            prop_assert_eq!(size.tier_blocks[tier], there);
        }
    }
    blocks.clear(&mut ops);
    index.take(&mut ops);
    prop_assert!(index.all_keys().iter().all(BTreeSet::is_empty) && blocks.is_empty());
    Ok(())
}

/// Engines of two groups that tokenize one text in five ways: the ninth name is refused.
#[test]
fn one_text_has_so_many_names_and_no_more() {
    let store = |path: &[u32], group| Step::Store { path: path.into(), from: 0, group, tier: 0 };
    let paths = [[0, 0, 0], [0, 26, 0], [26, 0, 0], [0, 0, 26], [26, 26, 0]];
    let steps = paths.iter().flat_map(|path| [store(path, 0), store(path, 1)]).collect();
    agree(false, steps, false).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn agrees_with_the_model(
        (names, steps) in any::<bool>().prop_flat_map(|names| (Just(names), steps(names))),
        expected in any::<bool>(),
    ) {
        agree(names, steps, expected)?;
    }
}
