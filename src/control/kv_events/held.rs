//! The blocks of one rank as data: what a feed keeps of them, and what a snapshot takes from there and brings back. Plain
//! maps of plain values, so that a copy is as good as a `memcpy` and can be worked on by another thread.

use super::blocks::SliceOps;
use crate::base::ShardIndex;
use crate::block::BlockKey;
use crate::mailbox::KvOp;
use crate::snapshot::{Block, EngineHash};
use std::collections::HashMap;

/// All blocks of one rank.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// By the engine's hash and attention group.
    pub(super) hashes: HashMap<(u64, u32), HashEntry, ahash::RandomState>,
    /// By our key.
    pub(super) keys: HashMap<BlockKey, KeyEntry, ahash::RandomState>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HashEntry {
    pub(super) key: BlockKey,
    pub(super) stores: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct KeyEntry {
    pub(super) parent: BlockKey,
    pub(super) hashes: u32,
    pub(super) length: BlockLength,
    pub(super) slice: ShardIndex,
}

// Two thirds of a feed's memory are these; see `TRACKED_BLOCK_BYTES`.
const _: () = assert!(size_of::<(BlockKey, KeyEntry)>() == 24);

/// Bytes of a block, with a bit that says whether it is the first of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockLength(u16);

impl BlockLength {
    /// Lengths stay below it: `BLOCK_BYTES_MAX`.
    const FIRST: u16 = 1 << 15;

    pub(super) fn new(block_bytes: u16, is_first: bool) -> Self {
        Self(block_bytes & !Self::FIRST | if is_first { Self::FIRST } else { 0 })
    }

    fn bytes(self) -> u16 {
        self.0 & !Self::FIRST
    }

    fn is_first(self) -> bool {
        self.0 & Self::FIRST != 0
    }
}

impl Held {
    /// Blocks, by our key.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.keys.len()
    }

    /// Gives all blocks to `each`, a parent before its children.
    ///
    /// # Errors
    /// The first one of `each`.
    pub fn each<E>(
        &self,
        mut each: impl FnMut(&Block, &[EngineHash]) -> Result<(), E>,
    ) -> Result<(), E> {
        let order = self.parents_first();
        let positions: HashMap<BlockKey, usize, ahash::RandomState> =
            order.iter().enumerate().map(|(position, key)| (*key, position)).collect();
        let mut names: Vec<(usize, EngineHash)> = self
            .hashes
            .iter()
            .filter_map(|(&(hash, group), entry)| {
                let name = EngineHash { hash, group, stores: entry.stores };
                Some((*positions.get(&entry.key)?, name))
            })
            .collect();
        drop(positions);
        names.sort_unstable_by_key(|(position, name)| (*position, name.hash, name.group));
        let mut names = names.into_iter().peekable();
        let mut of_block = Vec::new();
        for (position, key) in order.into_iter().enumerate() {
            of_block.clear();
            while let Some((_, name)) = names.next_if(|(of, _)| *of == position) {
                of_block.push(name);
            }
            if let Some(entry) = self.keys.get(&key) {
                each(&entry.as_block(key), &of_block)?;
            }
        }
        Ok(())
    }

    /// All keys, each after its parent if that is held.
    fn parents_first(&self) -> Vec<BlockKey> {
        let mut placed = std::collections::HashSet::with_capacity_and_hasher(
            self.keys.len(),
            ahash::RandomState::new(),
        );
        let mut order = Vec::with_capacity(self.keys.len());
        let mut path = Vec::new();
        for &key in self.keys.keys() {
            let mut at = key;
            // A key that is met again (keys that collide could make a circle) ends the path as well.
            while let Some(entry) = self.keys.get(&at)
                && placed.insert(at)
            {
                path.push(at);
                at = entry.parent;
            }
            order.extend(path.drain(..).rev());
        }
        order
    }
}

impl KeyEntry {
    fn as_block(&self, key: BlockKey) -> Block {
        Block {
            parent: self.parent,
            key,
            block_bytes: self.length.bytes(),
            is_first: self.length.is_first(),
            slice: self.slice,
        }
    }
}

/// Puts a rank's blocks together again from what a snapshot tells, a parent before its children.
#[derive(Debug)]
pub struct Restoring {
    held: Held,
    ops: SliceOps,
    slice_of: fn(BlockKey, usize) -> ShardIndex,
    shard_count: usize,
    /// False if the index had another number of slices: then a path is placed by its first block.
    slices_hold: bool,
    entries_max: usize,
    left: Left,
}

/// Blocks that were not taken, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The rank may not track so many.
    pub over_limit: usize,
    /// Their path does not reach its first block, and the index has another number of slices now.
    pub orphans: usize,
    /// Said twice, or impossible.
    pub odd: usize,
}

impl Restoring {
    /// Nothing yet. `slice_count` is that of the index that the snapshot was taken from.
    #[must_use]
    pub fn new(
        slice_of: fn(BlockKey, usize) -> ShardIndex,
        shard_count: usize,
        slice_count: usize,
        entries_max: usize,
    ) -> Self {
        Self {
            held: Held::default(),
            ops: SliceOps::new(shard_count),
            slice_of,
            shard_count,
            slices_hold: shard_count == slice_count,
            entries_max,
            left: Left::default(),
        }
    }

    /// Makes room at once for what will come.
    pub fn reserve(&mut self, block_count: usize) {
        let block_count = block_count.min(self.entries_max);
        self.held.keys.reserve(block_count);
        self.held.hashes.reserve(block_count);
    }

    /// Takes the next block.
    pub fn add(&mut self, block: &Block, names: &[EngineHash]) {
        if self.held.hashes.len().saturating_add(names.len()) > self.entries_max {
            self.left.over_limit += 1;
            return;
        }
        let Some(slice) = self.slice(block) else {
            self.left.orphans += 1;
            return;
        };
        let is_known = |name: &EngineHash| self.held.hashes.contains_key(&(name.hash, name.group));
        let odd = names.is_empty()
            || self.held.keys.contains_key(&block.key)
            || slice.index() >= self.shard_count
            || names.iter().any(is_known);
        if odd {
            self.left.odd += 1;
            return;
        }
        let mut hashes = 0;
        for name in names {
            let entry = HashEntry { key: block.key, stores: name.stores };
            hashes += u32::from(self.held.hashes.insert((name.hash, name.group), entry).is_none());
        }
        let length = BlockLength::new(block.block_bytes, block.is_first);
        let entry = KeyEntry { parent: block.parent, hashes, length, slice };
        self.held.keys.insert(block.key, entry);
        let &Block { parent, key, block_bytes, .. } = block;
        self.ops.push(slice, KvOp::Store { parent, key, block_bytes });
    }

    /// All blocks, what tells the index of them, and what was left.
    #[must_use]
    pub fn finish(self) -> (Held, SliceOps, Left) {
        (self.held, self.ops, self.left)
    }

    fn slice(&self, block: &Block) -> Option<ShardIndex> {
        if block.is_first {
            return Some((self.slice_of)(block.key, self.shard_count));
        }
        let of_parent = self.held.keys.get(&block.parent).map(|entry| entry.slice);
        of_parent.or_else(|| self.slices_hold.then_some(block.slice))
    }
}
