//! Which entries have a key: for each of them a word of 24 bits of its id and 8 of the key, at a place that the key
//! gives. The entry is then found by its id, and its key compared, so that a look-up never errs; most that would fail
//! fail by the 8 bits alone. Costs 4 bytes a slot, of which seven tenths or more are in use.

use crate::block::BlockKey;

/// Slots of the smallest table.
const SLOTS_MIN: usize = 64;
const FREE: u32 = 0;
/// A slot whose entry is gone, in the middle of a run. No live slot has a tag of 0.
const GONE: u32 = 1 << TAG_BITS;
const TAG_BITS: u32 = 8;
/// Bits of an id that are kept.
const PREFIX_SHIFT: u32 = 40;

/// The words; a place for each entry of the table beside it.
#[derive(Debug, Default)]
pub(super) struct ByKey {
    slots: Vec<u32>,
    live: usize,
    gone: usize,
}

impl ByKey {
    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// True when one more entry needs [`ByKey::rebuild`] first.
    pub(super) fn is_full(&self) -> bool {
        (self.live + self.gone + 1).saturating_mul(5) > self.slots.len().saturating_mul(4)
    }

    /// Makes room for `entries` and one more, and takes them all anew.
    pub(super) fn rebuild(&mut self, len: usize, entries: impl Iterator<Item = (u64, BlockKey)>) {
        let slots = (len + 1).saturating_mul(7) / 5 + SLOTS_MIN;
        *self = Self { slots: vec![FREE; slots], live: 0, gone: 0 };
        for (id, key) in entries {
            self.insert(id, key);
        }
    }

    /// Adds an entry; there is room, see [`ByKey::is_full`].
    pub(super) fn insert(&mut self, id: u64, key: BlockKey) {
        let mut place = self.home(key);
        for _ in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(place) else { break };
            if *slot == FREE || *slot == GONE {
                self.gone -= usize::from(*slot == GONE);
                *slot = word(id, key);
                self.live += 1;
                return;
            }
            place = self.after(place);
        }
        crate::base::count_broken_invariant();
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, id: u64, key: BlockKey) {
        let wanted = word(id, key);
        let mut place = self.home(key);
        for _ in 0..self.slots.len() {
            let Some(slot) = self.slots.get(place).copied() else { break };
            if slot == wanted {
                return self.free(place);
            }
            if slot == FREE {
                break;
            }
            place = self.after(place);
        }
        crate::base::count_broken_invariant();
    }

    /// Least ids that entries with that key may have; see [`is_candidate`].
    pub(super) fn candidates(&self, key: BlockKey) -> impl Iterator<Item = u64> + '_ {
        let mut place = self.home(key);
        let run = (0..self.slots.len()).map_while(move |_| {
            let slot = self.slots.get(place).copied().filter(|slot| *slot != FREE);
            place = self.after(place);
            slot
        });
        let wanted = tag(key);
        run.filter(move |slot| slot & 0xff == wanted)
            .map(|slot| u64::from(slot >> TAG_BITS) << PREFIX_SHIFT)
    }

    fn free(&mut self, place: usize) {
        let ends = self.slots.get(self.after(place)).is_none_or(|next| *next == FREE);
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = if ends { FREE } else { GONE };
        }
        self.live = self.live.saturating_sub(1);
        self.gone += usize::from(!ends);
    }

    fn home(&self, key: BlockKey) -> usize {
        let scaled = u128::from(key.to_word()) * (self.slots.len() as u128);
        usize::try_from(scaled >> 64).unwrap_or(0)
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 < self.slots.len() { place + 1 } else { 0 }
    }
}

/// True for ids that begin as the candidate `least` does.
pub(super) fn is_candidate(least: u64, id: u64) -> bool {
    id >> PREFIX_SHIFT == least >> PREFIX_SHIFT
}

fn word(id: u64, key: BlockKey) -> u32 {
    let prefix = u32::try_from(id >> PREFIX_SHIFT).unwrap_or(0);
    prefix << TAG_BITS | tag(key)
}

/// 1 to 255, from bits of the key that do not choose its home.
fn tag(key: BlockKey) -> u32 {
    u32::try_from(key.to_word() % 255).unwrap_or(0) + 1
}
