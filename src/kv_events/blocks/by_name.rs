//! [`RankBlocks`](super::RankBlocks): events that name blocks of lower tiers without their tokens.

use super::super::outcome::BatchOutcome;
use super::super::paths::naming::BlockText;
use super::super::paths::tier::Tier;
use super::{EntryState, LedgerEntry, RankBlocks};
use forebay_kv_decode::BlockStored;

impl<T: BlockText> RankBlocks<T> {
    /// Applies hashes without tokens, as vLLM's offloading sends them: copies of blocks that were
    /// stored with their tokens before.
    pub(super) fn stored_by_name(
        &mut self,
        event: &BlockStored<'_>,
        group: u32,
        tier: Tier,
    ) -> BatchOutcome {
        if self.groups.forgetful.contains(&group) {
            return BatchOutcome::OtherGroup;
        }
        let mut outcome = BatchOutcome::Applied;
        for &hash in event.hashes {
            let id = self.id(hash, group);
            let known = self.ledger.get(id).or_else(|| {
                let groups = self.groups.whole.iter().filter(|other| **other != group);
                groups.filter_map(|other| self.ledger.get(self.id(hash, *other))).next()
            });
            let Some(known) = known else {
                outcome = BatchOutcome::HashUnknown;
                continue;
            };
            if known.id == id {
                // The event has no text, so the block joins no further tree.
                self.ledger.add(id, tier, known.state.trees());
            } else if self.ledger.len() < self.entries_max {
                let trees = self.ledger.trees_of_others(known.key, id) & tier.trees();
                let state = EntryState::new(known.state.slice(), trees);
                if !self.ledger.insert(LedgerEntry { id, key: known.key, state }, tier) {
                    return BatchOutcome::Full;
                }
                self.arrived.push(id);
            } else {
                return BatchOutcome::Full;
            }
        }
        outcome
    }
}
