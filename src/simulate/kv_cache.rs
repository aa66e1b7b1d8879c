//! The KV cache of one rank, in blocks of the trace: what is held, who uses it, what goes first.
//! A block without a user stays until its room is wanted. The block that was released longest ago
//! goes first, and of one sequence the last block first, as in vLLM.

use crate::host_tier::HostTier;
use ahash::AHashMap;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;

/// A block was stored or went, in the order of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheChange {
    Stored(u32),
    Evicted(u32),
    /// The device or the host has it now, and neither had it before.
    Reached(u32),
    /// Neither has it any more.
    Lost(u32),
}

/// Place of a held block. It is another block's once this one is gone, and no sequence uses a block
/// that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSlot(u32);

#[derive(Clone, Copy, Debug)]
struct HeldBlock {
    block: u32,
    users: u32,
    /// Of its last release; 0: it is in its first use, or gone.
    stamp: u64,
}

/// Blocks of one rank. A loose block is in use and cannot be found: it is not full yet.
#[derive(Debug)]
pub(crate) struct KvCache {
    capacity: usize,
    held: AHashMap<u32, BlockSlot>,
    slots: BlockSlots,
    /// Released blocks, oldest first; entries whose stamp is old are void.
    idle: VecDeque<(u64, BlockSlot)>,
    idle_count: usize,
    loose: usize,
    host: HostTier,
    /// Since the last look, see [`Self::take_changes`].
    changes: Vec<CacheChange>,
}

/// The held blocks by place: a sequence finds those that it uses without a look at the table.
#[derive(Debug, Default)]
struct BlockSlots {
    blocks: Vec<HeldBlock>,
    free: Vec<BlockSlot>,
    /// Of the last release of all.
    stamp: u64,
}

impl KvCache {
    pub(crate) fn new(capacity: usize, host_capacity: usize) -> Self {
        Self {
            capacity,
            held: AHashMap::with_capacity(capacity.min(1 << 16)),
            slots: BlockSlots::default(),
            idle: VecDeque::new(),
            idle_count: 0,
            loose: 0,
            host: HostTier::new(host_capacity),
            changes: Vec::new(),
        }
    }

    pub(crate) fn take_changes(&mut self) -> Vec<CacheChange> {
        std::mem::take(&mut self.changes)
    }

    /// Blocks that sequences use now.
    pub(crate) fn used(&self) -> usize {
        self.held.len() - self.idle_count + self.loose
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The blocks of the path that are held, from the first on. Reserves room for `all`.
    pub(crate) fn prefix(&self, path: impl Iterator<Item = u32>, all: usize) -> Vec<BlockSlot> {
        let mut found = Vec::with_capacity(all);
        found.extend(path.map_while(|block| self.held.get(&block).copied()));
        found
    }

    /// How many of these blocks the host has, from the first on.
    pub(crate) fn host_prefix(&self, path: impl Iterator<Item = u32>) -> usize {
        if !self.host.is_there() {
            return 0;
        }
        path.take_while(|&block| self.host.contains(block)).count()
    }

    /// Uses held blocks and takes loose ones beside them; false if there is no room.
    pub(crate) fn admit(&mut self, shared: &[BlockSlot], loose: usize) -> bool {
        let woken = shared.iter().filter(|slot| self.slots.at(**slot).users == 0).count();
        if self.used() + woken + loose > self.capacity {
            return false;
        }
        for slot in shared {
            self.slots.at_mut(*slot).users += 1;
        }
        self.idle_count -= woken;
        self.loose += loose;
        self.make_room();
        true
    }

    /// A loose block is full: it can be found from now on.
    pub(crate) fn commit(&mut self, block: u32) -> BlockSlot {
        self.loose -= 1;
        let Self { held, slots, idle_count, .. } = self;
        let slot = match held.entry(block) {
            Entry::Occupied(there) => {
                // Another sequence computed the same meanwhile.
                let slot = *there.get();
                let there = slots.at_mut(slot);
                *idle_count -= usize::from(there.users == 0);
                there.users += 1;
                return slot;
            }
            Entry::Vacant(new) => *new.insert(slots.take(block)),
        };
        self.changes.push(CacheChange::Stored(block));
        if self.host.is_there() && !self.host.contains(block) {
            self.changes.push(CacheChange::Reached(block));
            let gone = self.host.copy(block).filter(|gone| !self.held.contains_key(gone));
            self.changes.extend(gone.map(CacheChange::Lost));
        }
        slot
    }

    /// Ends the use of committed blocks, the last first, and of loose ones.
    pub(crate) fn release(&mut self, shared: &[BlockSlot], loose: usize) {
        self.loose -= loose;
        for &slot in shared.iter().rev() {
            let held = self.slots.at_mut(slot);
            held.users -= 1;
            let block = held.block;
            if held.users == 0 {
                let stamp = self.slots.stamp(slot);
                self.idle.push_back((stamp, slot));
                self.idle_count += 1;
            }
            if self.host.is_there() {
                self.host.touch(block);
            }
        }
        if self.idle.len() > 4 * self.capacity.max(64) {
            let slots = &self.slots;
            self.idle.retain(|(stamp, slot)| slots.is_idle_since(*slot, *stamp));
        }
    }

    fn make_room(&mut self) {
        while self.held.len() + self.loose > self.capacity {
            let Some((stamp, slot)) = self.idle.pop_front() else { break };
            if !self.slots.is_idle_since(slot, stamp) {
                continue;
            }
            let block = self.slots.put(slot);
            self.held.remove(&block);
            self.idle_count -= 1;
            self.changes.push(CacheChange::Evicted(block));
            if self.host.is_there() && !self.host.contains(block) {
                self.changes.push(CacheChange::Lost(block));
            }
        }
    }
}

impl BlockSlots {
    fn at(&self, slot: BlockSlot) -> &HeldBlock {
        &self.blocks[slot.0 as usize]
    }

    fn at_mut(&mut self, slot: BlockSlot) -> &mut HeldBlock {
        &mut self.blocks[slot.0 as usize]
    }

    /// A place for a block with one user.
    fn take(&mut self, block: u32) -> BlockSlot {
        let new = HeldBlock { block, users: 1, stamp: 0 };
        if let Some(slot) = self.free.pop() {
            *self.at_mut(slot) = new;
            return slot;
        }
        self.blocks.push(new);
        BlockSlot(self.blocks.len() as u32 - 1)
    }

    /// The block there is gone; returns which.
    fn put(&mut self, slot: BlockSlot) -> u32 {
        self.free.push(slot);
        let gone = self.at_mut(slot);
        gone.stamp = 0;
        gone.block
    }

    /// Notes the end of the last use of a block.
    fn stamp(&mut self, slot: BlockSlot) -> u64 {
        self.stamp += 1;
        let stamp = self.stamp;
        self.at_mut(slot).stamp = stamp;
        stamp
    }

    fn is_idle_since(&self, slot: BlockSlot, stamp: u64) -> bool {
        let held = self.at(slot);
        held.users == 0 && held.stamp == stamp
    }
}
