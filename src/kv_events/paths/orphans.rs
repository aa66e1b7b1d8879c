//! Blocks that wait for an unknown parent: a start-up out of order, a replay that overlaps, batches
//! that were cut oddly. Each block waits by itself, with its text. Bounded in blocks and in bytes;
//! the oldest blocks are dropped first. Part of a rank's blocks, on the control plane's thread.

use super::tier::Tier;
use forebay_base::limits::{ORPHAN_BLOCKS_MAX, ORPHAN_BYTES_MAX};
use std::collections::{HashMap, VecDeque};

/// A block that waits for its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub(crate) id: u64,
    /// The hash in the engine's events.
    pub(crate) hash: u64,
    /// Id of the parent.
    pub(crate) parent: u64,
    /// The tier that stored the block.
    pub(crate) tier: Tier,
    pub(crate) block_tokens: u32,
    /// Text of the block.
    pub(crate) bytes: Box<[u8]>,
}

/// Memory of an orphan beside its text: places in the maps, with spare room.
pub(crate) const ORPHAN_OVERHEAD_BYTES: usize = 256;

/// The orphans of a rank, with their limits.
#[derive(Debug)]
pub(crate) struct Orphans {
    blocks_max: usize,
    bytes_max: usize,
    bytes: usize,
    /// Orphans by number, in the order of their arrival.
    waiting: HashMap<u64, Orphan, ahash::RandomState>,
    /// Numbers, the oldest first; may contain numbers that do not wait any more.
    order: VecDeque<u64>,
    by_parent: HashMap<u64, Vec<u64>, ahash::RandomState>,
    by_id: HashMap<u64, Vec<u64>, ahash::RandomState>,
    next: u64,
}

impl Default for Orphans {
    fn default() -> Self {
        Self::with_limits(ORPHAN_BLOCKS_MAX, ORPHAN_BYTES_MAX)
    }
}

impl Orphans {
    pub(crate) fn with_limits(blocks_max: usize, bytes_max: usize) -> Self {
        Self {
            blocks_max,
            bytes_max,
            bytes: 0,
            waiting: HashMap::default(),
            order: VecDeque::new(),
            by_parent: HashMap::default(),
            by_id: HashMap::default(),
            next: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes of text, with an estimate of the maps.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.waiting.len() * ORPHAN_OVERHEAD_BYTES
    }

    /// Adds an orphan; returns how many older orphans were dropped for it. `None` when it alone
    /// exceeds the limits.
    pub(crate) fn hold(&mut self, orphan: Orphan) -> Option<usize> {
        if orphan.bytes.len() > self.bytes_max || self.blocks_max == 0 {
            return None;
        }
        let mut dropped = 0;
        while self.waiting.len() >= self.blocks_max
            || self.bytes + orphan.bytes.len() > self.bytes_max
        {
            let Some(oldest) = self.order.pop_front() else { break };
            dropped += usize::from(self.take(oldest).is_some());
        }
        let number = self.next;
        self.next += 1;
        self.bytes += orphan.bytes.len();
        self.by_parent.entry(orphan.parent).or_default().push(number);
        self.by_id.entry(orphan.id).or_default().push(number);
        self.order.push_back(number);
        self.waiting.insert(number, orphan);
        if self.order.len() > 2 * self.waiting.len() + 64 {
            self.order.retain(|number| self.waiting.contains_key(number));
        }
        Some(dropped)
    }

    /// Takes out the orphans of a parent, the oldest first.
    pub(crate) fn children(&mut self, parent: u64) -> Vec<Orphan> {
        let numbers = self.by_parent.get(&parent).cloned().unwrap_or_default();
        numbers.into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Takes out the oldest orphan with that id and tier, which the engine has removed; false
    /// without such an orphan.
    pub(crate) fn remove(&mut self, id: u64, tier: Tier) -> bool {
        let numbers = self.by_id.get(&id).map(Vec::as_slice).unwrap_or_default();
        let of_tier =
            |number: &&u64| self.waiting.get(number).is_some_and(|orphan| orphan.tier == tier);
        let Some(number) = numbers.iter().find(of_tier).copied() else { return false };
        self.take(number).is_some()
    }

    /// The number that the next orphan will have.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// Drops the orphans before that number; returns how many.
    pub(crate) fn forget_before(&mut self, number: u64) -> usize {
        let mut count = 0;
        while let Some(oldest) = self.order.front().copied().filter(|oldest| *oldest < number) {
            self.order.pop_front();
            count += usize::from(self.take(oldest).is_some());
        }
        count
    }

    /// Drops all orphans; returns how many.
    pub(crate) fn clear(&mut self) -> usize {
        let count = self.waiting.len();
        *self = Self::with_limits(self.blocks_max, self.bytes_max);
        count
    }

    fn take(&mut self, number: u64) -> Option<Orphan> {
        let orphan = self.waiting.remove(&number)?;
        self.bytes = self.bytes.saturating_sub(orphan.bytes.len());
        for (map, of) in [(&mut self.by_parent, orphan.parent), (&mut self.by_id, orphan.id)] {
            if let Some(numbers) = map.get_mut(&of) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    map.remove(&of);
                }
            }
        }
        Some(orphan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphan(id: u64, parent: u64, text: &str) -> Orphan {
        Orphan {
            id,
            hash: id,
            parent,
            tier: Tier::Device,
            block_tokens: 1,
            bytes: text.as_bytes().into(),
        }
    }

    #[test]
    fn children_come_in_order_and_once() {
        let mut orphans = Orphans::default();
        for (id, parent) in [(1, 9), (2, 9), (3, 1), (1, 9)] {
            assert_eq!(orphans.hold(orphan(id, parent, "ab")), Some(0));
        }
        let ids: Vec<u64> = orphans.children(9).iter().map(|orphan| orphan.id).collect();
        assert_eq!(ids, [1, 2, 1]);
        assert!(orphans.children(9).is_empty());
        assert_eq!((orphans.len(), orphans.bytes()), (1, 2 + ORPHAN_OVERHEAD_BYTES));
        assert!(!orphans.remove(3, Tier::Host) && orphans.remove(3, Tier::Device));
        assert!(orphans.is_empty() && !orphans.remove(3, Tier::Device));
    }

    #[test]
    fn the_oldest_make_room() {
        let mut orphans = Orphans::with_limits(3, 10);
        for id in 1..=3 {
            assert_eq!(orphans.hold(orphan(id, 9, "ab")), Some(0));
        }
        assert_eq!(orphans.hold(orphan(4, 9, "ab")), Some(1), "too many");
        assert_eq!(orphans.hold(orphan(5, 9, "abcdefgh")), Some(2), "too long together");
        assert_eq!(orphans.hold(orphan(6, 9, "abcdefghijk")), None, "too long by itself");
        let ids: Vec<u64> = orphans.children(9).iter().map(|orphan| orphan.id).collect();
        assert_eq!(ids, [4, 5]);
        for id in 0..10_000 {
            orphans.hold(orphan(id, 9, "a"));
            orphans.remove(id, Tier::Device);
        }
        assert!(orphans.order.len() < 200, "the numbers of those that went do not pile up");
        let next = orphans.next_number();
        for id in 0..3 {
            orphans.hold(orphan(id, 2, "a"));
        }
        assert_eq!((orphans.forget_before(next + 2), orphans.len()), (2, 1), "two came before");
        assert_eq!((orphans.clear(), orphans.bytes()), (1, 0));
    }
}
