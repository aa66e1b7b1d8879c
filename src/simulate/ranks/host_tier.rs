//! Copies of blocks in the memory of a rank's host, or in a pool that all ranks share. A block is
//! copied when it is full on the device. Eviction is LRU; within a sequence the last block goes
//! first.

use ahash::AHashMap;
use std::collections::VecDeque;

/// Blocks on the host of a rank, or in a pool.
#[derive(Clone, Debug)]
pub(crate) struct HostTier {
    capacity: usize,
    /// By block: the stamp of its last use.
    held: AHashMap<u32, u64>,
    /// Uses, oldest first. An entry with an old stamp is stale.
    uses: VecDeque<(u64, u32)>,
    stamp: u64,
}

impl HostTier {
    /// Capacity 0 disables the tier.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, held: AHashMap::new(), uses: VecDeque::new(), stamp: 0 }
    }

    pub(crate) const fn is_there(&self) -> bool {
        self.capacity > 0
    }

    pub(crate) fn contains(&self, block: u32) -> bool {
        self.held.contains_key(&block)
    }

    /// Records a use of a block; false if the block is not held.
    pub(crate) fn touch(&mut self, block: u32) -> bool {
        let Some(stamp) = self.held.get_mut(&block) else { return false };
        self.stamp += 1;
        *stamp = self.stamp;
        self.uses.push_back((self.stamp, block));
        if self.uses.len() > 4 * self.capacity.max(64) {
            let held = &self.held;
            self.uses.retain(|(stamp, block)| held.get(block) == Some(stamp));
        }
        true
    }

    /// Copies a block; returns the block that was evicted for it.
    pub(crate) fn copy(&mut self, block: u32) -> Option<u32> {
        self.held.insert(block, 0);
        self.touch(block);
        while self.held.len() > self.capacity {
            let (stamp, block) = self.uses.pop_front()?;
            if self.held.get(&block) == Some(&stamp) {
                self.held.remove(&block);
                return Some(block);
            }
        }
        None
    }
}
