//! Keys of the blocks of a prompt.

use super::key::{BlockKey, KeySeed};
use super::rows::{RowHasher, RowSums};

/// Makes keys of blocks under a fixed seed.
#[derive(Clone, Debug)]
pub(super) struct BlockHasher {
    pub(super) seed: KeySeed,
    rows: RowHasher,
}

impl BlockHasher {
    pub(super) fn new(seed: KeySeed) -> Self {
        Self { seed, rows: RowHasher::new(seed.0) }
    }

    /// Returns the same key as [`BlockKey::child`].
    #[inline(always)]
    pub(super) fn child(&self, parent: BlockKey, block: &[u8]) -> BlockKey {
        parent.child_of_hash(self.rows.hash(block))
    }

    /// [`Self::child`] for a block of several that begin at the same byte, which `sums` belong to:
    /// further lengths cost little.
    #[inline(always)]
    pub(super) fn front_child(
        &self,
        parent: BlockKey,
        block: &[u8],
        sums: &mut RowSums,
    ) -> BlockKey {
        parent.child_of_hash(self.rows.front_hash(block, sums))
    }
}
