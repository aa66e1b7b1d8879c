//! Finds entries by key. Each entry has a word with some bits of its id and of its key, near the
//! home that the key determines. A look-up finds the entry by its id and compares the key, so that
//! its result is exact; the word alone rules most other entries out. Robin Hood hashing: words are
//! in the order of their homes and contain their distance from home, so that a removal leaves no
//! tombstone. Costs 4 bytes a slot, and at most seven eighths of the slots are in use.

use forebay_index::BlockKey;

/// Slots of the smallest table.
const SLOTS_MIN: usize = 64;
/// Low bits: the distance from home plus 1; 0 in a free slot.
const DISTANCE_BITS: u32 = 6;
const DISTANCE_MASK: u32 = (1 << DISTANCE_BITS) - 1;
/// The next bits, which come from the key.
const TAG_BITS: u32 = 6;
/// The other bits: the highest bits of the id.
const PREFIX_SHIFT: u32 = u64::BITS - (u32::BITS - DISTANCE_BITS - TAG_BITS);

/// Words of all entries.
#[derive(Debug, Default)]
pub(super) struct KeyIndex {
    slots: Vec<u32>,
    len: usize,
}

impl KeyIndex {
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// An index with room for `room_for` entries. `None` when a word would be too far from home:
    /// try a larger number.
    pub(super) fn of(
        room_for: usize,
        entries: impl Iterator<Item = (u64, BlockKey)>,
    ) -> Option<Self> {
        let slots = room_for.saturating_mul(8) / 7 + SLOTS_MIN;
        let mut table = Self { slots: vec![0; slots], len: 0 };
        for (id, key) in entries {
            if !table.insert(id, key) {
                return None;
            }
        }
        Some(table)
    }

    /// Adds an entry. False when there is no room, or a word would be too far from home: then the
    /// index lacks an entry and must be rebuilt.
    pub(super) fn insert(&mut self, id: u64, key: BlockKey) -> bool {
        if (self.len + 1).saturating_mul(8) > self.slots.len().saturating_mul(7) {
            return false;
        }
        let mut place = self.home(key);
        let mut word = word(id, key);
        loop {
            word += 1;
            let Some(slot) = self.slots.get_mut(place) else { return false };
            if *slot == 0 {
                *slot = word;
                self.len += 1;
                return true;
            }
            if distance(*slot) < distance(word) {
                std::mem::swap(slot, &mut word);
            }
            if distance(word) == DISTANCE_MASK {
                return false;
            }
            place = self.after(place);
        }
    }

    /// Takes an entry out. Followers that are not at home move up.
    pub(super) fn remove(&mut self, id: u64, key: BlockKey) {
        let wanted = word(id, key);
        let found = self.run(key).find(|(_, slot)| slot & !DISTANCE_MASK == wanted);
        let Some((mut place, _)) = found else {
            debug_assert!(false, "an entry without its word");
            forebay_base::count_broken_invariant();
            return;
        };
        loop {
            let next = self.after(place);
            let follower = self.slots.get(next).copied().unwrap_or(0);
            let moves = distance(follower) > 1;
            if let Some(slot) = self.slots.get_mut(place) {
                *slot = if moves { follower - 1 } else { 0 };
            }
            if !moves {
                break;
            }
            place = next;
        }
        self.len = self.len.saturating_sub(1);
    }

    /// Prefixes of the ids that may have the key, each as the least id with that prefix, see
    /// [`is_candidate`].
    pub(super) fn candidates(&self, key: BlockKey) -> impl Iterator<Item = u64> + '_ {
        let wanted = tag(key);
        let same = self.run(key).map(|(_, slot)| slot >> DISTANCE_BITS);
        same.filter(move |slot| slot & ((1 << TAG_BITS) - 1) == wanted)
            .map(|slot| u64::from(slot >> TAG_BITS) << PREFIX_SHIFT)
    }

    /// Words with the same home as the key, with their places.
    fn run(&self, key: BlockKey) -> impl Iterator<Item = (usize, u32)> + '_ {
        let mut place = self.home(key);
        let mut away = 0;
        let run = std::iter::from_fn(move || {
            let slot = self.slots.get(place).copied()?;
            away += 1;
            let here = place;
            place = self.after(place);
            (distance(slot) >= away && away <= DISTANCE_MASK).then_some((here, slot, away))
        });
        run.filter(|(_, slot, away)| distance(*slot) == *away).map(|(place, slot, _)| (place, slot))
    }

    fn home(&self, key: BlockKey) -> usize {
        let scaled = u128::from(key.to_word()) * (self.slots.len() as u128);
        usize::try_from(scaled >> 64).unwrap_or(0)
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 < self.slots.len() { place + 1 } else { 0 }
    }
}

/// True for ids with the prefix of the candidate `least`.
pub(super) fn is_candidate(least: u64, id: u64) -> bool {
    id >> PREFIX_SHIFT == least >> PREFIX_SHIFT
}

/// The word of an entry, without its distance.
fn word(id: u64, key: BlockKey) -> u32 {
    let prefix = u32::try_from(id >> PREFIX_SHIFT).unwrap_or(0);
    (prefix << TAG_BITS | tag(key)) << DISTANCE_BITS
}

/// Bits of the key that do not determine its home.
fn tag(key: BlockKey) -> u32 {
    u32::try_from(key.to_word() & ((1 << TAG_BITS) - 1)).unwrap_or(0)
}

fn distance(slot: u32) -> u32 {
    slot & DISTANCE_MASK
}
