//! A flat table of paths and the ranks that hold them: open addressing, linear probing, sixteen
//! bytes a slot.

/// Ranks that a slot itself has room for.
const FEW: usize = 4;
const LANE_BITS: usize = 15;
const LANE: u64 = (1 << LANE_BITS) - 1;
/// Marks a value that names a bitset.
const MANY: u64 = 1 << 63;
const BITSET_WORDS: usize = 16;

#[derive(Default)]
pub(crate) struct FlatTable {
    /// Path and value; a path of 0 is an empty slot.
    slots: Vec<(u64, u64)>,
    count: usize,
    bitsets: Vec<Bitset>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Bitset {
    bits: [u64; BITSET_WORDS],
    count: usize,
}

/// Ranks of one path.
pub(crate) enum RankSet<'a> {
    Few(u64),
    Many(&'a [u64; BITSET_WORDS], usize),
}

impl RankSet<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(value) => lanes(*value).count(),
            Self::Many(_, count) => *count,
        }
    }

    fn has(&self, rank: u16) -> bool {
        match self {
            Self::Few(value) => lanes(*value).any(|lane| lane == rank),
            Self::Many(bits, _) => bits[usize::from(rank) / 64] >> (rank % 64) & 1 == 1,
        }
    }

    /// Calls for each rank that is not in the other set.
    pub(crate) fn without(&self, other: Option<&Self>, mut each: impl FnMut(u16)) {
        match (self, other) {
            (Self::Few(value), _) => lanes(*value)
                .filter(|rank| other.is_none_or(|other| !other.has(*rank)))
                .for_each(each),
            (Self::Many(bits, _), Some(Self::Many(others, _))) => {
                for (at, (bits, others)) in bits.iter().zip(*others).enumerate() {
                    bit_ranks(at, bits & !others, &mut each);
                }
            }
            (Self::Many(bits, _), _) => {
                for (at, bits) in bits.iter().enumerate() {
                    bit_ranks(at, *bits, &mut |rank| {
                        if other.is_none_or(|other| !other.has(rank)) {
                            each(rank);
                        }
                    });
                }
            }
        }
    }
}

fn lanes(mut value: u64) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let lane = value & LANE;
        value >>= LANE_BITS;
        (lane != 0).then(|| lane as u16 - 1)
    })
}

fn bit_ranks(word: usize, mut bits: u64, each: &mut impl FnMut(u16)) {
    while bits != 0 {
        each(word as u16 * 64 + bits.trailing_zeros() as u16);
        bits &= bits - 1;
    }
}

impl FlatTable {
    #[inline]
    pub(crate) fn get(&self, path: u64) -> Option<RankSet<'_>> {
        let (_, value) = *self.slots.get(self.find(path)?)?;
        if value & MANY == 0 {
            return Some(RankSet::Few(value));
        }
        let set = &self.bitsets[(value & !MANY) as usize];
        Some(RankSet::Many(&set.bits, set.count))
    }

    /// Has the slot on its way to the cache.
    #[inline]
    pub(crate) fn prefetch(&self, path: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let slot = self.slots.as_ptr().wrapping_add(self.home(path));
            // SAFETY: a prefetch reads nothing, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(slot.cast()) };
        }
    }

    pub(crate) fn insert(&mut self, path: u64, rank: u16) {
        if self.count >= self.slots.len() / 8 * 7 {
            self.grow();
        }
        let mut at = self.home(path);
        while self.slots[at].0 != path && self.slots[at].0 != 0 {
            at = (at + 1) & (self.slots.len() - 1);
        }
        if self.slots[at].0 == 0 {
            self.count += 1;
            self.slots[at] = (path, 0);
        }
        self.slots[at].1 = self.with(self.slots[at].1, rank);
    }

    pub(crate) fn remove(&mut self, path: u64, rank: u16) {
        let Some(at) = self.find(path) else { return };
        let value = self.slots[at].1;
        let left = if value & MANY == 0 {
            from_lanes(lanes(value).filter(|lane| *lane != rank))
        } else {
            let set = &mut self.bitsets[(value & !MANY) as usize];
            let bit = 1 << (rank % 64);
            set.count -= usize::from(set.bits[usize::from(rank) / 64] & bit != 0);
            set.bits[usize::from(rank) / 64] &= !bit;
            if set.count > FEW {
                return;
            }
            let mut ranks = Vec::with_capacity(FEW);
            for (word, bits) in set.bits.iter().enumerate() {
                bit_ranks(word, *bits, &mut |rank| ranks.push(rank));
            }
            self.free.push((value & !MANY) as u32);
            from_lanes(ranks.into_iter())
        };
        self.slots[at].1 = left;
        if left == 0 {
            self.close(at);
        }
    }

    fn with(&mut self, value: u64, rank: u16) -> u64 {
        if value & MANY != 0 {
            self.bitsets[(value & !MANY) as usize].add(rank);
            return value;
        }
        if lanes(value).any(|lane| lane == rank) {
            return value;
        }
        if lanes(value).count() < FEW {
            return value << LANE_BITS | u64::from(rank + 1);
        }
        let mut set = Bitset::default();
        lanes(value).chain([rank]).for_each(|rank| set.add(rank));
        let name = self.free.pop().unwrap_or(self.bitsets.len() as u32);
        if name as usize == self.bitsets.len() {
            self.bitsets.push(set);
        } else {
            self.bitsets[name as usize] = set;
        }
        MANY | u64::from(name)
    }

    /// Empties a slot and moves those behind it that belong further ahead.
    fn close(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let path = self.slots[at].0;
            if path == 0 {
                break;
            }
            if at.wrapping_sub(self.home(path)) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = (0, 0);
        self.count -= 1;
    }

    fn grow(&mut self) {
        let larger = vec![(0, 0); (self.slots.len() * 2).max(1_024)];
        let slots = std::mem::replace(&mut self.slots, larger);
        let mask = self.slots.len() - 1;
        for slot in slots.into_iter().filter(|slot| slot.0 != 0) {
            let mut at = self.home(slot.0);
            while self.slots[at].0 != 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = slot;
        }
    }

    #[inline]
    fn home(&self, path: u64) -> usize {
        path as usize & self.slots.len().wrapping_sub(1)
    }

    #[inline]
    fn find(&self, path: u64) -> Option<usize> {
        let mut at = self.home(path);
        loop {
            match self.slots.get(at)?.0 {
                0 => return None,
                stored if stored == path => return Some(at),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }
}

impl Bitset {
    fn add(&mut self, rank: u16) {
        let word = &mut self.bits[usize::from(rank) / 64];
        let bit = 1 << (rank % 64);
        self.count += usize::from(*word & bit == 0);
        *word |= bit;
    }
}

fn from_lanes(ranks: impl Iterator<Item = u16>) -> u64 {
    ranks.fold(0, |value, rank| value << LANE_BITS | u64::from(rank + 1))
}
