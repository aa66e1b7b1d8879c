//! Blocks of several sizes: which of them the index marks, as events come.

use super::tests::{Index, SHARDS, blocks, remove, store};
use super::*;
use crate::paths::size_mix::DeviceSizes;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Tokens of a whole block, in parts of one token.
const WHOLE: u64 = 4;
const BLOCKS: u64 = 6;

/// A rank with a group of whole blocks that stores parts of its last block.
struct Rig {
    blocks: RankBlocks<super::tests::Letters>,
    ops: SliceOps,
    index: Index,
    /// Hashes on the device, as an engine counts them.
    held: BTreeSet<u64>,
}

impl Rig {
    fn new() -> Self {
        let ops = SliceOps::new(SHARDS);
        Self { blocks: blocks(1_000), ops, index: Index::default(), held: BTreeSet::new() }
    }

    /// Stores the blocks that end behind a token, of that size, if the engine has their parent.
    fn store(&mut self, end: u64, size: u64) {
        let parent = end.checked_sub(size).filter(|start| *start > 0);
        if parent.is_some_and(|parent| !self.held.contains(&parent)) || !self.held.insert(end) {
            return;
        }
        let tokens: Vec<u32> = (end - size..end).map(|at| u32::try_from(at).unwrap()).collect();
        let hashes = [end];
        let event = BlockStored {
            block_size_tokens: u32::try_from(size).unwrap(),
            group: Some(0),
            ..store(parent, &hashes, &tokens)
        };
        assert_eq!(self.blocks.stored(&event, &mut self.ops), BatchOutcome::Applied);
        self.index.take(&mut self.ops);
    }

    fn remove(&mut self, end: u64) {
        self.held.remove(&end);
        let hashes = [end];
        let event = BlockRemoved { group: Some(0), ..remove(&hashes) };
        self.blocks.removed(&event, &mut self.ops);
        self.index.take(&mut self.ops);
    }

    fn clear(&mut self) {
        self.held.clear();
        self.blocks.clear(&mut self.ops);
        self.index.take(&mut self.ops);
    }

    /// Keys of the device by the bytes of their block.
    fn keys(&self, block_bytes: u64) -> BTreeSet<u64> {
        let held = self.index.held.iter();
        held.filter(|(_, entry)| u64::from(entry.2) == block_bytes).map(|(key, _)| *key).collect()
    }
}

proptest! {
    /// The marked blocks are exactly the blocks of the second size, whatever comes and goes.
    #[test]
    fn the_blocks_of_the_second_size_are_marked(
        first in prop::sample::select(vec![1, WHOLE]),
        steps in prop::collection::vec((0..12_u8, 1..=BLOCKS * WHOLE), 1..200),
    ) {
        let mut rig = Rig::new();
        rig.store(first, first);
        for (step, token) in steps {
            match step {
                0..=4 => rig.store(token.next_multiple_of(WHOLE), WHOLE),
                5..=8 if token % WHOLE != 0 => rig.store(token, 1),
                5..=8 => {}
                9..=10 => rig.remove(token),
                _ if token == 1 => {
                    rig.clear();
                    rig.store(first, first);
                }
                _ => {}
            }
            let second = if first == WHOLE { 1 } else { WHOLE };
            prop_assert_eq!(&rig.index.odd, &rig.keys(second));
        }
    }
}

#[test]
fn sizes_are_known_once_a_second_size_is_matched() {
    let mut rig = Rig::new();
    rig.store(4, WHOLE);
    assert_eq!(rig.blocks.device_sizes(), DeviceSizes::default());
    // vllm#58119: a part with an unknown parent is not matched.
    let orphan =
        BlockStored { block_size_tokens: 1, group: Some(0), ..store(Some(77), &[78], &[9]) };
    assert_eq!(rig.blocks.stored(&orphan, &mut rig.ops), BatchOutcome::Orphaned);
    assert_eq!(rig.blocks.device_sizes(), DeviceSizes::default());
    rig.store(5, 1);
    let sizes = DeviceSizes { finer_tokens: 1, units: Some([1, 4]), aligned_tokens: 0 };
    assert_eq!(rig.blocks.device_sizes(), sizes);
    // A group of other sizes resumes only together with the first.
    let other = BlockStored { block_size_tokens: 2, group: Some(1), ..store(None, &[90], &[0, 1]) };
    rig.blocks.stored(&other, &mut rig.ops);
    assert_eq!(rig.blocks.device_sizes().aligned_tokens, 4);
    rig.clear();
    assert_eq!(rig.blocks.device_sizes(), DeviceSizes::default());
}

/// The part of a prompt shorter than a block is found under the root of whole blocks.
#[test]
fn parts_of_a_first_block_belong_to_the_prompts_of_whole_blocks() {
    let mut rig = Rig::new();
    rig.store(4, WHOLE);
    let parents = |rig: &Rig| rig.index.held.values().map(|entry| entry.1).collect::<BTreeSet<_>>();
    let root = parents(&rig);
    let part = BlockStored { block_size_tokens: 1, group: Some(0), ..store(None, &[60], &[8]) };
    rig.blocks.stored(&part, &mut rig.ops);
    rig.index.take(&mut rig.ops);
    assert_eq!((parents(&rig), rig.index.held.len()), (root, 2));
}
