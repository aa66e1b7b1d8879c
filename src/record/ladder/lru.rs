//! An LRU cache of prompt parts; of a prompt, the last part is dropped first.

use ahash::AHashMap;
use std::collections::VecDeque;

/// Keys of the parts in a cache. Memory grows with `capacity`, about 100 bytes a part.
#[derive(Debug)]
pub(super) struct PartCache {
    capacity: usize,
    stamps: AHashMap<u64, u64>,
    /// Uses, oldest first; only the last use of a key counts.
    uses: VecDeque<(u64, u64)>,
    stamp: u64,
    /// Parts dropped for lack of room.
    dropped: u64,
}

impl PartCache {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, stamps: AHashMap::new(), uses: VecDeque::new(), stamp: 0, dropped: 0 }
    }

    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn len(&self) -> usize {
        self.stamps.len()
    }

    /// Number of leading parts of `path` in the cache.
    pub(super) fn prefix(&self, path: &[u64]) -> usize {
        path.iter().take_while(|key| self.stamps.contains_key(*key)).count()
    }

    /// Adds the parts of a prompt, as far as there is room.
    pub(super) fn take(&mut self, path: &[u64]) {
        for &key in path.iter().rev() {
            self.stamp += 1;
            self.stamps.insert(key, self.stamp);
            self.uses.push_back((self.stamp, key));
        }
        while self.stamps.len() > self.capacity {
            let Some((stamp, key)) = self.uses.pop_front() else { break };
            if self.stamps.get(&key) == Some(&stamp) {
                self.stamps.remove(&key);
                self.dropped += 1;
            }
        }
        if self.uses.len() > 2 * self.stamps.len() + 1_024 {
            let stamps = &self.stamps;
            self.uses.retain(|(stamp, key)| stamps.get(key) == Some(stamp));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_of_one_prompt_its_end() {
        let mut cache = PartCache::new(4);
        cache.take(&[1, 2, 3]);
        cache.take(&[10]);
        cache.take(&[1, 2]);
        cache.take(&[20]);
        assert_eq!((cache.prefix(&[1, 2, 3]), cache.prefix(&[10])), (2, 1));
        cache.take(&[30]);
        assert_eq!((cache.prefix(&[1, 2]), cache.prefix(&[10]), cache.dropped()), (2, 0, 2));
        for _ in 0..10_000 {
            cache.take(&[1, 2]);
        }
        assert!(cache.uses.len() < 2_000 && cache.len() == 4);
    }
}
