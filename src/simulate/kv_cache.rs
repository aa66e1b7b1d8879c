//! The KV cache of one rank, in blocks of the trace: what is held, who uses it, what goes first.
//! A block without a user stays until its room is wanted. The block that was released longest ago
//! goes first, and of one sequence the last block first, as in vLLM.

use crate::host_tier::HostTier;
use ahash::AHashMap;
use std::collections::VecDeque;

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

#[derive(Clone, Copy, Debug)]
struct HeldBlock {
    users: u32,
    /// Of its last release.
    stamp: u64,
}

/// Blocks of one rank. A loose block is in use and cannot be found: it is not full yet.
#[derive(Debug)]
pub(crate) struct KvCache {
    capacity: usize,
    held: AHashMap<u32, HeldBlock>,
    /// Released blocks, oldest first; entries whose stamp is old are void.
    idle: VecDeque<(u64, u32)>,
    idle_count: usize,
    loose: usize,
    stamp: u64,
    host: HostTier,
    /// Since the last look, see [`Self::take_changes`].
    changes: Vec<CacheChange>,
}

impl KvCache {
    pub(crate) fn new(capacity: usize, host_capacity: usize) -> Self {
        Self {
            capacity,
            held: AHashMap::with_capacity(capacity.min(1 << 16)),
            idle: VecDeque::new(),
            idle_count: 0,
            loose: 0,
            stamp: 0,
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

    /// How many of these blocks are held, from the first on.
    pub(crate) fn prefix(&self, mut path: impl Iterator<Item = u32>) -> usize {
        let mut found = 0;
        while path.next().is_some_and(|block| self.held.contains_key(&block)) {
            found += 1;
        }
        found
    }

    /// How many of these blocks the host has, from the first on.
    pub(crate) fn host_prefix(&self, path: impl Iterator<Item = u32>) -> usize {
        path.take_while(|&block| self.host.contains(block)).count()
    }

    /// Uses held blocks and takes loose ones beside them; false if there is no room.
    pub(crate) fn admit(
        &mut self,
        shared: impl Iterator<Item = u32> + Clone,
        loose: usize,
    ) -> bool {
        let is_idle = |block: &u32| self.held.get(block).is_some_and(|held| held.users == 0);
        let woken = shared.clone().filter(is_idle).count();
        if self.used() + woken + loose > self.capacity {
            return false;
        }
        for block in shared {
            if let Some(held) = self.held.get_mut(&block) {
                self.idle_count -= usize::from(held.users == 0);
                held.users += 1;
            }
        }
        self.loose += loose;
        self.make_room();
        true
    }

    /// A loose block is full: it can be found from now on.
    pub(crate) fn commit(&mut self, block: u32) {
        self.loose -= 1;
        if let Some(held) = self.held.get_mut(&block) {
            // Another sequence computed the same meanwhile.
            self.idle_count -= usize::from(held.users == 0);
            held.users += 1;
            return;
        }
        self.held.insert(block, HeldBlock { users: 1, stamp: 0 });
        self.changes.push(CacheChange::Stored(block));
        if self.host.is_there() && !self.host.contains(block) {
            self.changes.push(CacheChange::Reached(block));
            let gone = self.host.copy(block).filter(|gone| !self.held.contains_key(gone));
            self.changes.extend(gone.map(CacheChange::Lost));
        }
    }

    /// Ends the use of committed blocks, given last first, and of loose ones.
    pub(crate) fn release(&mut self, shared: impl Iterator<Item = u32>, loose: usize) {
        self.loose -= loose;
        for block in shared {
            self.host.touch(block);
            let Some(held) = self.held.get_mut(&block) else { continue };
            held.users -= 1;
            if held.users == 0 {
                self.stamp += 1;
                held.stamp = self.stamp;
                self.idle.push_back((self.stamp, block));
                self.idle_count += 1;
            }
        }
        if self.idle.len() > 4 * self.capacity.max(64) {
            let held = &self.held;
            self.idle.retain(|(stamp, block)| is_valid(held, *stamp, *block));
        }
    }

    fn make_room(&mut self) {
        while self.held.len() + self.loose > self.capacity {
            let Some((stamp, block)) = self.idle.pop_front() else { break };
            if is_valid(&self.held, stamp, block) {
                self.held.remove(&block);
                self.idle_count -= 1;
                self.changes.push(CacheChange::Evicted(block));
                if self.host.is_there() && !self.host.contains(block) {
                    self.changes.push(CacheChange::Lost(block));
                }
            }
        }
    }
}

fn is_valid(held: &AHashMap<u32, HeldBlock>, stamp: u64, block: u32) -> bool {
    held.get(&block).is_some_and(|held| held.users == 0 && held.stamp == stamp)
}
