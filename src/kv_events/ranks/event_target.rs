//! Applies an event of a rank to the rank's own blocks and to the pool that the rank shares.

use super::block_sizes::BlockSizes;
use crate::blocks::RankBlocks;
use crate::counters::EventKind;
use crate::outcome::BatchOutcome;
use crate::paths::naming::BlockText;
use crate::paths::slice_ops::SliceOps;
use crate::pool::{EventScope, PoolBlocks};
use forebay_kv_decode::{BlockRemoved, BlockStored, KvEvent};

/// Blocks that the events of a rank change.
pub(crate) struct EventTarget<'a, T> {
    pub(crate) blocks: &'a mut RankBlocks<T>,
    pub(crate) pool: Option<&'a mut PoolBlocks<T>>,
    pub(crate) sizes: &'a mut BlockSizes,
    pub(crate) ops: &'a mut SliceOps,
}

impl<T: BlockText> EventTarget<'_, T> {
    pub(crate) fn apply(&mut self, event: &KvEvent<'_>) -> (EventKind, BatchOutcome) {
        match event {
            KvEvent::Stored(stored) => (EventKind::Stored, self.stored(stored)),
            KvEvent::Removed(removed) => (EventKind::Removed, self.removed(removed)),
            KvEvent::Cleared => {
                // The pool keeps blocks that the rank stored there.
                self.blocks.clear(self.ops);
                (EventKind::Cleared, BatchOutcome::Applied)
            }
            KvEvent::Unknown => (EventKind::Other, BatchOutcome::UnknownType),
            KvEvent::Malformed => (EventKind::Other, BatchOutcome::Malformed),
        }
    }

    fn stored(&mut self, stored: &BlockStored<'_>) -> BatchOutcome {
        if let Some(pool) = self.pool.as_deref_mut() {
            let scope = EventScope::of(stored.medium);
            if scope != EventScope::Rank {
                let outcome = pool.stored(stored, self.sizes.usual);
                if scope == EventScope::Pool {
                    return outcome;
                }
            }
        }
        let outcome = self.blocks.stored(stored, self.ops);
        self.sizes.take(stored, outcome);
        outcome
    }

    fn removed(&mut self, removed: &BlockRemoved<'_>) -> BatchOutcome {
        let scope = EventScope::of(removed.medium);
        match self.pool.as_deref_mut().filter(|_| scope == EventScope::Pool) {
            Some(pool) => pool.removed(removed),
            None => self.blocks.removed(removed, self.ops),
        }
    }
}
