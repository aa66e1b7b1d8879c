//! The KV cache of a rank, in blocks of the trace: held blocks, their users, the eviction order. A
//! block without a user stays until its room is needed. Eviction is LRU by release; within a
//! sequence the last block goes first, as in vLLM.

use crate::ranks::cache_blocks::{BlockSlot, CacheBlocks};
use crate::ranks::host_tier::HostTier;
use std::cell::RefCell;
use std::rc::Rc;

/// A block was stored or removed, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheChange {
    Stored(u32),
    Evicted(u32),
    /// The device or the host has the block now, and neither had it before.
    Reached(u32),
    /// Neither device nor host has the block any more.
    Lost(u32),
    /// The rank wrote the block to the pool, which did not hold it. The pool's own evictions are
    /// silent.
    Pooled(u32),
}

impl CacheChange {
    pub(crate) const fn block(self) -> u32 {
        match self {
            Self::Stored(block) | Self::Evicted(block) => block,
            Self::Reached(block) | Self::Lost(block) | Self::Pooled(block) => block,
        }
    }
}

/// The store that all ranks write full blocks to and load blocks from. A run is single-threaded.
pub(crate) type PoolHandle = Rc<RefCell<HostTier>>;

/// Blocks of a rank. A loose block is in use and not shareable, since it is not full yet.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    capacity: usize,
    held: CacheBlocks,
    loose: usize,
    host: HostTier,
    pool: Option<PoolHandle>,
    /// Changes since the last [`Self::take_changes`].
    changes: Vec<CacheChange>,
}

impl KvCache {
    pub(crate) fn new(capacity: usize, host_capacity: usize) -> Self {
        Self {
            capacity,
            held: CacheBlocks::new(),
            loose: 0,
            host: HostTier::new(host_capacity),
            pool: None,
            changes: Vec::new(),
        }
    }

    /// The same cache with a pool.
    pub(crate) fn with_pool(self, pool: Option<PoolHandle>) -> Self {
        Self { pool, ..self }
    }

    pub(crate) fn take_changes(&mut self) -> Vec<CacheChange> {
        std::mem::take(&mut self.changes)
    }

    /// Blocks in use by sequences.
    pub(crate) fn used(&self) -> usize {
        self.held.count() - self.held.idle_count() + self.loose
    }

    pub(crate) fn held_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.held.blocks()
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The leading blocks of the path that are held. Reserves room for `all`.
    pub(crate) fn prefix(&self, path: impl Iterator<Item = u32>, all: usize) -> Vec<BlockSlot> {
        let mut found = Vec::with_capacity(all);
        self.held.prefix(path, &mut found);
        found
    }

    /// Count of leading blocks on the host.
    pub(crate) fn host_prefix(&self, path: impl Iterator<Item = u32>) -> usize {
        if !self.host.is_there() {
            return 0;
        }
        path.take_while(|&block| self.host.contains(block)).count()
    }

    /// Count of leading blocks in the pool. Counts as a use of them.
    pub(crate) fn pool_prefix(&self, path: impl Iterator<Item = u32>) -> usize {
        let Some(pool) = &self.pool else { return 0 };
        let mut pool = pool.borrow_mut();
        path.take_while(|&block| pool.touch(block)).count()
    }

    /// Adds a user to held blocks and allocates loose blocks; false if there is no room.
    pub(crate) fn admit(&mut self, shared: &[BlockSlot], loose: usize) -> bool {
        let woken = shared.iter().filter(|slot| self.held.is_idle(**slot)).count();
        if self.used() + woken + loose > self.capacity {
            return false;
        }
        shared.iter().for_each(|&slot| self.held.acquire(slot));
        self.loose += loose;
        self.make_room();
        true
    }

    /// Makes a full loose block shareable.
    pub(crate) fn commit(&mut self, block: u32) -> BlockSlot {
        self.loose -= 1;
        let (slot, is_new) = self.held.hold(block);
        // Otherwise another sequence has computed the same block.
        if is_new {
            self.changes.push(CacheChange::Stored(block));
            if self.host.is_there() && !self.host.contains(block) {
                self.changes.push(CacheChange::Reached(block));
                let gone = self.host.copy(block).filter(|gone| !self.held.contains(*gone));
                self.changes.extend(gone.map(CacheChange::Lost));
            }
            if let Some(pool) = &self.pool {
                let mut pool = pool.borrow_mut();
                if !pool.touch(block) {
                    pool.copy(block);
                    self.changes.push(CacheChange::Pooled(block));
                }
            }
        }
        slot
    }

    /// Releases committed blocks, the last first, and loose blocks.
    pub(crate) fn release(&mut self, shared: &[BlockSlot], loose: usize) {
        self.loose -= loose;
        for &slot in shared.iter().rev() {
            self.held.release(slot);
            if self.host.is_there() {
                self.host.touch(self.held.block(slot));
            }
        }
    }

    fn make_room(&mut self) {
        while self.held.count() + self.loose > self.capacity {
            let Some(block) = self.held.evict() else { break };
            self.changes.push(CacheChange::Evicted(block));
            if self.host.is_there() && !self.host.contains(block) {
                self.changes.push(CacheChange::Lost(block));
            }
        }
    }
}
