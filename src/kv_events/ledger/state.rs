//! The half-word of an entry: its slice, the trees of the index that contain it, and the number of
//! stores by each tier.

use super::super::paths::tier::{ALL_TREES, Tier};
use forebay_base::ShardIndex;
use forebay_base::limits::SHARDS_MAX;

/// Slice in 6 bits, trees in 3, then counts of stores: 3 bits for the device, 2 for each other
/// tier. With a count at its largest there may be more stores, which [`super::Ledger`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct EntryState(u16);

const SLICE_BITS: u32 = 6;
const TREE_BITS: u32 = 3;
const _: () = assert!(SHARDS_MAX <= 1 << SLICE_BITS);
const _: () = assert!((ALL_TREES as u32) < 1 << TREE_BITS);

impl EntryState {
    /// State of an entry without a store.
    pub(in super::super) fn new(slice: ShardIndex, trees: u8) -> Self {
        Self(slice.0 & ((1 << SLICE_BITS) - 1)).with_trees(trees)
    }

    pub(super) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub(super) const fn to_bits(self) -> u16 {
        self.0
    }

    /// The slice of the entry's path.
    pub(in super::super) const fn slice(self) -> ShardIndex {
        ShardIndex(self.0 & ((1 << SLICE_BITS) - 1))
    }

    /// Trees that contain the entry, a bit each.
    pub(in super::super) fn trees(self) -> u8 {
        u8::try_from(self.0 >> SLICE_BITS & u16::from(ALL_TREES)).unwrap_or(0)
    }

    pub(super) fn with_trees(self, trees: u8) -> Self {
        let rest = self.0 & !(u16::from(ALL_TREES) << SLICE_BITS);
        Self(rest | u16::from(trees & ALL_TREES) << SLICE_BITS)
    }

    /// Stores by that tier, as far as this count goes.
    pub(super) fn count(self, tier: Tier) -> u16 {
        let (shift, most) = field(tier);
        self.0 >> shift & most
    }

    /// True when the tier may have more stores than the count.
    pub(super) fn is_full(self, tier: Tier) -> bool {
        self.count(tier) == field(tier).1
    }

    /// The state after a store by that tier, and whether the count had room for it.
    pub(super) fn with_one_more(self, tier: Tier) -> (Self, bool) {
        let fits = !self.is_full(tier);
        let one = u16::from(fits) << field(tier).0;
        (Self(self.0.wrapping_add(one)), fits)
    }

    /// The state after a store taken back; the count must not be 0.
    pub(super) fn with_one_less(self, tier: Tier) -> Self {
        debug_assert!(self.count(tier) > 0, "a store that was never counted");
        Self(self.0.wrapping_sub(u16::from(self.count(tier) > 0) << field(tier).0))
    }

    /// The tier nearest to the device that stored the entry.
    pub(super) fn lowest_tier(self) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| self.count(*tier) > 0)
    }
}

/// Position and largest value of a tier's count.
const fn field(tier: Tier) -> (u32, u16) {
    const FIRST: u32 = SLICE_BITS + TREE_BITS;
    match tier {
        Tier::Device => (FIRST, 7),
        Tier::Host => (FIRST + 3, 3),
        Tier::Disk => (FIRST + 5, 3),
    }
}
const _: () = assert!(field(Tier::Disk).0 + 2 == u16::BITS);
