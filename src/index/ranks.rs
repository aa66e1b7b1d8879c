//! The ranks that a walk still follows: they hold every block so far.

use super::table::{CELL_WORDS, RunView};
use super::words::{LANES, cell_of, contains, from_lanes, lane_rank, lanes, rank_lane};
use forebay_base::RankIndex;

/// Ranks that fit a word.
const FEW: u32 = 4;
const _: () = assert!(FEW as usize == LANES);

/// A set of ranks: lanes of a word while they are few, a bitset beyond.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "with `ranks_4096`; one set lives for a walk")]
pub(super) enum Ranks {
    /// Before the first block.
    All,
    /// As in `index::words`.
    Few(u64),
    /// Bit `r` stands for the rank `r`.
    Many([u64; CELL_WORDS]),
}

impl Ranks {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::All => false,
            Self::Few(word) => *word == 0,
            Self::Many(bits) => bits.iter().all(|word| *word == 0),
        }
    }

    /// Splits the set into the ranks that hold the whole run, and the rest.
    #[inline]
    pub(super) fn part(&self, view: &RunView) -> (Self, Self) {
        let in_run = |lane: u16| match cell_of(view.ranks) {
            None => contains(view.ranks, lane) || is_whole_part(view, lane),
            Some(_) => has(&view.rank_bits, lane) || is_whole_part(view, lane),
        };
        match self {
            Self::All => {
                let whole = match cell_of(view.ranks) {
                    None => Self::Few(view.ranks),
                    Some(_) => Self::Many(view.rank_bits),
                };
                (whole, Self::All)
            }
            Self::Few(word) => {
                let followed = from_lanes(lanes(*word).filter(|lane| in_run(*lane)));
                let left = from_lanes(lanes(*word).filter(|lane| !in_run(*lane)));
                (Self::Few(followed), Self::Few(left))
            }
            Self::Many(bits) => {
                let mut held = view.rank_bits;
                if cell_of(view.ranks).is_none() {
                    held = [0; CELL_WORDS];
                    lanes(view.ranks).for_each(|lane| set(&mut held, lane));
                }
                let whole = whole_mask(view);
                let wholes = view.partial.iter().filter(|(_, mask)| *mask & whole == whole);
                wholes.for_each(|(lane, _)| set(&mut held, *lane));
                let mut left = *bits;
                let mut followed_count = 0;
                for (left, held) in left.iter_mut().zip(&mut held) {
                    *held &= *left;
                    *left &= !*held;
                    followed_count += held.count_ones();
                }
                (few_if_few(held, followed_count), Self::Many(left))
            }
        }
    }

    /// Removes a lane; false if it was not in the set.
    pub(super) fn take(&mut self, lane: u16) -> bool {
        match self {
            Self::All => true,
            Self::Few(word) => {
                let there = contains(*word, lane);
                *word = from_lanes(lanes(*word).filter(|other| *other != lane));
                there
            }
            Self::Many(bits) => {
                let there = has(bits, lane);
                clear(bits, lane);
                there
            }
        }
    }
}

/// A bit for each block of the run.
fn whole_mask(view: &RunView) -> u64 {
    (1 << view.block_count) - 1
}

/// True for a rank that is listed with a part that covers the whole run.
fn is_whole_part(view: &RunView, lane: u16) -> bool {
    let whole = whole_mask(view);
    view.partial.iter().any(|(other, mask)| *other == lane && *mask & whole == whole)
}

fn few_if_few(bits: [u64; CELL_WORDS], count: u32) -> Ranks {
    debug_assert_eq!(count, bits.iter().map(|word| word.count_ones()).sum::<u32>());
    if count > FEW {
        return Ranks::Many(bits);
    }
    Ranks::Few(from_lanes(bit_ranks(&bits).map(rank_lane)))
}

pub(super) fn bit_ranks(bits: &[u64; CELL_WORDS]) -> impl Iterator<Item = RankIndex> {
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
pub(super) fn has(bits: &[u64; CELL_WORDS], lane: u16) -> bool {
    let rank = lane_rank(lane).index();
    bits.get(rank / 64).is_some_and(|word| word >> (rank % 64) & 1 == 1)
}

fn set(bits: &mut [u64; CELL_WORDS], lane: u16) {
    let rank = lane_rank(lane).index();
    if let Some(word) = bits.get_mut(rank / 64) {
        *word |= 1 << (rank % 64);
    }
}

fn clear(bits: &mut [u64; CELL_WORDS], lane: u16) {
    let rank = lane_rank(lane).index();
    if let Some(word) = bits.get_mut(rank / 64) {
        *word &= !(1 << (rank % 64));
    }
}
