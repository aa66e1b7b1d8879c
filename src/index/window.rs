//! Ranks that cannot resume everywhere. A hybrid model has layers that attend only to the last
//! tokens (a window) or hold a single state, beside layers with full attention. Such a rank resumes
//! a prompt only behind a block where each of its windows is whole: `block_count` blocks in a row
//! up to there, or all blocks from the root on. A state is a window of a single block.
//!
//! The blocks of a window are recorded under a number of its own, like the blocks of a rank, but
//! without a path to each block: the early blocks of a window are evicted first. A walk follows the
//! rank by its own number, and checks its windows on the way. Pure functions, any thread.

use super::overlap::Overlap;
use super::ranks::has_lane;
use super::table::{RunView, Step};
use super::words::{cell_of, contains, rank_lane};
use forebay_base::RankIndex;

/// Windows of different lengths that a rank may have.
pub const WINDOWS_MAX: usize = 2;

/// A window of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number for the blocks that all layers of the window hold.
    pub number: RankIndex,
    /// Blocks in a row that are needed to resume; at least 1.
    pub block_count: u16,
}

/// Blocks of a rank in another size than the rank's usual blocks, recorded under a number of their
/// own. The overlap of such a rank counts units, the smaller size a single unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OddBlocks {
    /// Number for the blocks of the other size.
    pub number: RankIndex,
    /// Units of such a block.
    pub units: u16,
    /// Units of a usual block.
    pub usual_units: u16,
}

/// A rank that a walk follows by more than its own number: it has windows, or blocks of two sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowedRank {
    /// Number for the blocks that its other layers hold.
    pub rank: RankIndex,
    pub windows: [Option<Window>; WINDOWS_MAX],
    pub odd: Option<OddBlocks>,
}

impl WindowedRank {
    /// Numbers beside the rank's own. The overlap of the rank is recorded under the first.
    pub fn numbers(&self) -> impl Iterator<Item = RankIndex> + '_ {
        let windows = self.windows.iter().flatten().map(|window| window.number);
        windows.chain(self.odd.iter().map(|odd| odd.number))
    }
}

/// The ranks with windows in a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowedRanks<'a> {
    /// Sorted by number of rank.
    pub(super) ranks: &'a [WindowedRank],
    /// An engine computes the last token of a prompt itself, so it resumes before that. See
    /// [`super::overlap::whole_bytes`].
    pub(super) whole_bytes: usize,
}

/// Progress of a rank with windows along a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trail {
    /// Index into the ranks with windows.
    place: usize,
    /// Blocks in a row that each window has before the next run, at most `block_count`.
    in_row: [u16; WINDOWS_MAX],
    /// Blocks of the other size so far.
    odd_count: u32,
}

impl WindowedRanks<'_> {
    pub(super) const fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Processes a run, and records in `points` how far ranks can resume in it. The trail of a rank
    /// that does not hold the whole run ends.
    #[inline(never)]
    pub(super) fn pass(
        &self,
        view: &RunView,
        before: Overlap,
        trails: &mut Vec<Trail>,
        points: &mut Vec<Overlap>,
    ) {
        if before.bytes == 0 {
            points.resize(self.ranks.len(), Overlap::default());
            trails.clear();
            let holds = |rank: &WindowedRank| mask_of(view, rank.rank) & 1 == 1;
            let held = self.ranks.iter().enumerate().filter(|(_, rank)| holds(rank));
            trails.extend(held.map(|(place, rank)| Trail::at_root(place, rank)));
        }
        trails.retain_mut(|trail| {
            let (Some(rank), Some(point)) =
                (self.ranks.get(trail.place), points.get_mut(trail.place))
            else {
                return false;
            };
            let held = held_count(mask_of(view, rank.rank), view.matched);
            if let Some(found) = self.resume(view, before, trail.goods(view, rank), held) {
                let found = trail.in_units(view, rank, found, before);
                if (found.bytes, found.blocks) > (point.bytes, point.blocks) {
                    *point = found;
                }
            }
            trail.odd_count += odd_count(view, rank, held);
            held == view.block_count
        });
    }

    /// Overlap up to the last block of a run behind which a rank can resume, if the rank holds the
    /// first `held` blocks.
    fn resume(&self, view: &RunView, before: Overlap, goods: u64, held: usize) -> Option<Overlap> {
        let is_all =
            |step: &Step| usize::try_from(step.end).is_ok_and(|end| end >= self.whole_bytes);
        let last = view.steps.get(held.checked_sub(1)?)?;
        let usable = low_bits(held - usize::from(is_all(last)));
        let place = usize::try_from((goods & usable).checked_ilog2()?).ok()?;
        let bytes = view.steps.get(place)?.end;
        Some(Overlap { blocks: before.blocks + u32::try_from(place + 1).ok()?, bytes })
    }
}

impl Trail {
    /// At the root no block is needed, so all windows are whole.
    fn at_root(place: usize, rank: &WindowedRank) -> Self {
        let blocks = |window: Option<Window>| window.map_or(0, |window| window.block_count);
        Self { place, in_row: rank.windows.map(blocks), odd_count: 0 }
    }

    /// An overlap that ends in a run, in units where the rank has blocks of two sizes.
    fn in_units(
        &self,
        view: &RunView,
        rank: &WindowedRank,
        found: Overlap,
        before: Overlap,
    ) -> Overlap {
        let Some(odd) = rank.odd else { return found };
        let in_run = usize::try_from(found.blocks - before.blocks).unwrap_or(0);
        let odd_count = self.odd_count + odd_count(view, rank, in_run);
        let usual_count = found.blocks.saturating_sub(odd_count);
        let of_odd = odd_count.saturating_mul(u32::from(odd.units));
        let blocks = usual_count.saturating_mul(u32::from(odd.usual_units)).saturating_add(of_odd);
        Overlap { blocks, ..found }
    }

    /// Advances the trail by a run. Returns the blocks behind which every window is whole, as bits.
    fn goods(&mut self, view: &RunView, rank: &WindowedRank) -> u64 {
        let mut goods = u64::MAX;
        for (window, in_row) in rank.windows.iter().zip(&mut self.in_row) {
            let Some(window) = window else { continue };
            goods &= in_rows(mask_of(view, window.number), view.matched, window, in_row);
        }
        goods
    }
}

/// Blocks of the other size among the first `count` of a run.
fn odd_count(view: &RunView, rank: &WindowedRank, count: usize) -> u32 {
    rank.odd.map_or(0, |odd| (mask_of(view, odd.number) & low_bits(count)).count_ones())
}

/// Blocks, of the first `matched`, that end a long enough row, as bits. `in_row`: length of the row
/// before the run, then of the row at its end.
fn in_rows(mask: u64, matched: usize, window: &Window, in_row: &mut u16) -> u64 {
    let mut goods = 0;
    let mut start = 0;
    let mut rest = mask & low_bits(matched);
    while start < matched {
        let held = held_count(rest, matched - start);
        let row = usize::from(*in_row) + held;
        let lacking = usize::from(window.block_count).saturating_sub(usize::from(*in_row) + 1);
        if held > lacking {
            goods |= (low_bits(held) & !low_bits(lacking)) << start;
        }
        *in_row = u16::try_from(row).unwrap_or(u16::MAX).min(window.block_count);
        start += held;
        if start == matched {
            break;
        }
        // A gap ends the row.
        *in_row = 0;
        rest = mask >> start & low_bits(matched - start);
        let gap = usize::try_from(rest.trailing_zeros()).unwrap_or(0).min(matched - start);
        start += gap;
        rest = rest.checked_shr(u32::try_from(gap).unwrap_or(0)).unwrap_or(0);
    }
    goods
}

/// Number of lowest bits set without a gap, at most `most`.
fn held_count(mask: u64, most: usize) -> usize {
    usize::try_from(mask.trailing_ones()).unwrap_or(0).min(most)
}

/// The lowest `count` bits.
const fn low_bits(count: usize) -> u64 {
    debug_assert!(count < 64, "a run has fewer blocks than a word has bits");
    (1 << count) - 1
}

/// The blocks of a run that a number holds, as bits.
fn mask_of(view: &RunView, number: RankIndex) -> u64 {
    let lane = rank_lane(number);
    let is_whole = match cell_of(view.ranks) {
        None => contains(view.ranks, lane),
        Some(_) => has_lane(&view.rank_bits, lane),
    };
    if is_whole {
        return low_bits(view.block_count);
    }
    view.partial.iter().find(|(other, _)| *other == lane).map_or(0, |(_, mask)| *mask)
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use crate::Overlaps;
    use crate::{BlockKey, IndexReader, KeySeed, KvOp, RootName, Shape, SliceWriter};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SEED: KeySeed = KeySeed(5);
    const BLOCK_BYTES: u16 = 4;
    const RANK: RankIndex = RankIndex(1);
    const OTHER: RankIndex = RankIndex(2);
    const NUMBERS: [RankIndex; WINDOWS_MAX] = [RankIndex(1_000), RankIndex(900)];

    /// A rank with windows and another rank, in an index with a single slice.
    struct Rig {
        reader: IndexReader,
        writer: SliceWriter,
        needs: [Option<u16>; WINDOWS_MAX],
        /// Paths as texts.
        held: BTreeSet<Vec<u8>>,
        windows: [BTreeSet<Vec<u8>>; WINDOWS_MAX],
    }

    impl Rig {
        fn new(needs: [Option<u16>; WINDOWS_MAX]) -> Self {
            let shape = Shape { segment_slots: 64, memory_bytes_max: 1 << 22 };
            let (reader, mut writers) = crate::index_of_shape(1, SEED, shape);
            let held = BTreeSet::new();
            let windows = Default::default();
            Self { reader, writer: writers.remove(0), needs, held, windows }
        }

        fn root() -> BlockKey {
            let name = RootName { model: "m", block_size_tokens: 1, lora: "", cache_salt: "" };
            BlockKey::root(SEED, &name)
        }

        fn keys(path: &[u8]) -> (BlockKey, BlockKey) {
            let mut keys = (Self::root(), Self::root());
            for block in path.chunks(usize::from(BLOCK_BYTES)) {
                keys = (keys.1, keys.1.child(SEED, block));
            }
            keys
        }

        fn store(&mut self, rank: RankIndex, path: &[u8]) {
            let (parent, key) = Self::keys(path);
            self.writer.apply(rank, KvOp::Store { parent, key, block_bytes: BLOCK_BYTES });
            if rank == RANK {
                self.held.insert(path.to_vec());
            }
        }

        fn hold(&mut self, window: usize, path: &[u8]) {
            // A number that is no window of the rank has no blocks. Feeds report a window's blocks
            // only once the rank holds them.
            if self.needs[window].is_none() || !self.held.contains(path) {
                return;
            }
            self.writer.apply(NUMBERS[window], KvOp::Hold { key: Self::keys(path).1 });
            self.windows[window].insert(path.to_vec());
        }

        fn remove(&mut self, number: RankIndex, path: &[u8]) {
            self.writer.apply(number, KvOp::Remove { key: Self::keys(path).1 });
        }

        fn windowed(&self) -> [WindowedRank; 1] {
            let place = |at: usize| {
                let window = |block_count| Window { number: NUMBERS[at], block_count };
                self.needs[at].map(window)
            };
            [WindowedRank { rank: RANK, windows: [place(0), place(1)], odd: None }]
        }

        fn found(&self, text: &[u8]) -> Overlap {
            let mut out = Overlaps::new(1_024);
            self.reader.overlap_of_windows(Self::root(), text, &self.windowed(), &mut out);
            let [second, first] = [out.get(NUMBERS[1]), out.get(NUMBERS[0])];
            assert_eq!(second, Overlap::default(), "one number tells");
            let held: Vec<_> = out.iter_held().filter(|(rank, _)| *rank == NUMBERS[0]).collect();
            assert_eq!(held.len(), usize::from(first.bytes > 0));
            first
        }

        /// Block by block, as an engine matches.
        fn expected(&self, text: &[u8]) -> Overlap {
            let block = usize::from(BLOCK_BYTES);
            let path = |count: usize| text[..count * block].to_vec();
            let most = (text.len() - 1) / block;
            let deep = (1..=most).take_while(|count| self.held.contains(&path(*count))).count();
            let is_whole = |count: usize| {
                self.needs.iter().zip(&self.windows).all(|(need, held)| {
                    let need = need.map_or(0, usize::from);
                    (count.saturating_sub(need) + 1..=count).all(|at| held.contains(&path(at)))
                })
            };
            let count = (1..=deep).rev().find(|count| is_whole(*count)).unwrap_or(0);
            let number = |count: usize| u32::try_from(count).unwrap();
            Overlap { blocks: number(count), bytes: number(count * block) }
        }
    }

    /// A text of blocks that differs from texts of another letter from a given block on.
    fn text(letter: u8, parts_at: usize, blocks: usize) -> Vec<u8> {
        let of = |at: usize| if at < parts_at { b'a' } else { letter };
        (0..blocks).flat_map(|at| [of(at), b'.', b'.', b'.']).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn a_walk_finds_what_an_engine_would(
            needs in (1..80_u16, proptest::option::of(1..4_u16)),
            steps in proptest::collection::vec(
                (0..6_u8, 0..3_u8, 0..140_usize, 1..60_usize), 1..40),
        ) {
            let mut rig = Rig::new([Some(needs.0), needs.1]);
            let letters = [b'a', b'b', b'c'];
            for (step, letter, first, count) in steps {
                let text = text(letters[usize::from(letter)], 50, 150);
                let paths = (first + 1..=(first + count).min(150))
                    .map(|blocks| text[..blocks * 4].to_vec());
                for path in paths {
                    match step {
                        0 => rig.store(RANK, &path),
                        1 => rig.store(OTHER, &path),
                        2 => rig.hold(0, &path),
                        3 => rig.hold(1, &path),
                        4 => {
                            rig.remove(RANK, &path);
                            rig.held.remove(&path);
                            // In the same order as feeds.
                            for (at, number) in NUMBERS.into_iter().enumerate() {
                                rig.remove(number, &path);
                                rig.windows[at].remove(&path);
                            }
                        }
                        _ => {
                            let at = usize::from(letter % 2);
                            rig.remove(NUMBERS[at], &path);
                            rig.windows[at].remove(&path);
                        }
                    }
                }
            }
            for letter in letters {
                for (blocks, more) in [(150, 0), (150, 3), (97, 2), (50, 0), (20, 1)] {
                    let mut text = text(letter, 50, blocks);
                    text.extend(vec![b'.'; more]);
                    prop_assert_eq!(rig.found(&text), rig.expected(&text), "{}", blocks);
                }
            }
        }
    }

    /// vllm#49125: whole blocks, then parts of a block. The overlap counts parts, in each branch
    /// and across runs.
    #[test]
    fn blocks_of_two_sizes_are_counted_in_units() {
        const ODD: RankIndex = RankIndex(1_000);
        for windows in
            [[None, None], [Some(Window { number: RankIndex(900), block_count: 1 }), None]]
        {
            let mut rig = Rig::new([None, None]);
            let long = text(b'a', 200, 150);
            let forked = text(b'b', 50, 150);
            for (text, most) in [(&long, 100_usize), (&forked, 53)] {
                for blocks in 1..=most {
                    let path = &text[..blocks * 4];
                    rig.store(RANK, path);
                    let key = Rig::keys(path).1;
                    if blocks > most - 3 {
                        rig.writer.apply(ODD, KvOp::Hold { key });
                    }
                    if windows[0].is_some() {
                        rig.writer.apply(RankIndex(900), KvOp::Hold { key });
                    }
                }
            }
            let odd = OddBlocks { number: ODD, units: 1, usual_units: 4 };
            let rank = [WindowedRank { rank: RANK, windows, odd: Some(odd) }];
            let found = |text: &[u8]| {
                let mut out = Overlaps::new(1_024);
                rig.reader.overlap_of_windows(Rig::root(), text, &rank, &mut out);
                out.get(rank[0].numbers().next().unwrap())
            };
            for (text, blocks, units) in [
                (&long[..], 100, 97 * 4 + 3),
                (&long[..99 * 4 + 1], 99, 97 * 4 + 2),
                (&long[..40 * 4 + 1], 40, 40 * 4),
                (&forked[..], 53, 50 * 4 + 3),
                // The last token is computed, so its block does not count.
                (&long[..99 * 4], 98, 97 * 4 + 1),
            ] {
                let bytes = blocks * u32::from(BLOCK_BYTES);
                assert_eq!(found(text), Overlap { blocks: units, bytes }, "{blocks} {windows:?}");
            }
        }
    }

    /// Blocks that come one by one share a run, although two numbers hold them.
    #[test]
    fn a_window_does_not_cut_runs() {
        let mut rig = Rig::new([Some(3), None]);
        let text = text(b'a', 50, 50);
        for blocks in 1..=50 {
            rig.store(RANK, &text[..blocks * 4]);
            rig.hold(0, &text[..blocks * 4]);
        }
        assert_eq!(rig.reader.run_count(), 2, "the root and one run");
        assert_eq!(rig.found(&text).blocks, 49, "the last token is computed");
        rig.remove(NUMBERS[0], &text[..46 * 4]);
        assert_eq!(rig.found(&text).blocks, 49);
        rig.remove(NUMBERS[0], &text[..47 * 4]);
        assert_eq!(rig.found(&text).blocks, 45);
    }
}
