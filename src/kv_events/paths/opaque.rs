//! Blocks without text to match, such as blocks of images. Their children have none either, and
//! without this list they would wait for a parent that never comes. Bounded; the oldest blocks are
//! dropped first.

use forebay_base::limits::OPAQUE_BLOCKS_MAX;
use std::collections::{HashSet, VecDeque};

/// Ids of a rank's blocks without text.
#[derive(Debug, Default)]
pub(crate) struct OpaqueBlocks {
    ids: HashSet<u64, ahash::RandomState>,
    order: VecDeque<u64>,
}

impl OpaqueBlocks {
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }

    pub(crate) fn add(&mut self, id: u64) {
        if !self.ids.insert(id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > OPAQUE_BLOCKS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Approximate bytes of both collections.
    pub(crate) fn bytes(&self) -> usize {
        (self.ids.capacity() + self.order.capacity()) * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let mut opaque = OpaqueBlocks::default();
        let most = u64::try_from(OPAQUE_BLOCKS_MAX).unwrap();
        for id in 0..most + 1 {
            opaque.add(id);
            opaque.add(id);
        }
        assert!(!opaque.contains(0) && opaque.contains(1) && opaque.contains(most));
        opaque.clear();
        assert!(!opaque.contains(most) && opaque.bytes() == 0);
    }
}
