//! Result of a walk: the overlap of each rank with the prompt. Owned by a shard and reused for
//! every request, so that a walk allocates nothing in steady state.

use super::overlap::Overlap;
use super::scratch::WalkScratch;
use super::window::WindowedRank;
use forebay_base::RankIndex;
use forebay_base::limits::WALK_PROBES_MAX;

/// Overlap of a prompt with every rank.
#[derive(Debug)]
pub struct Overlaps {
    /// Indexed by rank.
    best: Vec<Overlap>,
    /// Ranks whose overlap is not zero.
    held: Vec<RankIndex>,
    /// Resumable overlap of each rank with windows, in the order of these ranks.
    pub(super) points: Vec<Overlap>,
    /// Limit of a walk.
    pub(super) probes_max: usize,
    /// The prompt has images with keys.
    pub(super) has_images: bool,
    pub(super) is_cut: bool,
    /// `None` during a walk.
    pub(super) scratch: Option<Box<WalkScratch>>,
}

impl Overlaps {
    /// For the ranks `0..rank_count`; other ranks are left out.
    #[must_use]
    pub fn new(rank_count: usize) -> Self {
        Self {
            best: vec![Overlap::default(); rank_count],
            held: Vec::with_capacity(rank_count),
            points: Vec::new(),
            probes_max: WALK_PROBES_MAX,
            has_images: false,
            is_cut: false,
            scratch: Some(Box::default()),
        }
    }

    /// Sets the limit of a walk, at most [`WALK_PROBES_MAX`].
    pub fn limit(&mut self, probes_max: usize) {
        self.probes_max = probes_max.min(WALK_PROBES_MAX);
    }

    /// Sets whether the prompt has images with keys: their inner blocks have no bytes.
    pub fn expect_images(&mut self, has_images: bool) {
        self.has_images = has_images;
    }

    /// Did a walk end early that a higher limit would continue?
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Removes all overlaps. Costs time in proportion to the ranks found.
    pub fn clear(&mut self) {
        self.is_cut = false;
        self.points.clear();
        for rank in &self.held {
            if let Some(best) = self.best.get_mut(rank.index()) {
                *best = Overlap::default();
            }
        }
        self.held.clear();
    }

    /// Overlap of a rank; zero for ranks out of range.
    #[must_use]
    pub fn get(&self, rank: RankIndex) -> Overlap {
        self.best.get(rank.index()).copied().unwrap_or_default()
    }

    /// Ranks with some overlap, in no order.
    pub fn iter_held(&self) -> impl Iterator<Item = (RankIndex, Overlap)> + '_ {
        self.held.iter().map(|rank| (*rank, self.get(*rank)))
    }

    /// Removes the overlaps of ranks that `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(RankIndex) -> bool) {
        let Self { best, held, .. } = self;
        held.retain(|&rank| {
            let keeps = keep(rank);
            if !keeps && let Some(best) = best.get_mut(rank.index()) {
                *best = Overlap::default();
            }
            keeps
        });
    }

    /// Replaces the overlap of each held rank. An empty overlap removes the rank.
    pub fn map(&mut self, change: impl Fn(RankIndex, Overlap) -> Overlap) {
        let Self { best, held, .. } = self;
        held.retain(|&rank| {
            let Some(best) = best.get_mut(rank.index()) else { return false };
            let changed = change(rank, *best);
            *best = if changed.bytes > 0 { changed } else { Overlap::default() };
            changed.bytes > 0
        });
    }

    /// Words of a bitset that has a bit for each rank.
    pub(super) fn rank_words(&self) -> usize {
        self.best.len().div_ceil(64)
    }

    /// Records the resumable overlap of each rank under the first of its further numbers. Overlaps
    /// that a walk found under these numbers are replaced: alone they mean nothing.
    pub(super) fn record_points(&mut self, ranks: &[WindowedRank]) {
        for (place, rank) in ranks.iter().enumerate() {
            let mut point = self.points.get(place).copied().unwrap_or_default();
            for number in rank.numbers() {
                self.set(number, std::mem::take(&mut point));
            }
        }
    }

    /// Replaces the overlap of a rank. An empty overlap removes the rank.
    pub fn set(&mut self, rank: RankIndex, found: Overlap) {
        let Some(best) = self.best.get_mut(rank.index()) else { return };
        let before = std::mem::replace(best, found);
        match (before.bytes > 0, found.bytes > 0) {
            (false, true) => self.held.push(rank),
            (true, false) => self.held.retain(|held| *held != rank),
            _ => {}
        }
    }

    /// Records `found`, which has at least a byte, if it is larger than the recorded overlap.
    pub fn record(&mut self, rank: RankIndex, found: Overlap) {
        let Some(best) = self.best.get_mut(rank.index()) else { return };
        if best.bytes == 0 {
            debug_assert!(found.bytes > 0, "a rank that holds nothing would be held twice");
            self.held.push(rank);
            *best = found;
        // Bytes first: blocks of different trees have different sizes.
        } else if (found.bytes, found.blocks) > (best.bytes, best.blocks) {
            *best = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_overlap_stays_and_clear_removes_all() {
        let mut overlaps = Overlaps::new(2);
        let small = Overlap { blocks: 1, bytes: 10 };
        let large = Overlap { blocks: 2, bytes: 20 };
        overlaps.record(RankIndex(1), large);
        overlaps.record(RankIndex(1), small);
        overlaps.record(RankIndex(2), large);
        assert_eq!(overlaps.iter_held().collect::<Vec<_>>(), [(RankIndex(1), large)]);
        assert_eq!(overlaps.get(RankIndex(0)), Overlap::default());
        overlaps.retain(|rank| rank == RankIndex(1));
        assert_eq!(overlaps.get(RankIndex(1)), large);
        overlaps.retain(|rank| rank != RankIndex(1));
        assert_eq!(
            (overlaps.iter_held().count(), overlaps.get(RankIndex(1))),
            (0, Overlap::default())
        );
        overlaps.record(RankIndex(1), large);
        overlaps.clear();
        assert_eq!(overlaps.iter_held().count(), 0);
        assert_eq!(overlaps.get(RankIndex(1)), Overlap::default());
    }
}
