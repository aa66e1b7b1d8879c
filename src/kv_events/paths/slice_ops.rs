//! Operations on their way from a rank's events to the slices of the index.

use super::tier::{TIERS, Tier, Tree};
use forebay_base::ShardIndex;
use forebay_index::{BlockKey, KvOp, WINDOWS_MAX};
use std::collections::VecDeque;

/// Operations by tree and slice, in the engine's order within each. Queues, because the operations
/// of a snapshot are many and leave in pieces.
#[derive(Debug)]
pub struct SliceOps {
    trees: [Vec<VecDeque<KvOp>>; TIERS],
    /// No slices before the first operation.
    windows: [Vec<VecDeque<KvOp>>; WINDOWS_MAX],
    /// Of the blocks of the second size. No slices before the first operation.
    odd: [Vec<VecDeque<KvOp>>; 1],
}

impl SliceOps {
    /// No operations, for that many slices.
    #[must_use]
    pub fn new(shard_count: usize) -> Self {
        Self {
            trees: std::array::from_fn(|_| vec![VecDeque::new(); shard_count]),
            windows: Default::default(),
            odd: Default::default(),
        }
    }

    /// True if no slice has operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trees.iter().chain(&self.windows).chain(&self.odd).flatten().all(VecDeque::is_empty)
    }

    /// Frees unused memory of the queues.
    pub(crate) fn shrink(&mut self) {
        let trees = self.trees.iter_mut().chain(&mut self.windows).chain(&mut self.odd);
        trees.flatten().for_each(VecDeque::shrink_to_fit);
    }

    /// The operations of every slice for the tree of the device. Enough where lower tiers and
    /// windows do not count.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = (ShardIndex, &mut VecDeque<KvOp>)> {
        self.trees_mut()
            .filter(|(tree, ..)| *tree == Tree::Tier(Tier::Device))
            .map(|(_, slice, ops)| (slice, ops))
    }

    /// The operations of every tree and slice. The device is first, because windows and the tree of
    /// the second size hold blocks of its tree.
    pub fn trees_mut(&mut self) -> impl Iterator<Item = (Tree, ShardIndex, &mut VecDeque<KvOp>)> {
        let tiers = Tier::ALL.into_iter().map(Tree::Tier).zip(&mut self.trees);
        let windows = (0..WINDOWS_MAX).map(Tree::Window).zip(&mut self.windows);
        let odd = std::iter::once(Tree::Odd).zip(&mut self.odd);
        tiers.chain(windows).chain(odd).flat_map(|(tree, slices)| {
            let number = move |(index, ops)| {
                ShardIndex::try_from_index(index).map(|slice| (tree, slice, ops))
            };
            slices.iter_mut().enumerate().filter_map(number)
        })
    }

    /// The first slice with operations of a tier's tree, and the operations.
    pub(crate) fn next_of(&self, tier: Tier) -> Option<(ShardIndex, &VecDeque<KvOp>)> {
        let mut slices = self.trees.get(tier.index())?.iter().enumerate();
        let (index, ops) = slices.find(|(_, ops)| !ops.is_empty())?;
        Some((ShardIndex::try_from_index(index)?, ops))
    }

    /// Adds a block to trees, given as bits.
    pub(crate) fn store(
        &mut self,
        trees: u8,
        slice: ShardIndex,
        parent: BlockKey,
        block: (BlockKey, u16),
    ) {
        let (key, block_bytes) = block;
        self.push(trees, slice, KvOp::Store { parent, key, block_bytes });
    }

    /// Removes a block from trees, given as bits.
    pub(crate) fn remove(&mut self, trees: u8, slice: ShardIndex, key: BlockKey) {
        self.push(trees, slice, KvOp::Remove { key });
    }

    /// Adds a block of the device to windows, given as bits.
    pub(crate) fn hold(&mut self, windows: u8, slice: ShardIndex, key: BlockKey) {
        self.push_window(windows, slice, KvOp::Hold { key });
    }

    /// Removes a block from windows, given as bits.
    pub(crate) fn release(&mut self, windows: u8, slice: ShardIndex, key: BlockKey) {
        self.push_window(windows, slice, KvOp::Remove { key });
    }

    /// Marks a block of the device as one of the second size.
    pub(crate) fn hold_odd(&mut self, slice: ShardIndex, key: BlockKey) {
        self.push_odd(slice, KvOp::Hold { key });
    }

    /// Ends the mark of [`Self::hold_odd`].
    pub(crate) fn release_odd(&mut self, slice: ShardIndex, key: BlockKey) {
        self.push_odd(slice, KvOp::Remove { key });
    }

    fn push_odd(&mut self, slice: ShardIndex, op: KvOp) {
        let shard_count = self.trees.first().map_or(0, Vec::len);
        self.odd.iter_mut().for_each(|slices| slices.resize_with(shard_count, VecDeque::new));
        push(&mut self.odd, 1, slice, op);
    }

    fn push_window(&mut self, windows: u8, slice: ShardIndex, op: KvOp) {
        if windows == 0 {
            return;
        }
        let shard_count = self.trees.first().map_or(0, Vec::len);
        self.windows.iter_mut().for_each(|slices| slices.resize_with(shard_count, VecDeque::new));
        push(&mut self.windows, windows, slice, op);
    }

    fn push(&mut self, trees: u8, slice: ShardIndex, op: KvOp) {
        push(&mut self.trees, trees, slice, op);
    }
}

fn push(trees: &mut [Vec<VecDeque<KvOp>>], wanted: u8, slice: ShardIndex, op: KvOp) {
    for (index, slices) in trees.iter_mut().enumerate() {
        if wanted >> index & 1 == 0 {
            continue;
        }
        match slices.get_mut(slice.index()) {
            Some(ops) => ops.push_back(op),
            None => forebay_base::count_broken_invariant(),
        }
    }
}
