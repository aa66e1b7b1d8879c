//! The blocks that a rank stored last, with their parents. A snapshot reads links from the index,
//! which may not have received these yet. At most a small part of the rank's blocks, some 2 bytes a
//! block.

use forebay_snapshot::Link;
use std::collections::VecDeque;

/// A link is remembered for each so many blocks of the rank.
const BLOCKS_PER_LINK: usize = 16;
/// Fewest and most links: a long prompt, and the operations that a shard applies in some
/// milliseconds.
const RECENT_MIN: usize = 256;
const RECENT_MAX: usize = 8_192;

/// Links, oldest first; empty until enabled.
#[derive(Debug, Default)]
pub(crate) struct RecentLinks {
    is_enabled: bool,
    links: VecDeque<Link>,
}

impl RecentLinks {
    pub(crate) fn enable(&mut self) {
        self.is_enabled = true;
    }

    /// Adds the link of a block stored by a rank with `block_count` blocks.
    pub(crate) fn push(&mut self, link: Link, block_count: usize) {
        if !self.is_enabled {
            return;
        }
        let most = (block_count / BLOCKS_PER_LINK).clamp(RECENT_MIN, RECENT_MAX);
        while self.links.len() >= most {
            self.links.pop_front();
        }
        self.links.push_back(link);
    }

    pub(crate) fn clear(&mut self) {
        self.links = VecDeque::new();
    }

    pub(crate) fn links(&self) -> Vec<Link> {
        self.links.iter().copied().collect()
    }

    pub(crate) fn bytes(&self) -> usize {
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
