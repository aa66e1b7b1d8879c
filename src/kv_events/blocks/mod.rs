//! The blocks of a rank, and how the engine's events change the index. Sans-IO and single-threaded:
//! a [`RankBlocks`] per KV-event stream, events in, index operations out.
//!
//! Engine hashes only name blocks, parents and removals; the key of a block comes from the bytes of
//! its tokens. Two levels are counted. Engines store and remove the same hash several times: a
//! prompt that is an exact multiple of the block size stores its last block again each time, and
//! tiers store copies. Different hashes can have the same bytes: two tokenizations of a text, or
//! several attention groups. A tree of the index sees a key appear once and disappear once.
//!
//! # Tiers
//! A block is in tree `t` while the tier `t` or a nearer tier holds it, see
//! [`super::paths::tier`]. A tier gets its tree with its first event, so that ranks without lower
//! tiers pay nothing. Blocks from before that event join the tree when they are stored again.
//!
//! Bounded by `entries_max`: at the limit new blocks are refused and counted, removals still work.

use super::feeds::feed_size::{FeedSize, OrphanOutcomes};
use super::ledger::{EntryState, Ledger, LedgerEntry};
use super::outcome::BatchOutcome;
use super::paths::naming::{BlockText, Naming};
use super::paths::opaque::OpaqueBlocks;
use super::paths::orphans::{Orphan, Orphans};
use super::paths::recent_links::RecentLinks;
use super::paths::size_mix::SizeMix;
use super::paths::slice_ops::SliceOps;
use super::paths::tier::{LowerTiers, Tier};
use super::paths::windows::RankWindows;
use super::ranks::rank_copy::{GROUPS_MAX, Groups};
use super::ranks::text_fit::{Evidence, TextFit};
use forebay_base::ShardIndex;
use forebay_base::limits::INNER_BLOCK;
use forebay_index::{BlockKey, RootName};
use forebay_kv_decode::{Attention, BlockRemoved, BlockStored, ImagesOfBlock};
use forebay_snapshot::Link;

/// The blocks of a rank, or of a pool that ranks share.
#[derive(Debug)]
pub struct RankBlocks<T> {
    naming: Naming<T>,
    entries_max: usize,
    /// Tiers that may get a tree.
    lower_tiers: LowerTiers,
    /// Trees in use, a bit each.
    trees: u8,
    ledger: Ledger,
    orphans: Orphans,
    orphan_outcomes: OrphanOutcomes,
    opaque: OpaqueBlocks,
    evidence: Evidence,
    groups: Groups,
    windows: RankWindows,
    recent: RecentLinks,
    /// Sizes of blocks on the device.
    sizes: SizeMix,
    block_bytes: Vec<u8>,
    /// New blocks of this event; their orphans are adopted at the end of it.
    arrived: Vec<u64>,
    /// Blocks since the last clear that contradict earlier events.
    contradictions: usize,
    /// Contradictions up to this number do not clear the rank. Doubles with each such clear, which
    /// bounds their number.
    tolerated: usize,
}

/// Last block of a chain, behind which the next block goes.
#[derive(Clone, Copy)]
struct Tip {
    key: BlockKey,
    /// `None` before the first block, which determines the slice.
    slice: Option<ShardIndex>,
}

/// The name and the size of a block in the engine's events.
#[derive(Clone, Copy)]
struct BlockName {
    /// Hash and group, see [`RankBlocks::id`].
    id: u64,
    hash: u64,
    block_tokens: u32,
}

/// Group of events without a group.
const NO_GROUP: u32 = u32::MAX;
/// So many contradictions never clear a rank: some engines have hashes that are not chained.
const CONTRADICTIONS_MIN: usize = 1_024;

impl<T: BlockText> RankBlocks<T> {
    /// No blocks yet; lower tiers do not count.
    #[must_use]
    pub fn new(naming: Naming<T>, entries_max: usize) -> Self {
        Self {
            naming,
            entries_max,
            lower_tiers: LowerTiers::default(),
            trees: Tier::Device.bit(),
            ledger: Ledger::default(),
            orphans: Orphans::default(),
            orphan_outcomes: OrphanOutcomes::default(),
            opaque: OpaqueBlocks::default(),
            evidence: Evidence::default(),
            groups: Groups::default(),
            windows: RankWindows::default(),
            recent: RecentLinks::default(),
            sizes: SizeMix::default(),
            block_bytes: Vec::new(),
            arrived: Vec::new(),
            contradictions: 0,
            tolerated: CONTRADICTIONS_MIN,
        }
    }

    /// True when more events contradict each other than there are blocks: the rank must be cleared.
    #[must_use]
    pub fn contradicts_itself(&self) -> bool {
        self.ledger.is_spoilt() || self.contradictions > self.tolerated.max(self.ledger.len())
    }

    /// Sets the lower tiers that count. Only while there are no blocks.
    pub fn set_lower_tiers(&mut self, lower_tiers: LowerTiers) {
        debug_assert!(self.is_empty(), "blocks may be in trees that end");
        self.lower_tiers = lower_tiers;
        self.ledger = Ledger::expiring(lower_tiers.ttl);
        let allowed = |tier: &Tier| match tier {
            Tier::Device => true,
            Tier::Host => lower_tiers.host,
            Tier::Disk => lower_tiers.disk,
        };
        self.trees &= Tier::ALL.iter().filter(|tier| allowed(tier)).fold(0, |all, t| all | t.bit());
    }

    /// Gives every tier that counts its tree at once, for engines that use lower tiers for sure.
    pub fn expect_lower_tiers(&mut self) {
        for (tier, counts) in
            [(Tier::Host, self.lower_tiers.host), (Tier::Disk, self.lower_tiers.disk)]
        {
            self.trees |= if counts { tier.bit() } else { 0 };
        }
    }

    /// True once the tier has a tree.
    #[must_use]
    pub fn has_tree(&self, tier: Tier) -> bool {
        self.trees & tier.bit() != 0
    }

    /// Blocks by engine hash and group.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ledger.len()
    }

    /// True if there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ledger.len() == 0
    }

    /// Whether blocks and tokenizer fit; `None` before the first evidence.
    #[must_use]
    pub fn text_fit(&self) -> Option<TextFit> {
        let without = Some(TextFit::NoTokenizer);
        self.naming.text.as_ref().map_or(without, |_| self.evidence.verdict())
    }

    /// Counts and memory, for gauges.
    #[must_use]
    pub fn size(&self) -> FeedSize {
        FeedSize {
            blocks: self.ledger.len(),
            tier_blocks: self.ledger.tier_counts(),
            orphans: self.orphans.len(),
            bytes: self.ledger.bytes()
                + self.orphans.bytes()
                + self.opaque.bytes()
                + self.windows.bytes()
                + self.recent.bytes(),
        }
    }

    /// Outcomes of orphans since the last call.
    pub fn take_orphan_outcomes(&mut self) -> OrphanOutcomes {
        std::mem::take(&mut self.orphan_outcomes)
    }

    /// Applies a store. Blocks before a faulty block stay stored, because they are valid.
    pub fn stored(&mut self, event: &BlockStored<'_>, ops: &mut SliceOps) -> BatchOutcome {
        let tier = self.lower_tiers.tier_of(event.medium);
        let Some(tier) = tier else {
            return BatchOutcome::Elsewhere;
        };
        let group = event.group.unwrap_or(NO_GROUP);
        if tier == Tier::Device {
            self.sizes.meet(group, event.block_size_tokens);
        }
        if event.attention != Attention::Whole {
            remember(&mut self.groups.forgetful, group);
            if tier == Tier::Device {
                self.window_stored(event, group, ops);
            }
            return BatchOutcome::OtherGroup;
        }
        self.trees |= tier.bit();
        let is_name = tier != Tier::Device && event.token_ids.is_empty();
        if is_name && event.block_size_tokens == 0 && !event.hashes.is_empty() {
            let outcome = self.stored_by_name(event, group, tier);
            self.adopt(ops);
            return outcome;
        }
        let block_tokens = usize::try_from(event.block_size_tokens).unwrap_or(0);
        let tokens_due = block_tokens.checked_mul(event.hashes.len());
        if block_tokens == 0 || tokens_due != Some(event.token_ids.len()) {
            return BatchOutcome::Unpaired;
        }
        remember(&mut self.groups.whole, group);
        let outcome = self.store_chain(event, group, tier, ops);
        self.adopt(ops);
        outcome
    }

    /// Applies a removal; unknown hashes are ignored.
    pub fn removed(&mut self, event: &BlockRemoved<'_>, ops: &mut SliceOps) -> BatchOutcome {
        let tier = self.lower_tiers.tier_of(event.medium);
        let Some(tier) = tier else {
            return BatchOutcome::Elsewhere;
        };
        if !event.hashes.is_empty() {
            self.ledger.trust(tier);
        }
        let group = event.group.unwrap_or(NO_GROUP);
        if tier == Tier::Device && self.windows.has(group) {
            self.window_removed(event.hashes, group, ops);
            return BatchOutcome::Applied;
        }
        for &hash in event.hashes {
            let id = self.id(hash, group);
            match self.ledger.take(id, tier) {
                Some((before, trees)) => self.lose(before, trees, ops),
                None if !self.orphans.is_empty() => {
                    let was_there = self.orphans.remove(id, tier);
                    self.orphan_outcomes.removed += usize::from(was_there);
                }
                None => {}
            }
        }
        BatchOutcome::Applied
    }

    /// Removes all blocks: the engine cleared its cache or restarted, or events were lost.
    pub fn clear(&mut self, ops: &mut SliceOps) {
        if self.contradicts_itself() {
            self.tolerated = self.tolerated.saturating_mul(2);
        }
        self.contradictions = 0;
        let windows = self.windows.posted();
        let is_mixed = self.sizes.is_mixed();
        self.ledger.clear(|key, state| {
            ops.release(windows, state.slice(), key);
            if is_mixed {
                ops.release_odd(state.slice(), key);
            }
            ops.remove(state.trees(), state.slice(), key);
        });
        self.windows.clear();
        self.sizes.clear();
        self.orphan_outcomes.dropped += self.orphans.clear();
        self.recent.clear();
        self.opaque.clear();
    }

    fn store_chain(
        &mut self,
        event: &BlockStored<'_>,
        group: u32,
        tier: Tier,
        ops: &mut SliceOps,
    ) -> BatchOutcome {
        let block_tokens = usize::try_from(event.block_size_tokens).unwrap_or(usize::MAX);
        let mut tip = match event.parent {
            None => Some(self.root(event, tier)),
            Some(parent) => self.tip(self.id(parent, group)),
        };
        let mut parent = event.parent.map(|parent| self.id(parent, group));
        if tip.is_none() && parent.is_some_and(|parent| self.opaque.contains(parent)) {
            self.mark_opaque(event, 0, group);
            return BatchOutcome::NotText;
        }
        let mut outcome = BatchOutcome::Applied;
        let mut images = event.extra_keys.images;
        let blocks = event.hashes.iter().zip(event.token_ids.chunks_exact(block_tokens));
        for (position, (&hash, token_ids)) in blocks.enumerate() {
            let is_opaque = event.extra_keys.is_opaque(position);
            let naming = &self.naming;
            let images = images.next_block();
            let read = naming.read(token_ids, is_opaque, images, &mut self.block_bytes);
            if let Err(outcome) = read {
                self.mark_opaque(event, position, group);
                return outcome;
            }
            self.evidence.readable();
            let id = self.id(hash, group);
            if let Some(parent) = parent.filter(|_| tip.is_none()) {
                match self.ledger.get(id) {
                    // Known from another chain: this chain continues behind the block.
                    Some(known) => self.ledger.add(id, tier, known.state.trees()),
                    None if parent == id => return BatchOutcome::Conflict,
                    None => {
                        let bytes = self.block_bytes.as_slice().into();
                        let block_tokens = event.block_size_tokens;
                        outcome =
                            self.orphan(Orphan { id, hash, parent, tier, block_tokens, bytes });
                    }
                }
                tip = self.tip(id);
            } else if let Some(at) = tip {
                let before = self.contradictions;
                match self.extend(
                    at,
                    BlockName { id, hash, block_tokens: event.block_size_tokens },
                    tier,
                    ops,
                ) {
                    Ok(next) => tip = Some(next),
                    Err(outcome) => {
                        if self.contradictions > before {
                            // The blocks behind it contradict as well.
                            self.contradictions += event.hashes.len() - position - 1;
                        }
                        return outcome;
                    }
                }
            }
            parent = Some(id);
        }
        outcome
    }

    /// Marks the blocks of an event from `from` on as no text. Their children cannot be text either
    /// and must not wait for a parent that never comes.
    fn mark_opaque(&mut self, event: &BlockStored<'_>, from: usize, group: u32) {
        // Without a tokenizer no block is text, and no block waits.
        if self.naming.text.is_none() {
            return;
        }
        let block_tokens = usize::try_from(event.block_size_tokens).unwrap_or(usize::MAX);
        let blocks = event.hashes.iter().zip(event.token_ids.chunks_exact(block_tokens));
        for (position, (&hash, token_ids)) in blocks.enumerate().skip(from) {
            let id = self.id(hash, group);
            self.opaque.add(id);
            let is_opaque = event.extra_keys.is_opaque(position);
            let naming = &self.naming;
            let images = ImagesOfBlock::default();
            let read = naming.read(token_ids, is_opaque, images, &mut self.block_bytes);
            if read == Err(BatchOutcome::NoText) {
                self.evidence.unknown(token_ids);
            }
        }
    }

    fn orphan(&mut self, orphan: Orphan) -> BatchOutcome {
        let dropped = self.orphans.hold(orphan);
        self.orphan_outcomes.dropped += dropped.unwrap_or(1);
        if dropped.is_some() { BatchOutcome::Orphaned } else { BatchOutcome::ParentUnknown }
    }

    /// Applies the orphans of new blocks, and the orphans of these orphans.
    fn adopt(&mut self, ops: &mut SliceOps) {
        while let Some(parent) = self.arrived.pop() {
            if self.orphans.is_empty() {
                continue;
            }
            for orphan in self.orphans.children(parent) {
                let Some(tip) = self.tip(parent) else { continue };
                self.block_bytes.clear();
                self.block_bytes.extend_from_slice(&orphan.bytes);
                let block_tokens = orphan.block_tokens;
                let name = BlockName { id: orphan.id, hash: orphan.hash, block_tokens };
                match self.extend(tip, name, orphan.tier, ops) {
                    Ok(_) => self.orphan_outcomes.applied += 1,
                    Err(_) => self.orphan_outcomes.dropped += 1,
                }
            }
        }
    }

    /// Root of the sequences of an event. Lower tiers may have larger blocks than the device, but
    /// prompts are looked up under the device's root, so all tiers share that root.
    fn root(&mut self, event: &BlockStored<'_>, tier: Tier) -> Tip {
        let lower = tier != Tier::Device;
        let is_part = event.group.is_some() && event.block_size_tokens < self.sizes.device_tokens;
        if !lower && !is_part || self.sizes.device_tokens == 0 {
            self.sizes.device_tokens = event.block_size_tokens;
        }
        let group = event.group.unwrap_or(NO_GROUP);
        let whole_tokens = match event.group {
            Some(_) => self.sizes.root_tokens(group, event.block_size_tokens),
            None => event.block_size_tokens,
        };
        let name = RootName {
            model: &self.naming.model,
            block_size_tokens: if lower { self.sizes.device_tokens } else { whole_tokens },
            lora: event.extra_keys.lora_name,
            cache_salt: event.extra_keys.cache_salt,
        };
        Tip { key: BlockKey::root(self.naming.seed, &name), slice: None }
    }

    fn tip(&self, id: u64) -> Option<Tip> {
        let entry = self.ledger.get(id)?;
        Some(Tip { key: entry.key, slice: Some(entry.state.slice()) })
    }

    /// Stores the block of that name, with its text in `block_bytes`, behind `parent`.
    fn extend(
        &mut self,
        parent: Tip,
        name: BlockName,
        tier: Tier,
        ops: &mut SliceOps,
    ) -> Result<Tip, BatchOutcome> {
        let BlockName { id, hash, block_tokens } = name;
        let block_bytes = match self.block_bytes.len() {
            0 => INNER_BLOCK,
            bytes => u16::try_from(bytes).unwrap_or(u16::MAX),
        };
        let key = parent.key.child(self.naming.seed, &self.block_bytes);
        let first = || (self.naming.slice_of)(key, self.naming.shard_count);
        let slice = parent.slice.unwrap_or_else(first);
        let trees = self.trees & tier.trees();
        let before = match self.ledger.get(id) {
            Some(known) if known.key == key => {
                let before = known.state.trees();
                self.ledger.add(id, tier, before | trees);
                before
            }
            Some(_) => {
                self.contradictions += 1;
                return Err(BatchOutcome::Conflict);
            }
            None if self.ledger.len() >= self.entries_max => return Err(BatchOutcome::Full),
            None => {
                let added = LedgerEntry { id, key, state: EntryState::new(slice, trees) };
                if !self.ledger.insert(added, tier) {
                    // Too many hashes share this text.
                    self.contradictions += 1;
                    return Err(BatchOutcome::Full);
                }
                self.arrived.push(id);
                0
            }
        };
        let gained = trees & !before;
        let gained = gained & !self.trees_of_others(key, id, gained);
        ops.store(gained, slice, parent.key, (key, block_bytes));
        if gained != 0 {
            let link = Link { parent: parent.key, key, block_bytes, slice };
            self.recent.push(link, self.ledger.len());
        }
        if tier == Tier::Device && !self.windows.is_unused() {
            ops.hold(self.windows.of(hash), slice, key);
        }
        if tier == Tier::Device && self.sizes.take(block_tokens) {
            ops.hold_odd(slice, key);
        }
        Ok(Tip { key, slice: Some(slice) })
    }

    /// Trees that other entries with the key are in; looked up only if `asked` has trees.
    fn trees_of_others(&self, key: BlockKey, id: u64, asked: u8) -> u8 {
        if asked == 0 { 0 } else { self.ledger.trees_of_others(key, id) }
    }
}

fn remember(groups: &mut Vec<u32>, group: u32) {
    if groups.len() < GROUPS_MAX && !groups.contains(&group) {
        groups.push(group);
    }
}

mod expiry;
mod windows;
mod by_name;
mod pool;
mod copy;
mod ids;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod restart_tests;
#[cfg(test)]
mod windows_tests;
#[cfg(test)]
mod sizes_tests;
#[cfg(test)]
mod tiers_tests;
