//! Operations under way from one rank's events to the slices of the index.

use super::tier::{TIERS, Tier};
use forebay_base::ShardIndex;
use forebay_index::{BlockKey, KvOp};
use std::collections::VecDeque;

/// By tree and slice, in the engine's order within each. Queues: what a snapshot told is long and
/// leaves in pieces.
#[derive(Debug)]
pub struct SliceOps {
    trees: [Vec<VecDeque<KvOp>>; TIERS],
}

impl SliceOps {
    /// Empty, for that many slices.
    #[must_use]
    pub fn new(shard_count: usize) -> Self {
        Self { trees: std::array::from_fn(|_| vec![VecDeque::new(); shard_count]) }
    }

    /// True if no slice has operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trees.iter().flatten().all(VecDeque::is_empty)
    }

    /// Gives memory back that nothing is in.
    pub(super) fn shrink(&mut self) {
        self.trees.iter_mut().flatten().for_each(VecDeque::shrink_to_fit);
    }

    /// The operations of every slice for what the device holds. Enough where lower tiers do not
    /// count.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = (ShardIndex, &mut VecDeque<KvOp>)> {
        self.trees_mut()
            .filter(|(tier, ..)| *tier == Tier::Device)
            .map(|(_, slice, ops)| (slice, ops))
    }

    /// The operations of every tree and slice; a tree is named by the last tier in it.
    pub fn trees_mut(&mut self) -> impl Iterator<Item = (Tier, ShardIndex, &mut VecDeque<KvOp>)> {
        Tier::ALL.into_iter().zip(&mut self.trees).flat_map(|(tier, slices)| {
            let number = move |(index, ops)| {
                ShardIndex::try_from_index(index).map(|slice| (tier, slice, ops))
            };
            slices.iter_mut().enumerate().filter_map(number)
        })
    }

    /// The rank now holds the block in those trees.
    pub(super) fn store(
        &mut self,
        trees: u8,
        slice: ShardIndex,
        parent: BlockKey,
        block: (BlockKey, u16),
    ) {
        let (key, block_bytes) = block;
        self.push(trees, slice, KvOp::Store { parent, key, block_bytes });
    }

    /// The rank no longer holds the block in those trees.
    pub(super) fn remove(&mut self, trees: u8, slice: ShardIndex, key: BlockKey) {
        self.push(trees, slice, KvOp::Remove { key });
    }

    fn push(&mut self, trees: u8, slice: ShardIndex, op: KvOp) {
        for (index, slices) in self.trees.iter_mut().enumerate() {
            if trees >> index & 1 == 0 {
                continue;
            }
            match slices.get_mut(slice.index()) {
                Some(ops) => ops.push_back(op),
                None => forebay_base::count_broken_invariant(),
            }
        }
    }
}
