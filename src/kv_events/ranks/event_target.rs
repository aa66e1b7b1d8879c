//! Applies an event of a rank to the rank's own blocks and to the pool that the rank shares.

use crate::blocks::RankBlocks;
use crate::counters::EventKind;
use crate::outcome::BatchOutcome;
use crate::paths::naming::BlockText;
use crate::paths::slice_ops::SliceOps;
use crate::pool::{EventScope, PoolBlocks};
use forebay_kv_decode::{Attention, KvEvent, Medium, Removed, Stored};

/// Blocks that the events of a rank change.
pub(crate) struct EventTarget<'a, T> {
    pub(crate) blocks: &'a mut RankBlocks<T>,
    pub(crate) pool: Option<&'a mut PoolBlocks<T>>,
    /// Tokens of a block on the device, as reported in events.
    pub(crate) block_size_tokens: &'a mut u32,
    /// The smallest size, once blocks of another size are stored on the device.
    pub(crate) finer_tokens: &'a mut u32,
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

    fn stored(&mut self, stored: &Stored<'_>) -> BatchOutcome {
        if let Some(pool) = self.pool.as_deref_mut() {
            let scope = EventScope::of(stored.medium, stored.remote);
            if scope != EventScope::Rank {
                let outcome = pool.stored(stored, *self.block_size_tokens);
                if scope == EventScope::Pool {
                    return outcome;
                }
            }
        }
        let outcome = self.blocks.stored(stored, self.ops);
        let is_whole = matches!(outcome, BatchOutcome::Applied | BatchOutcome::Orphaned)
            && stored.medium == Medium::Device;
        let before = *self.block_size_tokens;
        if is_whole
            && before > 0
            && before != stored.block_size_tokens
            && stored.attention == Attention::Whole
        {
            let known = [before, stored.block_size_tokens, *self.finer_tokens];
            let smallest = known.into_iter().filter(|size| *size > 0).min();
            *self.finer_tokens = smallest.unwrap_or_default();
        }
        if is_whole && !is_finer(stored, *self.block_size_tokens) {
            *self.block_size_tokens = stored.block_size_tokens;
        }
        outcome
    }

    fn removed(&mut self, removed: &Removed<'_>) -> BatchOutcome {
        let scope = EventScope::of(removed.medium, removed.remote);
        match self.pool.as_deref_mut().filter(|_| scope == EventScope::Pool) {
            Some(pool) => pool.removed(removed),
            None => self.blocks.removed(removed, self.ops),
        }
    }
}

/// Some engines also report part blocks in a finer size, from which the size of whole blocks does
/// not follow.
fn is_finer(stored: &Stored<'_>, block_size_tokens: u32) -> bool {
    stored.group.is_some() && stored.block_size_tokens < block_size_tokens
}
