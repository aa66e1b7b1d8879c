//! Estimate of the blocks in the pool. Engines report blocks that they store there, and pools evict
//! without an event: a block counts for `kv.tier_ttl` after its last store.

use ahash::AHashMap;
use forebay_base::NanosSinceStart;
use std::collections::VecDeque;
use std::time::Duration;

/// Blocks that a router believes the pool to hold.
#[derive(Debug)]
pub(crate) struct PoolEstimate {
    ttl: Duration,
    /// Last store of each block.
    stored_at: AHashMap<u32, NanosSinceStart>,
    /// Stores, oldest first. An entry older than the block's last store is stale.
    stores: VecDeque<(NanosSinceStart, u32)>,
}

impl PoolEstimate {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, stored_at: AHashMap::new(), stores: VecDeque::new() }
    }

    pub(crate) fn store(&mut self, block: u32, now: NanosSinceStart) {
        self.stored_at.insert(block, now);
        self.stores.push_back((now, block));
    }

    /// Removes the next block that is past `kv.tier_ttl`.
    pub(crate) fn expire(&mut self, now: NanosSinceStart) -> Option<u32> {
        while let Some(&(at, block)) = self.stores.front() {
            if at.plus(self.ttl) > now {
                break;
            }
            self.stores.pop_front();
            if self.stored_at.get(&block) == Some(&at) {
                self.stored_at.remove(&block);
                return Some(block);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_believed_for_a_time_after_its_last_store() {
        let at = |second: u64| NanosSinceStart(second * 1_000_000_000);
        let mut pool = PoolEstimate::new(Duration::from_secs(10));
        pool.store(1, at(0));
        pool.store(2, at(1));
        pool.store(1, at(5));
        assert_eq!(
            [9, 11, 11, 14, 15, 15].map(|second| pool.expire(at(second))),
            [None, Some(2), None, None, Some(1), None]
        );
    }
}
