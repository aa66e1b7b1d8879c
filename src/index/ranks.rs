//! The ranks that a walk still follows: they hold every block so far.

use super::table::{CELL_WORDS, RunView, whole};
use super::words::{LANES, cell_of, contains, from_lanes, lane_rank, lanes, rank_lane, with};
use forebay_base::RankIndex;

/// A set of ranks: lanes of a word while they are few, a bitset beyond.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "512 bytes with `ranks_4096`; a set per waiting branch, at most `BRANCHES_MAX`"
)]
pub(super) enum Ranks {
    /// Every rank: the set before the first run.
    All,
    /// As in `index::words`.
    Few(u64),
    /// Bit `r` stands for the rank `r`. May hold few ranks: only [`Self::split`] compacts, and only
    /// its first result.
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

    /// Splits the set into the ranks that hold the whole run, and the rest. A listed part that
    /// covers the run counts as the whole run: the owner leaves such a part where memory for the
    /// set is short, and where a window joins a run with a single rank. The rest of [`Self::All`]
    /// is [`Self::All`]; nothing is recorded for ranks that are not listed.
    #[inline]
    pub(super) fn split(&self, view: &RunView) -> (Self, Self) {
        let in_run = |lane: u16| match cell_of(view.ranks) {
            None => contains(view.ranks, lane) || is_whole_part(view, lane),
            Some(_) => has_lane(&view.rank_bits, lane) || is_whole_part(view, lane),
        };
        match self {
            Self::All => {
                let mut set = match cell_of(view.ranks) {
                    None => Self::Few(view.ranks),
                    Some(_) => Self::Many(view.rank_bits),
                };
                whole_parts(view).for_each(|lane| set.insert(lane));
                (set, Self::All)
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
                whole_parts(view).for_each(|lane| set(&mut held, lane));
                let mut left = *bits;
                let mut followed_count = 0;
                for (left, held) in left.iter_mut().zip(&mut held) {
                    *held &= *left;
                    *left &= !*held;
                    followed_count += held.count_ones();
                }
                (compacted(held, followed_count), Self::Many(left))
            }
        }
    }

    /// Adds a lane. A full word becomes a bitset.
    fn insert(&mut self, lane: u16) {
        match self {
            Self::All => {}
            Self::Few(word) => {
                if let Some(more) = with(*word, lane) {
                    *word = more;
                    return;
                }
                let mut bits = [0; CELL_WORDS];
                lanes(*word).chain([lane]).for_each(|lane| set(&mut bits, lane));
                *self = Self::Many(bits);
            }
            Self::Many(bits) => set(bits, lane),
        }
    }

    /// Removes a lane; false if it was not in the set. [`Self::All`] stays as it is: a run lists a
    /// lane once, and `record` does nothing for [`Self::All`].
    pub(super) fn remove(&mut self, lane: u16) -> bool {
        match self {
            Self::All => true,
            Self::Few(word) => {
                let there = contains(*word, lane);
                *word = from_lanes(lanes(*word).filter(|other| *other != lane));
                there
            }
            Self::Many(bits) => {
                let there = has_lane(bits, lane);
                clear(bits, lane);
                there
            }
        }
    }
}

/// Lanes that are listed with a part that covers the whole run.
fn whole_parts(view: &RunView) -> impl Iterator<Item = u16> + '_ {
    let all = whole(view.block_count);
    view.partial.iter().filter(move |(_, mask)| *mask & all == all).map(|(lane, _)| *lane)
}

fn is_whole_part(view: &RunView, lane: u16) -> bool {
    whole_parts(view).any(|other| other == lane)
}

/// The bitset as a word where its ranks fit a word.
fn compacted(bits: [u64; CELL_WORDS], count: u32) -> Ranks {
    debug_assert_eq!(count, bits.iter().map(|word| word.count_ones()).sum::<u32>());
    if usize::try_from(count).is_ok_and(|count| count <= LANES) {
        return Ranks::Few(from_lanes(bit_ranks(&bits).map(rank_lane)));
    }
    Ranks::Many(bits)
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
pub(super) fn has_lane(bits: &[u64; CELL_WORDS], lane: u16) -> bool {
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

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use crate::{BlockKey, KeySeed, KvOp, Overlap, Overlaps, RootName};

    fn members(set: &Ranks) -> Vec<u16> {
        match set {
            Ranks::All => panic!("no finite set"),
            Ranks::Few(word) => lanes(*word).collect(),
            Ranks::Many(bits) => bit_ranks(bits).map(rank_lane).collect(),
        }
    }

    /// A run of three blocks: lanes of whole holders, and lanes with a part of all bits.
    fn view(wholes: &[u16], parts: &[u16], is_cell: bool) -> RunView {
        let mut view = RunView { block_count: 3, matched: 3, ..RunView::default() };
        if is_cell {
            view.ranks = crate::words::many(crate::words::CellId(0));
            wholes.iter().for_each(|lane| set(&mut view.rank_bits, *lane));
        } else {
            view.ranks = from_lanes(wholes.iter().copied());
        }
        view.partial = parts.iter().map(|lane| (*lane, 0b111)).collect();
        // A part that lacks a block is never followed.
        view.partial.push((60, 0b011));
        view
    }

    /// A full part equals a whole holder, in each kind of set and before each number of holders.
    #[test]
    fn a_full_part_counts_as_the_whole_run() {
        let all: Vec<u16> = (1..=9).map(|n| n * 3).collect();
        for count in 0..=all.len() {
            for whole_count in 0..=count {
                let (wholes, parts) = all[..count].split_at(whole_count);
                for is_cell in [false, true] {
                    if !is_cell && wholes.len() > LANES {
                        continue;
                    }
                    let view = view(wholes, parts, is_cell);
                    let bits = |lanes: &[u16]| {
                        let mut bits = [0; CELL_WORDS];
                        lanes.iter().for_each(|lane| set(&mut bits, *lane));
                        bits
                    };
                    let (found, rest) = Ranks::All.split(&view);
                    assert_eq!(members(&found), all[..count], "All: {wholes:?} {parts:?}");
                    assert!(matches!(rest, Ranks::All));
                    let (found, _) = Ranks::Many(bits(&all)).split(&view);
                    assert_eq!(members(&found), all[..count], "Many: {wholes:?} {parts:?}");
                    let few = Ranks::Few(from_lanes(all.iter().copied().take(LANES)));
                    let (found, _) = few.split(&view);
                    assert_eq!(members(&found), all[..count.min(LANES)], "{wholes:?} {parts:?}");
                }
            }
        }
    }

    /// A number that holds all blocks of a path, and is listed with parts: the first run is
    /// followed like the later runs.
    #[test]
    fn a_listed_number_is_followed_to_the_end_of_its_path() {
        const SEED: KeySeed = KeySeed(5);
        const BLOCKS: u32 = 200;
        let (reader, mut writers) = crate::index(1, SEED, 1 << 24);
        let root = BlockKey::root(SEED, &RootName { model: "m", ..RootName::default() });
        let text: Vec<u8> = (0..BLOCKS).flat_map(u32::to_be_bytes).collect();
        let mut parent = root;
        let mut keys = Vec::new();
        for block in text.chunks(4) {
            let key = parent.child(SEED, block);
            writers[0].apply(RankIndex(1), KvOp::Store { parent, key, block_bytes: 4 });
            keys.push(key);
            parent = key;
        }
        for key in keys {
            writers[0].apply(RankIndex(2), KvOp::Hold { key });
        }
        let mut found = Overlaps::new(4);
        reader.overlap(root, &text, &mut found);
        for rank in [RankIndex(1), RankIndex(2)] {
            let whole = Overlap { blocks: BLOCKS, bytes: 4 * BLOCKS };
            assert_eq!(found.get(rank), whole, "{rank:?}");
        }
    }
}
