//! Outcomes of rank choices: the reason of the choice, prompt tokens cached on the rank, and the
//! time to the first byte.

use super::rows::{Rows, bump, read, zeroed};
use forebay_base::limits::{MODELS_MAX, RANKS_MAX};
use forebay_base::{ModelIndex, RankIndex};
use forebay_fleet::trust::{RequestShape, TRUST_GROUPS, TrustCount, TrustTally};
use std::sync::atomic::AtomicU64;

/// Reasons of choices with a counter each.
const DECISIONS_MAX: usize = 16;
/// Bounds of times to the first byte, in nanoseconds.
pub const TTFT_BOUNDS_NS: [u64; 15] = [
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
];
const TTFT_SUM: usize = TTFT_BOUNDS_NS.len() + 1;

/// Counters of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankCount {
    /// Prompt bytes that the rank held at the choice, by its KV events.
    OverlapBytes,
    /// Prompt tokens that the engine reported as found in its cache.
    CachedTokens,
    /// Prompt tokens that the engine reported as computed.
    ComputedTokens,
    /// Streams with a first byte.
    FirstBytes,
    /// Sum of the times to these first bytes, in nanoseconds.
    FirstByteNanos,
    /// Answers with several blocks that the engine computed: it stores them, which is a KV event.
    StoringAnswers,
    /// Answers cut because the rank failed in the middle.
    CutAnswers,
}
const RANK_COUNTS: usize = 7;
/// Counts of a shape in [`ChoiceCounts::trust`], for all groups of workers.
const TRUST_COUNTS: usize = TRUST_GROUPS * TrustCount::ALL.len();
/// Cell behind the shapes: compared answers of the model.
const TRUST_SUM: usize = RequestShape::ALL.len() * TRUST_COUNTS;

/// Counters of choices, per shard.
#[derive(Debug)]
pub struct ChoiceCounts {
    decisions: Box<[AtomicU64]>,
    ranks: Rows,
    /// By model: streams below each bound and above the last, and the sum of their times.
    first_bytes: Rows,
    /// By model: predictions compared with reports, by shape, group of workers and count.
    trust: Rows,
}

impl ChoiceCounts {
    pub(super) fn new() -> Self {
        Self {
            decisions: zeroed(DECISIONS_MAX),
            ranks: Rows::new(RANKS_MAX, RANK_COUNTS),
            first_bytes: Rows::new(MODELS_MAX + 1, TTFT_SUM + 1),
            trust: Rows::new(MODELS_MAX, TRUST_SUM + 1),
        }
    }

    /// Counts a choice. Only the owning shard calls this.
    pub fn decided(&self, reason_index: usize) {
        if let Some(cell) = self.decisions.get(reason_index) {
            bump(cell, 1);
        }
    }

    /// Choices for that reason.
    #[must_use]
    pub fn decided_count(&self, reason_index: usize) -> u64 {
        self.decisions.get(reason_index).map_or(0, read)
    }

    pub fn add(&self, rank: RankIndex, count: RankCount, amount: u64) {
        self.ranks.add(rank.index(), count as usize, amount);
    }

    #[must_use]
    pub fn value(&self, rank: RankIndex, count: RankCount) -> u64 {
        self.ranks.count(rank.index(), count as usize)
    }

    /// Counts the time to the first byte of a stream. Models past `MODELS_MAX` share the index
    /// `MODELS_MAX`.
    pub fn first_byte(&self, model: ModelIndex, rank: RankIndex, nanos: u64) {
        let bucket = TTFT_BOUNDS_NS.partition_point(|&bound| bound < nanos);
        self.first_bytes.add(model.index(), bucket, 1);
        self.first_bytes.add(model.index(), TTFT_SUM, nanos);
        self.add(rank, RankCount::FirstBytes, 1);
        self.add(rank, RankCount::FirstByteNanos, nanos);
    }

    /// Streams of a model by time to their first byte: up to each of [`TTFT_BOUNDS_NS`], and above
    /// the last.
    pub fn first_bytes(&self, model_index: usize) -> impl Iterator<Item = u64> + '_ {
        (0..TTFT_SUM).map(move |bucket| self.first_bytes.count(model_index, bucket))
    }

    /// Counts a prediction that was compared with the report of a worker of the group. Models past
    /// `MODELS_MAX` are not compared.
    pub fn compared(
        &self,
        model: ModelIndex,
        shape: RequestShape,
        group: usize,
        sample: &TrustTally,
    ) {
        if model.index() >= MODELS_MAX || group >= TRUST_GROUPS {
            return;
        }
        for count in TrustCount::ALL {
            let place = trust_place(shape, group, count);
            self.trust.add(model.index(), place, sample.get(count));
        }
        self.trust.add(model.index(), TRUST_SUM, sample.get(TrustCount::Samples));
    }

    /// Compared predictions of a model.
    #[must_use]
    pub fn compared_count(&self, model_index: usize) -> u64 {
        let is_known = model_index < MODELS_MAX;
        if is_known { self.trust.count(model_index, TRUST_SUM) } else { 0 }
    }

    /// Compared predictions of a model for a shape, by workers of the group.
    #[must_use]
    pub fn trust_tally(&self, model_index: usize, shape: RequestShape, group: usize) -> TrustTally {
        let mut tally = TrustTally::default();
        if model_index < MODELS_MAX && group < TRUST_GROUPS {
            for count in TrustCount::ALL {
                tally.set(count, self.trust.count(model_index, trust_place(shape, group, count)));
            }
        }
        tally
    }

    /// Sum of these times, in nanoseconds.
    #[must_use]
    pub fn first_byte_nanos(&self, model_index: usize) -> u64 {
        self.first_bytes.count(model_index, TTFT_SUM)
    }
}

const fn trust_place(shape: RequestShape, group: usize, count: TrustCount) -> usize {
    shape.index() * TRUST_COUNTS + group * TrustCount::ALL.len() + count as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_shape_and_group_has_its_own_comparisons() {
        let counts = ChoiceCounts::new();
        let mut sample = TrustTally::default();
        sample.set(TrustCount::Samples, 1);
        sample.set(TrustCount::Served, 7);
        let shape = RequestShape::TokenIds;
        let last = TRUST_GROUPS - 1;
        counts.compared(ModelIndex(2), shape, last, &sample);
        counts.compared(ModelIndex(2), shape, last + 1, &sample);
        counts.compared(ModelIndex(9_999), shape, last, &sample);
        assert_eq!(counts.trust_tally(2, shape, last), sample);
        let none = TrustTally::default();
        assert_eq!(counts.trust_tally(2, RequestShape::Text, last), none);
        assert_eq!(counts.trust_tally(2, shape, 0), none);
        assert_eq!(counts.trust_tally(MODELS_MAX - 1, shape, last), none);
        assert_eq!((counts.compared_count(2), counts.compared_count(9_999)), (1, 0));
    }

    #[test]
    fn each_rank_and_each_model_counts_for_itself() {
        let counts = ChoiceCounts::new();
        counts.add(RankIndex(3), RankCount::CachedTokens, 7);
        counts.first_byte(ModelIndex(1), RankIndex(3), 1_000_000);
        counts.first_byte(ModelIndex(1), RankIndex(4), 1_000_001);
        counts.first_byte(ModelIndex(9_999), RankIndex(4), u64::MAX / 2);
        let of = |rank, count| counts.value(RankIndex(rank), count);
        assert_eq!((of(3, RankCount::CachedTokens), of(4, RankCount::CachedTokens)), (7, 0));
        assert_eq!((of(3, RankCount::FirstBytes), of(4, RankCount::FirstBytes)), (1, 2));
        let model: Vec<u64> = counts.first_bytes(1).collect();
        assert_eq!((model.len(), &model[..3]), (16, &[1, 1, 0][..]));
        assert_eq!(counts.first_byte_nanos(1), 2_000_001);
        assert_eq!(counts.first_bytes(MODELS_MAX).last(), Some(1), "above the last bound");
        counts.decided(2);
        counts.decided(DECISIONS_MAX);
        assert_eq!((counts.decided_count(2), counts.decided_count(3)), (1, 0));
    }
}
