//! The blocks of a rank, in some 25 bytes a block: for each engine hash and attention group the key
//! of its path, the number of stores by each tier, and the trees of the index that contain it.
//! Entries are found by id (hash and group in a word) and by key.

mod ages;
mod key_index;
mod copy;
mod sorted_table;
mod state;

pub use copy::LedgerCopy;
pub(super) use state::EntryState;

use super::paths::tier::{TIERS, Tier};
use ages::Ages;
use forebay_index::BlockKey;
use key_index::{KeyIndex, is_candidate};
use sorted_table::{SortedEntry, SortedTable};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Memory of a block in a table of full size, rounded up, for memory budgets.
pub const TRACKED_BLOCK_BYTES: usize = 28;
const _: () =
    assert!(TRACKED_BLOCK_BYTES >= SortedTable::SLOT_BYTES * 10 / 8 + size_of::<u32>() * 5 / 4);

/// More stores by a tier than an [`EntryState`] counts.
const STORES_THAT_FILL_A_STATE: u32 = 8;
/// Most entries of a key: attention groups that keep whole prompts times the tokenizations of a
/// text. More would make look-ups by key slow, and a [`KeyIndex`] could not hold some neighbouring
/// keys.
pub(super) const SAME_KEY_MAX: usize = 8;

/// Entries by id and by key.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    table: SortedTable,
    key_index: KeyIndex,
    /// Stores beyond the counts of [`EntryState`], 1 or more; few entries have any.
    more: HashMap<(u64, Tier), u32, ahash::RandomState>,
    tier_counts: [usize; TIERS],
    /// Time to live of an entry in a tier without removal events; 0 is without end.
    ttl: Duration,
    /// Entries of each tier that may expire; always empty for the device.
    ages: [Ages; TIERS],
    /// Some entries cannot be found by their keys, so that the ledger must be cleared.
    is_spoilt: bool,
    /// Most entries of a pool, where stores are not counted; `None` for a rank. A pool has a
    /// single lower tier: an id leaves its [`Ages`] with the last tier.
    pool_max: Option<usize>,
}

/// An engine hash of an attention group.
#[derive(Clone, Copy, Debug)]
pub(super) struct LedgerEntry {
    pub(super) id: u64,
    pub(super) key: BlockKey,
    pub(super) state: EntryState,
}

impl Ledger {
    /// An empty ledger. Entries of a lower tier expire `ttl` after their last store, until the tier
    /// sends a removal. A `ttl` of 0 turns expiry off.
    pub(super) fn expiring(ttl: Duration) -> Self {
        Self { ttl, ..Self::default() }
    }

    /// An empty ledger of a pool that several ranks write to. Entries also expire after the pool
    /// has sent removals.
    pub(super) fn of_pool(ttl: Duration, entries_max: usize) -> Self {
        let ages = std::array::from_fn(|_| Ages::of_pool(entries_max));
        Self { pool_max: Some(entries_max), ages, ..Self::expiring(ttl) }
    }

    /// Entries expire `ttl` after their last store from now on.
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// True when only [`Self::clear`] is left.
    pub(super) fn is_spoilt(&self) -> bool {
        self.is_spoilt
    }

    /// Entries of each tier.
    pub(super) fn tier_counts(&self) -> [usize; TIERS] {
        self.tier_counts
    }

    pub(super) fn bytes(&self) -> usize {
        let more = self.more.capacity() * size_of::<((u64, Tier), u32)>();
        let ages = self.ages.iter().map(Ages::bytes).sum::<usize>();
        self.table.bytes() + self.key_index.bytes() + more + ages
    }

    pub(super) fn get(&self, id: u64) -> Option<LedgerEntry> {
        entry(self.table.at(self.table.find(id)?)?)
    }

    /// Trees that other entries with the same key are in.
    pub(super) fn trees_of_others(&self, key: BlockKey, id: u64) -> u8 {
        self.same_key(key)
            .filter(|entry| entry.id != id)
            .fold(0, |all, entry| all | entry.state.trees())
    }

    /// Adds an entry with a new id, stored once by a tier. False when its key has too many entries
    /// already.
    pub(super) fn insert(&mut self, added: LedgerEntry, tier: Tier) -> bool {
        if self.is_spoilt || self.key_index.candidates(added.key).nth(SAME_KEY_MAX - 1).is_some() {
            return false;
        }
        let (state, _) = added.state.with_one_more(tier);
        self.table.insert(added.id, added.key.to_word(), state.to_bits());
        if !self.key_index.insert(added.id, added.key) {
            self.rebuild_key_index();
        }
        self.count(tier, 1);
        if let Some(ages) = self.ages_of(tier) {
            ages.add(added.id);
        }
        true
    }

    /// A copy for another thread.
    pub(super) fn copy(&self) -> LedgerCopy {
        LedgerCopy::new(&self.table, &self.more)
    }

    /// Adds an entry with its number of stores by each tier. False without a store, for an id that
    /// is there already, and for a key with too many entries.
    pub(super) fn restore(&mut self, entry: LedgerEntry, stores: [u32; TIERS]) -> bool {
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
            // `STORES_THAT_FILL_A_STATE` fills the state of any tier; `more` counts the rest.
            let added = left.min(STORES_THAT_FILL_A_STATE);
            for _ in 0..added {
                self.add(id, tier, trees);
            }
            if let Some(more) = self.more.get_mut(&(id, tier)) {
                *more = more.saturating_add(left - added);
            }
        }
        true
    }

    /// Counts a further store of an entry, which is in `trees` from now on.
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

    /// Restarts the time to live of an entry, as a store does.
    pub(super) fn renew(&mut self, id: u64, tier: Tier) {
        if let Some(ages) = self.ages_of(tier) {
            ages.renew(id);
        }
    }

    /// Ends expiry for a tier that has sent a removal, until the next clear. Entries of pools still
    /// expire.
    pub(super) fn trust(&mut self, tier: Tier) {
        if let Some(ages) = self.ages.get_mut(tier.index()) {
            ages.trust();
        }
    }

    /// Earliest time at which an entry may expire.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let ages = self.ages.iter().filter(|_| !self.ttl.is_zero());
        ages.filter_map(|ages| ages.due(self.ttl)).min()
    }

    /// At most `most` expired ids of a tier, for [`Ledger::take_all`].
    pub(super) fn take_old(&mut self, tier: Tier, now: Instant, most: usize) -> Vec<u64> {
        let ttl = self.ttl;
        let ages = self.ages.get_mut(tier.index()).filter(|_| !ttl.is_zero());
        ages.map(|ages| ages.take_old(now, ttl, most)).unwrap_or_default()
    }

    /// At most `most` ids of a pool's tier, the oldest stores first, for [`Ledger::take_all`].
    pub(super) fn take_oldest(&mut self, tier: Tier, most: usize) -> Vec<u64> {
        self.ages_of(tier).map(|ages| ages.take_oldest(most)).unwrap_or_default()
    }

    /// Takes all stores of a tier back, see [`Ledger::take`].
    pub(super) fn take_all(&mut self, id: u64, tier: Tier) -> Option<(LedgerEntry, u8)> {
        let (place, mut state) = self.place(id)?;
        self.more.remove(&(id, tier));
        while state.count(tier) > 1 {
            state = state.with_one_less(tier);
        }
        self.table.set_state(place, state.to_bits());
        self.take(id, tier)
    }

    /// Ages of a tier's entries; `None` where entries do not expire.
    fn ages_of(&mut self, tier: Tier) -> Option<&mut Ages> {
        let expires = tier != Tier::Device && (self.pool_max.is_some() || !self.ttl.is_zero());
        self.ages.get_mut(tier.index()).filter(|_| expires)
    }

    /// Takes a store back; the entry goes with its last store. Returns the entry as it was, and the
    /// trees that it is still in; `None` if the tier has not stored it.
    pub(super) fn take(&mut self, id: u64, tier: Tier) -> Option<(LedgerEntry, u8)> {
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
                    self.key_index.remove(id, found.key);
                }
                Some((found, 0))
            }
        }
    }

    /// Removes all entries; `each` gets every key once, with the trees that the key was in, and in
    /// a spoilt ledger some keys more than once.
    pub(super) fn clear(&mut self, mut each: impl FnMut(BlockKey, EntryState)) {
        for LedgerEntry { id, key, state } in self.table.iter().filter_map(entry) {
            let mut same = self.same_key(key);
            if same.any(|other| other.id < id) {
                continue;
            }
            let trees = state.trees() | self.trees_of_others(key, id);
            each(key, state.with_trees(trees));
        }
        let ttl = self.ttl;
        *self = self.pool_max.map_or_else(|| Self::expiring(ttl), |max| Self::of_pool(ttl, max));
    }

    /// Rebuilds the key index, a twelfth larger than needed, or larger where many entries share a
    /// key.
    fn rebuild_key_index(&mut self) {
        let mut room_for = self.table.len() + self.table.len() / 12;
        for _ in 0..2 {
            let entries = self.table.iter().filter_map(entry).map(|entry| (entry.id, entry.key));
            if let Some(key_index) = KeyIndex::of(room_for, entries) {
                self.key_index = key_index;
                return;
            }
            room_for = room_for.saturating_mul(4);
        }
        self.is_spoilt = true;
    }

    fn place(&self, id: u64) -> Option<(usize, EntryState)> {
        let place = self.table.find(id)?;
        let bits = self.table.at(place)?.state;
        Some((place, EntryState::from_bits(bits)))
    }

    /// Entries with that key; an entry may come more than once.
    pub(super) fn same_key(&self, key: BlockKey) -> impl Iterator<Item = LedgerEntry> + '_ {
        self.key_index.candidates(key).flat_map(move |least| {
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

fn entry(found: SortedEntry) -> Option<LedgerEntry> {
    let SortedEntry { id, word, state } = found;
    Some(LedgerEntry { id, key: BlockKey::from_word(word)?, state: EntryState::from_bits(state) })
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
        let mut ledger = Ledger::default();
        let mut most = 0;
        for number in 1..150_000_u64 {
            let state = EntryState::new(ShardIndex(1), 1);
            let id = spread(number.wrapping_mul(3));
            assert!(
                ledger.insert(LedgerEntry { id, key: key(spread(number)), state }, Tier::Device)
            );
            if number > 20_000 && number % 1_000 == 0 {
                most = most.max(ledger.bytes() * 10 / ledger.len());
            }
        }
        assert!(most <= TRACKED_BLOCK_BYTES * 10, "{most} tenths of a byte a block");
        // As many entries go as come: the memory stays.
        let before = ledger.bytes();
        for number in 1..120_000_u64 {
            assert!(ledger.take(spread(number.wrapping_mul(3)), Tier::Device).is_some());
            let number = number + 150_000;
            let state = EntryState::new(ShardIndex(1), 1);
            let id = spread(number.wrapping_mul(3));
            assert!(
                ledger.insert(LedgerEntry { id, key: key(spread(number)), state }, Tier::Device)
            );
        }
        assert!(ledger.bytes() <= before * 11 / 10, "{} after {before}", ledger.bytes());
    }

    #[test]
    fn a_key_has_only_so_many_entries() {
        let mut ledger = Ledger::default();
        let mut add = |number: u64| {
            let state = EntryState::new(ShardIndex(1), 1);
            let entry = LedgerEntry { id: spread(number), key: key(7), state };
            ledger.insert(entry, Tier::Device)
        };
        let added = (0..1_000).filter(|number| add(*number)).count();
        assert_eq!(added, SAME_KEY_MAX);
        assert!(ledger.take(spread(3), Tier::Device).is_some());
        assert_eq!(ledger.trees_of_others(key(7), spread(3)), 1);
    }

    proptest! {
        /// Few ids and keys, so that entries share both.
        #[test]
        fn agrees_with_a_plain_map(
            steps in proptest::collection::vec((0_u8..6, 0_u64..40, 0_usize..3), 0..400),
        ) {
            let tiers = [Tier::Device, Tier::Host, Tier::Disk];
            let mut ledger = Ledger::default();
            let mut model: BTreeMap<u64, (u64, [u32; TIERS])> = BTreeMap::new();
            for (step, number, tier_index) in steps {
                let id = spread(number % 8) | number << 20;
                let tier = tiers[tier_index];
                // Keys are shared by five ids each.
                let key_of = key(spread(number % 8 + 1));
                match (step, model.get_mut(&id)) {
                    (0..4, None) => {
                        let _ = ledger.insert(
                            LedgerEntry {
                                id,
                                key: key_of,
                                state: EntryState::new(ShardIndex(3), tier.trees()),
                            },
                            tier,
                        );
                        let mut counts = [0; TIERS];
                        counts[tier_index] = 1;
                        model.insert(id, (key_of.to_word(), counts));
                    }
                    (0..4, Some((_, counts))) => {
                        let trees = ledger.get(id).unwrap().state.trees() | tier.trees();
                        ledger.add(id, tier, trees);
                        counts[tier_index] += 1;
                    }
                    (_, found) => {
                        let stored =
                            found.as_ref().is_some_and(|(_, counts)| counts[tier_index] > 0);
                        prop_assert_eq!(ledger.take(id, tier).is_some(), stored);
                        if let Some((_, counts)) = found.filter(|_| stored) {
                            counts[tier_index] -= 1;
                            if *counts == [0; TIERS] {
                                model.remove(&id);
                            }
                        }
                    }
                }
                prop_assert_eq!(ledger.len(), model.len());
                let in_tier =
                    |at: usize| model.values().filter(|(_, counts)| counts[at] > 0).count();
                prop_assert_eq!(ledger.tier_counts(), [in_tier(0), in_tier(1), in_tier(2)]);
                let others = model
                    .iter()
                    .filter(|(other, (word, _))| **other != id && *word == key_of.to_word());
                let trees = others.fold(0, |all, (_, (_, counts))| {
                    all | tiers
                        .iter()
                        .filter(|tier| counts[tier.index()] > 0)
                        .fold(0, |one, tier| one | tier.trees())
                });
                prop_assert_eq!(ledger.trees_of_others(key_of, id), trees);
            }
            let mut cleared = Vec::new();
            ledger.clear(|key, _| cleared.push(key.to_word()));
            cleared.sort_unstable();
            let mut keys: Vec<u64> = model.values().map(|(word, _)| *word).collect();
            keys.sort_unstable();
            keys.dedup();
            prop_assert_eq!(cleared, keys);
            prop_assert_eq!(ledger.len(), 0);
        }
    }
}
