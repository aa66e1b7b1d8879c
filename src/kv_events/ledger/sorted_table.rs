//! A map in three flat arrays: ids ascending with gaps between them. The home of an id is its value
//! as a fraction of all ids, and the id is near its home. Costs 18 bytes a slot, and at least four
//! fifths of the slots are in use while the table grows. A search and a removal touch a run of
//! neighbours, an insertion moves part of a run.

/// Slots of the smallest table.
const HOMES_MIN: usize = 64;
/// Slots added at once behind the last home, where runs that end there continue.
const TAIL_SLOTS: usize = 64;

/// Ids to a word and a half-word; a word of 0 marks a free slot.
#[derive(Clone, Debug, Default)]
pub(super) struct SortedTable {
    ids: Vec<u64>,
    words: Vec<u64>,
    states: Vec<u16>,
    /// Slots that may be the home of an id.
    home_count: usize,
    len: usize,
}

/// An id with its word and state.
#[derive(Clone, Copy, Debug)]
pub(super) struct SortedEntry {
    pub(super) id: u64,
    pub(super) word: u64,
    pub(super) state: u16,
}

impl SortedTable {
    /// Bytes of a slot in the three arrays.
    pub(super) const SLOT_BYTES: usize = size_of::<u64>() * 2 + size_of::<u16>();

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        (self.ids.capacity() + self.words.capacity()) * size_of::<u64>()
            + self.states.capacity() * size_of::<u16>()
    }

    /// The place of an id.
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        let place = self.lower_bound(id);
        (self.id(place) == Some(id)).then_some(place)
    }

    /// The entry at a place; `None` for a free slot.
    pub(super) fn at(&self, place: usize) -> Option<SortedEntry> {
        let id = self.id(place)?;
        let word = self.words.get(place).copied()?;
        let state = self.states.get(place).copied()?;
        Some(SortedEntry { id, word, state })
    }

    pub(super) fn set_state(&mut self, place: usize, state: u16) {
        if let Some(slot) = self.states.get_mut(place) {
            *slot = state;
        }
    }

    /// Ids and words of entries with at least the id `id`, ascending.
    pub(super) fn from(&self, id: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let slots = self.ids.iter().zip(&self.words).skip(self.lower_bound(id));
        slots.filter(|(_, word)| **word != 0).map(|(id, word)| (*id, *word))
    }

    /// All entries, ascending by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = SortedEntry> + '_ {
        let slots = self.ids.iter().zip(&self.words).zip(&self.states);
        let used = slots.filter(|((_, word), _)| **word != 0);
        used.map(|((id, word), state)| SortedEntry { id: *id, word: *word, state: *state })
    }

    /// Adds a new id; `word` must not be 0.
    pub(super) fn insert(&mut self, id: u64, word: u64, state: u16) {
        debug_assert!(word != 0 && self.find(id).is_none());
        // Nine tenths: beyond it the runs, and with them every operation, grow fast.
        if (self.len + 1).saturating_mul(10) > self.home_count.saturating_mul(9) {
            self.resize(self.home_count + self.home_count / 10 + HOMES_MIN);
        }
        let place = self.lower_bound(id);
        let mut free = place;
        while self.id(free).is_some() {
            free += 1;
        }
        if free == self.ids.len() {
            self.push_free(TAIL_SLOTS);
        }
        self.ids.copy_within(place..free, place + 1);
        self.words.copy_within(place..free, place + 1);
        self.states.copy_within(place..free, place + 1);
        self.put(place, id, word, state);
        self.len += 1;
    }

    /// Takes out the entry at a place. Followers that are not at home move up.
    pub(super) fn remove(&mut self, place: usize) {
        if self.id(place).is_none() {
            return;
        }
        let mut end = place + 1;
        while self.id(end).is_some_and(|id| self.home(id) < end) {
            end += 1;
        }
        self.ids.copy_within(place + 1..end, place);
        self.words.copy_within(place + 1..end, place);
        self.states.copy_within(place + 1..end, place);
        self.put(end - 1, 0, 0, 0);
        self.len -= 1;
        if self.home_count > HOMES_MIN && self.len < self.home_count / 4 {
            self.resize((self.len * 5 / 4).max(HOMES_MIN));
        }
    }

    fn lower_bound(&self, id: u64) -> usize {
        let mut place = self.home(id);
        while self.id(place).is_some_and(|other| other < id) {
            place += 1;
        }
        place
    }

    fn home(&self, id: u64) -> usize {
        let scaled = u128::from(id) * (self.home_count as u128);
        usize::try_from(scaled >> 64).unwrap_or(0)
    }

    fn id(&self, place: usize) -> Option<u64> {
        let used = self.words.get(place).is_some_and(|word| *word != 0);
        if used { self.ids.get(place).copied() } else { None }
    }

    fn put(&mut self, place: usize, id: u64, word: u64, state: u16) {
        let slots =
            (self.ids.get_mut(place), self.words.get_mut(place), self.states.get_mut(place));
        if let (Some(to_id), Some(to_word), Some(to_state)) = slots {
            *to_id = id;
            *to_word = word;
            *to_state = state;
        }
    }

    fn push_free(&mut self, count: usize) {
        let slots = self.ids.len() + count;
        // Exactly: a vector would double its capacity, and this table exists to save that memory.
        self.ids.reserve_exact(count);
        self.words.reserve_exact(count);
        self.states.reserve_exact(count);
        self.ids.resize(slots, 0);
        self.words.resize(slots, 0);
        self.states.resize(slots, 0);
    }

    fn resize(&mut self, home_count: usize) {
        let mut wider = Self { home_count, ..Self::default() };
        wider.push_free(home_count + TAIL_SLOTS);
        let mut next = 0;
        for SortedEntry { id, word, state } in self.iter() {
            let place = wider.home(id).max(next);
            if place >= wider.ids.len() {
                wider.push_free(TAIL_SLOTS);
            }
            wider.put(place, id, word, state);
            next = place + 1;
        }
        wider.len = self.len;
        *self = wider;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Ids from few places, so that runs are long and cross the table's end.
        #[test]
        fn agrees_with_a_tree(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..300, 0_u64..4), 0..1_500),
        ) {
            let mut table = SortedTable::default();
            let mut model = BTreeMap::new();
            for (adds, low, high) in steps {
                let id =
                    low | [0, 1 << 40, u64::MAX - 1_023, 1 << 63][usize::try_from(high).unwrap()];
                match (table.find(id), adds) {
                    (None, true) => {
                        table.insert(id, low + 1, 7);
                        model.insert(id, low + 1);
                    }
                    (Some(place), false) => {
                        table.remove(place);
                        model.remove(&id);
                    }
                    (found, _) => prop_assert_eq!(found.is_some(), model.contains_key(&id)),
                }
                prop_assert_eq!(table.len(), model.len());
            }
            let entries: Vec<_> = table.iter().map(|entry| (entry.id, entry.word)).collect();
            prop_assert_eq!(
                &entries,
                &model.iter().map(|(id, word)| (*id, *word)).collect::<Vec<_>>()
            );
            for id in model.keys() {
                prop_assert!(table.find(*id).is_some());
                prop_assert_eq!(table.from(*id).next().map(|(found, _)| found), Some(*id));
            }
        }
    }
}
