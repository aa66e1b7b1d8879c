//! The two value words of an entry: its ranks and the byte lengths of its children. Each holds up
//! to four 16-bit lanes, lowest first and ascending, or a reference to overflow cells. Equal small
//! sets are equal words. Pure functions, any thread.

use forebay_base::RankIndex;
use forebay_base::limits::{BLOCK_BYTES_MAX, RANKS_MAX};

/// Lanes of a word; larger sets overflow into cells.
pub(super) const LANES: usize = 4;

/// Set in a word that refers to a cell. No lane reaches this bit, see the assertions below.
const MANY: u64 = 1 << 63;
const LANE_BITS: usize = 16;
const LANE_MASK: u64 = 0xffff;

const _: () = assert!(RANKS_MAX < 1 << 15 && BLOCK_BYTES_MAX < 1 << 15);
const _: () = assert!(LANES * LANE_BITS == u64::BITS as usize);

/// Number of one overflow cell of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CellId(pub u32);

/// A word that refers to `cell`.
pub(super) const fn many(cell: CellId) -> u64 {
    MANY | cell.0 as u64
}

/// The cell that a word refers to; `None` for a word of lanes.
#[inline]
pub(super) fn cell_of(word: u64) -> Option<CellId> {
    if word & MANY == 0 { None } else { u32::try_from(word & !MANY).ok().map(CellId) }
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

/// True when one of the lanes is `wanted`, which is not 0.
#[inline]
pub(super) fn contains(word: u64, wanted: u16) -> bool {
    lanes(word).any(|lane| lane == wanted)
}

/// The word with one more lane; `None` when all are taken. A lane that is there already stays as it
/// is.
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

/// The word without one lane.
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

/// A rank as a lane: one more than its number, since 0 marks a free lane.
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
        let largest = u16::try_from(BLOCK_BYTES_MAX).expect("a lane");
        assert_eq!(cell_of(from_lanes(largest - 3..=largest)), None);
        assert_eq!(cell_of(many(CellId(u32::MAX))), Some(CellId(u32::MAX)));
        assert_eq!(cell_of(many(CellId(0))), Some(CellId(0)));
        assert_eq!(lane_rank(rank_lane(RankIndex(0))), RankIndex(0));
    }
}
