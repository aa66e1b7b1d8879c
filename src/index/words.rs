//! The two value words of a run: its ranks and the byte lengths of its children. Each word holds up
//! to four 16-bit lanes, lowest first and ascending, or a reference to overflow cells. A reference
//! to a list of lengths also holds the root of the children's tags. Equal small sets are equal
//! words. Pure functions, any thread.

use forebay_base::RankIndex;
use forebay_base::limits::{INNER_BLOCK, RANKS_MAX};

/// Lanes of a word; larger sets overflow into cells.
pub(super) const LANES: usize = 4;

/// Set in a word that refers to a cell. No lane reaches this bit, see the assertions below.
const MANY: u64 = 1 << 63;
const CELL_MASK: u64 = u32::MAX as u64;
const LANE_BITS: usize = 16;
const LANE_MASK: u64 = 0xffff;

const _: () = assert!(RANKS_MAX < 1 << 15 && INNER_BLOCK < 1 << 15);
const _: () = assert!(LANES * LANE_BITS == u64::BITS as usize);

/// Number of an overflow cell of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CellId(pub u32);

/// A word that refers to `cell`.
pub(super) const fn many(cell: CellId) -> u64 {
    MANY | cell.0 as u64
}

/// The cell that a word refers to; `None` for a word of lanes. Bits 32 to 62 are ignored.
#[inline]
pub(super) fn cell_of(word: u64) -> Option<CellId> {
    if word & MANY == 0 { None } else { u32::try_from(word & CELL_MASK).ok().map(CellId) }
}

/// A leaf or a node, or neither: 31 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Twig(u32);

/// What a twig leads to.
pub(super) enum TwigKind {
    None,
    Leaf(CellId),
    Node(CellId),
}

impl Twig {
    /// Bits of a twig.
    const BITS: u32 = 31;
    const NODE: u32 = 1 << (Self::BITS - 1);

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(u32::try_from(bits & ((1 << Self::BITS) - 1)).unwrap_or(0))
    }

    pub(super) const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// `None`: the cell's number does not fit.
    pub(super) fn new(cell: CellId, is_node: bool) -> Option<Self> {
        let number = cell.0.checked_add(1).filter(|number| number & !(Self::NODE - 1) == 0)?;
        Some(Self(if is_node { number | Self::NODE } else { number }))
    }

    pub(super) fn kind(self) -> TwigKind {
        match (self.0 & !Self::NODE).checked_sub(1).map(CellId) {
            None => TwigKind::None,
            Some(cell) if self.0 & Self::NODE == 0 => TwigKind::Leaf(cell),
            Some(cell) => TwigKind::Node(cell),
        }
    }
}

/// Position of the twig in the word of a list of lengths.
const TWIG_SHIFT: u32 = 32;
const TWIG_MASK: u64 = ((1 << Twig::BITS) - 1) << TWIG_SHIFT;
const _: () = assert!(TWIG_MASK & (MANY | CELL_MASK) == 0);

/// The twig beside a reference to a list; none beside lanes.
#[inline]
pub(super) fn twig_of(word: u64) -> Twig {
    cell_of(word).map_or_else(Twig::default, |_| Twig::from_bits(word >> TWIG_SHIFT))
}

/// The word of a list with another twig.
pub(super) fn with_twig(word: u64, twig: Twig) -> u64 {
    debug_assert!(cell_of(word).is_some(), "a twig without a list");
    word & !TWIG_MASK | twig.bits() << TWIG_SHIFT
}

/// The lanes in use, ascending.
#[inline]
pub(super) fn lanes(mut word: u64) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let lane = lane(word);
        word >>= LANE_BITS;
        (lane != 0).then_some(lane)
    })
}

/// True if the word contains the lane `wanted`, which is not 0.
#[inline]
pub(super) fn contains(word: u64, wanted: u16) -> bool {
    lanes(word).any(|lane| lane == wanted)
}

/// The word with an added lane; `None` if all lanes are in use. Adding a contained lane changes
/// nothing.
pub(super) fn with(word: u64, added: u16) -> Option<u64> {
    debug_assert!(added != 0, "0 marks a free lane");
    debug_assert!(cell_of(word).is_none(), "a reference taken for lanes");
    if contains(word, added) {
        return Some(word);
    }
    if lanes(word).count() == LANES {
        return None;
    }
    let below = lanes(word).filter(|lane| *lane < added);
    let above = lanes(word).filter(|lane| *lane > added);
    Some(from_lanes(below.chain([added]).chain(above)))
}

/// The word without a lane.
pub(super) fn without(word: u64, removed: u16) -> u64 {
    from_lanes(lanes(word).filter(|lane| *lane != removed))
}

/// The word of at most [`LANES`] lanes, given in ascending order.
pub(super) fn from_lanes(lanes: impl Iterator<Item = u16>) -> u64 {
    let word = lanes
        .take(LANES)
        .enumerate()
        .fold(0, |word, (i, lane)| word | u64::from(lane) << (i * LANE_BITS));
    // Equal sets have to be equal words: `Ranks::narrow` compares words, not sets.
    debug_assert!(self::lanes(word).is_sorted_by(|a, b| a < b), "lanes out of order");
    word
}

/// A rank as a lane: its number plus 1, since 0 marks a free lane.
#[inline]
pub(super) const fn rank_lane(rank: RankIndex) -> u16 {
    rank.0.saturating_add(1)
}

/// The rank of a lane.
#[inline]
pub(super) const fn lane_rank(lane: u16) -> RankIndex {
    debug_assert!(lane != 0, "a free lane has no rank");
    RankIndex(lane.saturating_sub(1))
}

#[inline]
fn lane(word: u64) -> u16 {
    u16::try_from(word & LANE_MASK).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_stay_sorted_whatever_the_order() {
        let forward = [3, 7, 9].into_iter().try_fold(0, with).expect("room");
        let backward = [9, 3, 7].into_iter().try_fold(0, with).expect("room");
        assert_eq!(forward, backward);
        assert_eq!(lanes(forward).collect::<Vec<_>>(), [3, 7, 9]);
        assert_eq!(with(forward, 7), Some(forward));
        let full = with(forward, 5).expect("room");
        assert_eq!((with(full, 1), with(full, 9)), (None, Some(full)));
        assert_eq!(lanes(without(full, 5)).collect::<Vec<_>>(), [3, 7, 9]);
        assert_eq!(without(without(forward, 4), 3), from_lanes([7, 9].into_iter()));
        assert!(contains(full, 5) && !contains(full, 4));
    }

    #[test]
    fn a_cell_is_never_a_set_of_lanes() {
        let largest = INNER_BLOCK;
        assert_eq!(cell_of(from_lanes(largest - 3..=largest)), None);
        assert_eq!(cell_of(many(CellId(u32::MAX))), Some(CellId(u32::MAX)));
        assert_eq!(cell_of(many(CellId(0))), Some(CellId(0)));
        let twig = Twig::new(CellId((1 << 30) - 2), true).unwrap();
        let list = with_twig(many(CellId(u32::MAX)), twig);
        assert_eq!((cell_of(list), twig_of(list)), (Some(CellId(u32::MAX)), twig));
        assert_eq!(with_twig(list, Twig::default()), many(CellId(u32::MAX)));
        assert_eq!(Twig::new(CellId((1 << 30) - 1), true), None);
        assert_eq!(lane_rank(rank_lane(RankIndex(0))), RankIndex(0));
    }
}
