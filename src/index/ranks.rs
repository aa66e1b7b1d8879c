//! The ranks that a walk still follows: those that hold every block so far.

use super::overlaps::{Overlap, Overlaps};
use super::table::{CELL_WORDS, Node, Spill};
use super::words::{LANES, cell_of, contains, from_lanes, lane_rank, lanes, rank_lane};
use crate::base::RankIndex;

/// Ranks that fit a word.
const FEW: u32 = 4;
const _: () = assert!(FEW as usize == LANES);

/// A set of ranks: lanes of a word while they are few, a bitset beyond.
#[derive(Clone, Debug)]
pub(super) enum Ranks {
    /// As in `index::words`.
    Few(u64),
    /// Bit `r` stands for the rank `r`.
    Many([u64; CELL_WORDS]),
}

impl Ranks {
    /// All ranks of an entry.
    pub(super) fn of(node: Node, spill: &Spill) -> Self {
        match cell_of(node.ranks) {
            None => Self::Few(node.ranks),
            Some(_) => Self::Many(spill.rank_bits),
        }
    }

    /// True when one of them holds the entry.
    #[inline]
    pub(super) fn meet(&self, node: Node, spill: &Spill) -> bool {
        match (self, cell_of(node.ranks)) {
            (Self::Few(word), None) => {
                *word == node.ranks || lanes(*word).any(|lane| contains(node.ranks, lane))
            }
            (Self::Few(word), Some(_)) => lanes(*word).any(|lane| has(&spill.rank_bits, lane)),
            (Self::Many(bits), None) => lanes(node.ranks).any(|lane| has(bits, lane)),
            (Self::Many(bits), Some(_)) => {
                bits.iter().zip(&spill.rank_bits).any(|(a, b)| a & b != 0)
            }
        }
    }

    /// Drops the ranks that do not hold the entry; they get what was found before it.
    #[inline]
    pub(super) fn narrow(
        &mut self,
        node: Node,
        spill: &Spill,
        before: Overlap,
        out: &mut Overlaps,
    ) {
        let kept = match (&mut *self, cell_of(node.ranks)) {
            (Self::Few(word), None) if *word == node.ranks => return,
            (Self::Few(word), None) => split(*word, out, before, |lane| contains(node.ranks, lane)),
            (Self::Few(word), Some(_)) => {
                split(*word, out, before, |lane| has(&spill.rank_bits, lane))
            }
            (Self::Many(bits), None) => {
                let kept = from_lanes(lanes(node.ranks).filter(|lane| has(bits, *lane)));
                for lane in lanes(kept) {
                    clear(bits, lane);
                }
                record_bits(bits, before, out);
                kept
            }
            (Self::Many(bits), Some(_)) => {
                let mut left = [0; CELL_WORDS];
                let mut kept_count = 0_u32;
                for ((bits, held), left) in bits.iter_mut().zip(&spill.rank_bits).zip(&mut left) {
                    *left = *bits & !held;
                    *bits &= held;
                    kept_count += bits.count_ones();
                }
                record_bits(&left, before, out);
                if kept_count > FEW {
                    return;
                }
                from_lanes(bit_ranks(bits).map(rank_lane))
            }
        };
        *self = Self::Few(kept);
    }

    /// All of them end here.
    pub(super) fn record(&self, found: Overlap, out: &mut Overlaps) {
        match self {
            Self::Few(word) => lanes(*word).for_each(|lane| out.record(lane_rank(lane), found)),
            Self::Many(bits) => record_bits(bits, found, out),
        }
    }
}

/// The lanes that `stays` keeps; the others are recorded.
#[inline]
fn split(word: u64, out: &mut Overlaps, before: Overlap, stays: impl Fn(u16) -> bool) -> u64 {
    from_lanes(lanes(word).filter(|lane| {
        let stays = stays(*lane);
        if !stays {
            out.record(lane_rank(*lane), before);
        }
        stays
    }))
}

fn record_bits(bits: &[u64; CELL_WORDS], found: Overlap, out: &mut Overlaps) {
    if bits.iter().any(|word| *word != 0) {
        bit_ranks(bits).for_each(|rank| out.record(rank, found));
    }
}

fn bit_ranks(bits: &[u64; CELL_WORDS]) -> impl Iterator<Item = RankIndex> {
    (0_u16..).step_by(64).zip(bits).flat_map(|(first, word)| {
        let mut rest = *word;
        std::iter::from_fn(move || {
            let bit = u16::try_from(rest.trailing_zeros()).unwrap_or(0);
            let found = (rest != 0).then_some(RankIndex(first + bit));
            rest &= rest.wrapping_sub(1);
            found
        })
    })
}

#[inline]
fn has(bits: &[u64; CELL_WORDS], lane: u16) -> bool {
    let rank = lane_rank(lane).index();
    bits.get(rank / 64).is_some_and(|word| word >> (rank % 64) & 1 == 1)
}

#[inline]
fn clear(bits: &mut [u64; CELL_WORDS], lane: u16) {
    let rank = lane_rank(lane).index();
    if let Some(word) = bits.get_mut(rank / 64) {
        *word &= !(1 << (rank % 64));
    }
}
