//! The blocks that a rank stored last, with what they follow: a snapshot reads that from the index,
//! which may not have been told yet. At most a small part of what is held, so that it costs some 2
//! bytes a block.

use forebay_snapshot::Link;
use std::collections::VecDeque;

/// One block in so many that are held is remembered here.
const HELD_PER_RECENT: usize = 16;
/// Fewest and most that are remembered: a long prompt, and what a shard applies in some
/// milliseconds.
const RECENT_MIN: usize = 256;
const RECENT_MAX: usize = 8_192;

/// Oldest first; nothing unless it is to be kept.
#[derive(Debug, Default)]
pub(super) struct RecentLinks {
    is_enabled: bool,
    links: VecDeque<Link>,
}

impl RecentLinks {
    /// From now on.
    pub(super) fn enable(&mut self) {
        self.is_enabled = true;
    }

    /// A block was stored by a rank that holds so many.
    pub(super) fn push(&mut self, link: Link, held: usize) {
        if !self.is_enabled {
            return;
        }
        let most = (held / HELD_PER_RECENT).clamp(RECENT_MIN, RECENT_MAX);
        while self.links.len() >= most {
            self.links.pop_front();
        }
        self.links.push_back(link);
    }

    pub(super) fn clear(&mut self) {
        self.links = VecDeque::new();
    }

    /// A copy.
    pub(super) fn links(&self) -> Vec<Link> {
        self.links.iter().copied().collect()
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ShardIndex;
    use forebay_index::BlockKey;

    #[test]
    fn keeps_the_last_and_nothing_unasked() {
        let key = |word| BlockKey::from_word(word).unwrap();
        let link = |word| Link {
            parent: key(word),
            key: key(word + 1),
            block_bytes: 3,
            slice: ShardIndex(0),
        };
        let mut recent = RecentLinks::default();
        recent.push(link(1), 1);
        assert_eq!((recent.links().len(), recent.bytes()), (0, 0));
        recent.enable();
        (1..=10_000).for_each(|word| recent.push(link(word), 0));
        assert_eq!((recent.links().len(), recent.links()[255]), (RECENT_MIN, link(10_000)));
        (1..=10_000).for_each(|word| recent.push(link(word), 1 << 30));
        assert_eq!(recent.links().len(), RECENT_MAX);
        recent.clear();
        assert!(recent.links().is_empty());
    }
}
