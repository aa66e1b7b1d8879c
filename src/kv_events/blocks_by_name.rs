//! [`RankBlocks`](super::RankBlocks) of tiers whose events name blocks without their tokens.

use super::super::naming::BlockText;
use super::super::outcome::BatchOutcome;
use super::super::tier::Tier;
use super::{HeldEntry, HeldState, RankBlocks};
use forebay_kv_decode::Stored;

impl<T: BlockText> RankBlocks<T> {
    /// Hashes alone, as vLLM's offloading names them: copies of blocks that were stored with their
    /// tokens before.
    pub(super) fn stored_by_name(
        &mut self,
        event: &Stored<'_>,
        group: u32,
        tier: Tier,
    ) -> BatchOutcome {
        if self.groups.forgetful.contains(&group) {
            return BatchOutcome::OtherGroup;
        }
        let mut outcome = BatchOutcome::Applied;
        for &hash in event.hashes {
            let id = self.id(hash, group);
            let known = self.held.get(id).or_else(|| {
                let groups = self.groups.whole.iter().filter(|other| **other != group);
                groups.filter_map(|other| self.held.get(self.id(hash, *other))).next()
            });
            let Some(known) = known else {
                outcome = BatchOutcome::HashUnknown;
                continue;
            };
            if known.id == id {
                // Its text is not known, so it joins no tree that it is not in.
                self.held.add(id, tier, known.state.trees());
            } else if self.held.len() < self.entries_max {
                let trees = self.held.trees_of_others(known.key, id) & tier.trees();
                let state = HeldState::new(known.state.slice(), trees);
                if !self.held.insert(HeldEntry { id, key: known.key, state }, tier) {
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
