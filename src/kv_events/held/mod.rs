//! What one rank holds, in some 25 bytes a block: for each engine hash and attention group the key
//! of its path, how often each tier stored it, and the trees of the index that rest on it. Entries
//! are found by id (hash and group, mixed) and by key.

mod ages;
mod by_key;
mod kept;
mod ordered;
mod state;

pub use kept::Kept;
pub(super) use state::HeldState;

use super::tier::{TIERS, Tier};
use ages::Ages;
use by_key::{ByKey, is_candidate};
use forebay_index::BlockKey;
use ordered::{Ordered, OrderedEntry};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Memory of one block when a table has grown to its full size, rounded up: what budgets count
/// with.
pub const TRACKED_BLOCK_BYTES: usize = 28;
const _: () =
    assert!(TRACKED_BLOCK_BYTES >= Ordered::SLOT_BYTES * 10 / 8 + size_of::<u32>() * 5 / 4);

/// More stores by one tier than a state counts.
const STATE_STORES_MAX: u32 = 8;
/// Most entries of one key: attention groups that see whole prompts times the ways to cut one text
/// into tokens. The way back from a key would get long, and with more of them no table could hold
/// some keys that stand side by side.
pub(super) const SAME_KEY_MAX: usize = 8;

/// Entries by id and by key.
#[derive(Debug, Default)]
pub(super) struct HeldBlocks {
    table: Ordered,
    by_key: ByKey,
    /// Stores beyond what a state counts; of few entries, see [`HeldState`].
    more: HashMap<(u64, Tier), u32, ahash::RandomState>,
    /// Entries by tier.
    tier_counts: [usize; TIERS],
    /// How long an entry of a tier without removals is believed; 0 for ever.
    ttl: Duration,
    /// What may leave by its age; the device's stays empty.
    ages: [Ages; TIERS],
    /// Some entries are not found by their keys: nothing is to be done but to clear.
    is_spoilt: bool,
    /// Of a pool, where an entry is there or not: entries at most.
    pool_max: Option<usize>,
}

/// One engine hash of one attention group.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldEntry {
    pub(super) id: u64,
    pub(super) key: BlockKey,
    pub(super) state: HeldState,
}

impl HeldBlocks {
    /// Holds nothing; entries of lower tiers leave so long after their last store, as long as
    /// their tier announces no removal. 0: never.
    pub(super) fn expiring(ttl: Duration) -> Self {
        Self { ttl, ..Self::default() }
    }

    /// The same for a pool that many write to, of so many entries at most. Removals do not end the
    /// rule.
    pub(super) fn of_pool(ttl: Duration, entries_max: usize) -> Self {
        let ages = std::array::from_fn(|_| Ages::of_pool(entries_max));
        Self { pool_max: Some(entries_max), ages, ..Self::expiring(ttl) }
    }

    /// Entries leave so long after their last store from now on.
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// True when it can only be cleared.
    pub(super) fn is_spoilt(&self) -> bool {
        self.is_spoilt
    }

    /// Entries that a tier holds.
    pub(super) fn tier_counts(&self) -> [usize; TIERS] {
        self.tier_counts
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        let more = self.more.capacity() * size_of::<((u64, Tier), u32)>();
        let ages = self.ages.iter().map(Ages::bytes).sum::<usize>();
        self.table.bytes() + self.by_key.bytes() + more + ages
    }

    /// The entry of an id.
    pub(super) fn get(&self, id: u64) -> Option<HeldEntry> {
        entry(self.table.at(self.table.find(id)?)?)
    }

    /// Trees that rest on other entries with the same key.
    pub(super) fn trees_of_others(&self, key: BlockKey, id: u64) -> u8 {
        self.same_key(key)
            .filter(|entry| entry.id != id)
            .fold(0, |all, one| all | one.state.trees())
    }

    /// Adds an entry whose id is not there, stored once by a tier. False when its key has too many
    /// entries already.
    pub(super) fn insert(&mut self, added: HeldEntry, tier: Tier) -> bool {
        if self.is_spoilt || self.by_key.candidates(added.key).nth(SAME_KEY_MAX - 1).is_some() {
            return false;
        }
        let (state, _) = added.state.with_one_more(tier);
        self.table.insert(added.id, added.key.to_word(), state.to_bits());
        if !self.by_key.insert(added.id, added.key) {
            self.make_by_key();
        }
        self.count(tier, 1);
        if let Some(ages) = self.ages_of(tier) {
            ages.add(added.id);
        }
        true
    }

    /// A copy for another thread.
    pub(super) fn kept(&self) -> Kept {
        Kept::new(&self.table, &self.more)
    }

    /// Adds an entry that was stored so often by each tier, at least once by one. False if its id
    /// is there already, or its key has too many entries.
    pub(super) fn restore(&mut self, entry: HeldEntry, stores: [u32; TIERS]) -> bool {
        let stored_by = |tier: &Tier| stores.get(tier.index()).is_some_and(|stores| *stores > 0);
        let Some(first) = Tier::ALL.into_iter().find(stored_by) else { return false };
        if self.table.find(entry.id).is_some() {
            return false;
        }
        let id = entry.id;
        let trees = entry.state.trees();
        if !self.insert(entry, first) {
            return false;
        }
        for (tier, stores) in Tier::ALL.into_iter().zip(stores) {
            let left = stores.saturating_sub(u32::from(tier == first));
            // So many fill the state, whatever the tier; the rest is counted apart.
            let added = left.min(STATE_STORES_MAX);
            for _ in 0..added {
                self.add(id, tier, trees);
            }
            if let Some(more) = self.more.get_mut(&(id, tier)) {
                *more = more.saturating_add(left - added);
            }
        }
        true
    }

    /// Notes one more store of an entry, and the trees that rest on it from now on.
    pub(super) fn add(&mut self, id: u64, tier: Tier, trees: u8) {
        let Some((place, before)) = self.place(id) else { return };
        if self.pool_max.is_some() && before.count(tier) > 0 {
            return self.renew(id, tier);
        }
        let (state, fits) = before.with_one_more(tier);
        if !fits {
            let more = self.more.entry((id, tier)).or_insert(0);
            *more = more.saturating_add(1);
        }
        self.table.set_state(place, state.with_trees(trees).to_bits());
        self.count(tier, usize::from(before.count(tier) == 0));
        self.renew(id, tier);
    }

    /// The entry is as young as one that was stored now.
    pub(super) fn renew(&mut self, id: u64, tier: Tier) {
        if let Some(ages) = self.ages_of(tier) {
            ages.renew(id);
        }
    }

    /// The tier has announced a removal: until all is cleared, no entry of it leaves by its age.
    /// Entries of pools do.
    pub(super) fn trust(&mut self, tier: Tier) {
        if let Some(ages) = self.ages.get_mut(tier.index()) {
            ages.trust();
        }
    }

    /// When something may be too old next.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let ages = self.ages.iter().filter(|_| !self.ttl.is_zero());
        ages.filter_map(|ages| ages.due(self.ttl)).min()
    }

    /// Ids of a tier that are too old, no more than `most`, for [`HeldBlocks::take_all`].
    pub(super) fn take_old(&mut self, tier: Tier, now: Instant, most: usize) -> Vec<u64> {
        let ttl = self.ttl;
        let ages = self.ages.get_mut(tier.index()).filter(|_| !ttl.is_zero());
        ages.map(|ages| ages.take_old(now, ttl, most)).unwrap_or_default()
    }

    /// The same for those of a pool that were stored longest ago.
    pub(super) fn take_oldest(&mut self, tier: Tier, most: usize) -> Vec<u64> {
        self.ages_of(tier).map(|ages| ages.take_oldest(most)).unwrap_or_default()
    }

    /// Takes all stores of one tier back, see [`HeldBlocks::take`].
    pub(super) fn take_all(&mut self, id: u64, tier: Tier) -> Option<(HeldEntry, u8)> {
        let (place, mut state) = self.place(id)?;
        self.more.remove(&(id, tier));
        while state.count(tier) > 1 {
            state = state.with_one_less(tier);
        }
        self.table.set_state(place, state.to_bits());
        self.take(id, tier)
    }

    /// Where the ages of a tier's entries are kept, if they are.
    fn ages_of(&mut self, tier: Tier) -> Option<&mut Ages> {
        let are_kept = tier != Tier::Device && (self.pool_max.is_some() || !self.ttl.is_zero());
        self.ages.get_mut(tier.index()).filter(|_| are_kept)
    }

    /// Takes one store back; the entry goes with its last one. What it was before, and the trees
    /// that still rest on it; `None` if the tier has not stored it.
    pub(super) fn take(&mut self, id: u64, tier: Tier) -> Option<(HeldEntry, u8)> {
        let (place, before) = self.place(id)?;
        let found = entry(self.table.at(place)?)?;
        if before.count(tier) == 0 {
            return None;
        }
        if before.is_full(tier)
            && let Some(more) = self.more.get_mut(&(id, tier))
        {
            *more -= 1;
            if *more == 0 {
                self.more.remove(&(id, tier));
            }
            return Some((found, before.trees()));
        }
        let state = before.with_one_less(tier);
        if state.count(tier) == 0
            && let Some(count) = self.tier_counts.get_mut(tier.index())
        {
            *count = count.saturating_sub(1);
        }
        match state.lowest_tier() {
            Some(lowest) => {
                let trees = before.trees() & lowest.trees();
                self.table.set_state(place, state.with_trees(trees).to_bits());
                Some((found, trees))
            }
            None => {
                self.table.remove(place);
                if self.pool_max.is_some()
                    && let Some(ages) = self.ages_of(tier)
                {
                    ages.forget(id);
                }
                if !self.is_spoilt {
                    self.by_key.remove(id, found.key);
                }
                Some((found, 0))
            }
        }
    }

    /// Forgets everything; `each` gets every key once, with the trees that rest on it.
    pub(super) fn clear(&mut self, mut each: impl FnMut(BlockKey, HeldState)) {
        for one in self.table.iter().filter_map(entry) {
            let mut same = self.same_key(one.key);
            if same.any(|other| other.id < one.id) {
                continue;
            }
            let trees = one.state.trees() | self.trees_of_others(one.key, one.id);
            each(one.key, one.state.with_trees(trees));
        }
        let ttl = self.ttl;
        *self = self.pool_max.map_or_else(|| Self::expiring(ttl), |max| Self::of_pool(ttl, max));
    }

    /// Makes the way from keys to entries anew, a twelfth larger than it has to be; larger where
    /// many share a key.
    fn make_by_key(&mut self) {
        let mut room_for = self.table.len() + self.table.len() / 12;
        for _ in 0..2 {
            let entries = self.table.iter().filter_map(entry).map(|entry| (entry.id, entry.key));
            if let Some(by_key) = ByKey::of(room_for, entries) {
                self.by_key = by_key;
                return;
            }
            room_for = room_for.saturating_mul(4);
        }
        self.is_spoilt = true;
    }

    fn place(&self, id: u64) -> Option<(usize, HeldState)> {
        let place = self.table.find(id)?;
        let bits = self.table.at(place)?.state;
        Some((place, HeldState::from_bits(bits)))
    }

    /// Entries with that key; one may come more than once.
    pub(super) fn same_key(&self, key: BlockKey) -> impl Iterator<Item = HeldEntry> + '_ {
        self.by_key.candidates(key).flat_map(move |least| {
            let near = self.table.from(least).take_while(move |(id, _)| is_candidate(least, *id));
            let same = near.filter(move |(_, word)| *word == key.to_word());
            same.filter_map(|(id, _)| self.get(id))
        })
    }

    fn count(&mut self, tier: Tier, by: usize) {
        if let Some(count) = self.tier_counts.get_mut(tier.index()) {
            *count += by;
        }
    }
}

fn entry(found: OrderedEntry) -> Option<HeldEntry> {
    let OrderedEntry { id, word, state } = found;
    Some(HeldEntry { id, key: BlockKey::from_word(word)?, state: HeldState::from_bits(state) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ShardIndex;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn key(number: u64) -> BlockKey {
        BlockKey::from_word(number).unwrap()
    }

    fn spread(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn a_full_table_stays_below_what_budgets_count_with() {
        let mut held = HeldBlocks::default();
        let mut most = 0;
        for number in 1..150_000_u64 {
            let state = HeldState::new(ShardIndex(1), 1);
            let id = spread(number.wrapping_mul(3));
            assert!(held.insert(HeldEntry { id, key: key(spread(number)), state }, Tier::Device));
            if number > 20_000 && number % 1_000 == 0 {
                most = most.max(held.bytes() * 10 / held.len());
            }
        }
        assert!(most <= TRACKED_BLOCK_BYTES * 10, "{most} tenths of a byte a block");
        // As many go as come: the memory stays.
        let before = held.bytes();
        for number in 1..120_000_u64 {
            assert!(held.take(spread(number.wrapping_mul(3)), Tier::Device).is_some());
            let number = number + 150_000;
            let state = HeldState::new(ShardIndex(1), 1);
            let id = spread(number.wrapping_mul(3));
            assert!(held.insert(HeldEntry { id, key: key(spread(number)), state }, Tier::Device));
        }
        assert!(held.bytes() <= before * 11 / 10, "{} after {before}", held.bytes());
    }

    #[test]
    fn a_key_has_only_so_many_entries() {
        let mut held = HeldBlocks::default();
        let mut add = |number: u64| {
            let state = HeldState::new(ShardIndex(1), 1);
            let entry = HeldEntry { id: spread(number), key: key(7), state };
            held.insert(entry, Tier::Device)
        };
        let added = (0..1_000).filter(|number| add(*number)).count();
        assert_eq!(added, SAME_KEY_MAX);
        assert!(held.take(spread(3), Tier::Device).is_some());
        assert_eq!(held.trees_of_others(key(7), spread(3)), 1);
    }

    proptest! {
        /// Few ids and keys, so that entries share both halves of what they are found by.
        #[test]
        fn agrees_with_a_plain_map(
            steps in proptest::collection::vec((0_u8..6, 0_u64..40, 0_usize..3), 0..400),
        ) {
            let tiers = [Tier::Device, Tier::Host, Tier::Disk];
            let mut held = HeldBlocks::default();
            let mut model: BTreeMap<u64, (u64, [u32; TIERS])> = BTreeMap::new();
            for (step, number, tier_index) in steps {
                let id = spread(number % 8) | number << 20;
                let tier = tiers[tier_index];
                // Keys are shared by five ids each.
                let key_of = key(spread(number % 8 + 1));
                match (step, model.get_mut(&id)) {
                    (0..4, None) => {
                        let _ = held.insert(
                            HeldEntry {
                                id,
                                key: key_of,
                                state: HeldState::new(ShardIndex(3), tier.trees()),
                            },
                            tier,
                        );
                        let mut counts = [0; TIERS];
                        counts[tier_index] = 1;
                        model.insert(id, (key_of.to_word(), counts));
                    }
                    (0..4, Some((_, counts))) => {
                        let trees = held.get(id).unwrap().state.trees() | tier.trees();
                        held.add(id, tier, trees);
                        counts[tier_index] += 1;
                    }
                    (_, found) => {
                        let stored =
                            found.as_ref().is_some_and(|(_, counts)| counts[tier_index] > 0);
                        prop_assert_eq!(held.take(id, tier).is_some(), stored);
                        if let Some((_, counts)) = found.filter(|_| stored) {
                            counts[tier_index] -= 1;
                            if *counts == [0; TIERS] {
                                model.remove(&id);
                            }
                        }
                    }
                }
                prop_assert_eq!(held.len(), model.len());
                let in_tier =
                    |at: usize| model.values().filter(|(_, counts)| counts[at] > 0).count();
                prop_assert_eq!(held.tier_counts(), [in_tier(0), in_tier(1), in_tier(2)]);
                let others = model
                    .iter()
                    .filter(|(other, (word, _))| **other != id && *word == key_of.to_word());
                let trees = others.fold(0, |all, (_, (_, counts))| {
                    all | tiers
                        .iter()
                        .filter(|tier| counts[tier.index()] > 0)
                        .fold(0, |one, tier| one | tier.trees())
                });
                prop_assert_eq!(held.trees_of_others(key_of, id), trees);
            }
            let mut cleared = Vec::new();
            held.clear(|key, _| cleared.push(key.to_word()));
            cleared.sort_unstable();
            let mut keys: Vec<u64> = model.values().map(|(word, _)| *word).collect();
            keys.sort_unstable();
            keys.dedup();
            prop_assert_eq!(cleared, keys);
            prop_assert_eq!(held.len(), 0);
        }
    }
}
