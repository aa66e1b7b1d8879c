//! Times to the first token of each rank within the last minute: samples of the shards' counters.
//! The control plane owns the samples. A rank takes 16 bytes a sample, about 1 KB.

use super::{RankCount, ShardCounters};
use forebay_base::limits::TTFT_HISTORY_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// Samples of the last [`TTFT_HISTORY_MAX`], oldest first.
#[derive(Debug, Default)]
pub struct TtftHistory {
    samples: VecDeque<TtftSample>,
}

#[derive(Debug)]
struct TtftSample {
    at: NanosSinceStart,
    /// Sums since the start, by rank number.
    ranks: Box<[TtftSum]>,
}

/// Streams with a first token, and the sum of their times to the first token.
#[derive(Clone, Copy, Debug, Default)]
struct TtftSum {
    streams: u64,
    nanos: u64,
}

/// Mean time to the first token of a rank's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtftMean {
    /// Streams that the mean is of; at least 1.
    pub streams: u64,
    pub mean: Duration,
}

impl TtftHistory {
    /// Samples the first `rank_count` ranks, once a second. Cheap when called often.
    pub fn observe(
        &mut self,
        counters: &[Arc<ShardCounters>],
        rank_count: usize,
        now: NanosSinceStart,
    ) {
        if self.samples.back().is_some_and(|newest| now < newest.at.plus(PERIOD)) {
            return;
        }
        while self.samples.front().is_some_and(|oldest| oldest.at.plus(TTFT_HISTORY_MAX) < now) {
            self.samples.pop_front();
        }
        let ranks = (0..rank_count).filter_map(RankIndex::try_from_index);
        let ranks = ranks.map(|rank| TtftSum::read(counters, rank)).collect();
        self.samples.push_back(TtftSample { at: now, ranks });
    }

    /// The mean between the oldest sample and the newest; `None` if no stream of the rank ended
    /// between them.
    #[must_use]
    pub fn mean(&self, rank: RankIndex) -> Option<TtftMean> {
        let newest = self.samples.back()?.of(rank);
        let oldest = self.samples.front()?.of(rank);
        let streams = newest.streams.checked_sub(oldest.streams)?;
        let nanos = newest.nanos.checked_sub(oldest.nanos)?.checked_div(streams)?;
        // More digits would make each snapshot of the live page longer.
        Some(TtftMean { streams, mean: Duration::from_micros(nanos / 1_000) })
    }
}

impl TtftSample {
    /// The sum of a rank. A rank that joined after the sample had no streams.
    fn of(&self, rank: RankIndex) -> TtftSum {
        self.ranks.get(rank.index()).copied().unwrap_or_default()
    }
}

impl TtftSum {
    fn read(counters: &[Arc<ShardCounters>], rank: RankIndex) -> Self {
        let sum = |count| counters.iter().map(|shard| shard.choices().value(rank, count)).sum();
        Self { streams: sum(RankCount::FirstBytes), nanos: sum(RankCount::FirstByteNanos) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ModelIndex;

    fn at(seconds: u64) -> NanosSinceStart {
        NanosSinceStart(0).plus(Duration::from_secs(seconds))
    }

    #[test]
    fn a_mean_is_of_the_last_minute_and_of_all_shards() {
        let shards: Vec<Arc<ShardCounters>> = (0..2).map(|_| Arc::default()).collect();
        let stream = |shard: usize, rank: u16, ms: u64| {
            let choices = shards[shard].choices();
            choices.first_byte(ModelIndex(0), RankIndex(rank), ms * 1_000_000);
        };
        let mut history = TtftHistory::default();
        let mean = |history: &TtftHistory, rank| {
            let TtftMean { streams, mean } = history.mean(RankIndex(rank))?;
            Some((streams, mean.as_millis()))
        };
        history.observe(&shards, 1, at(0));
        assert_eq!(mean(&history, 0), None);
        stream(0, 0, 100);
        stream(1, 0, 300);
        history.observe(&shards, 1, at(0).plus(PERIOD / 2));
        assert_eq!(mean(&history, 0), None, "a sample a second");
        // Rank 1 joins, and its first stream ends before its first sample.
        stream(0, 1, 50);
        history.observe(&shards, 2, at(1));
        assert_eq!(mean(&history, 0), Some((2, 200)));
        assert_eq!(mean(&history, 1), Some((1, 50)));
        assert_eq!(mean(&history, 2), None, "a rank without streams has no mean, and not 0");
        (2..60).for_each(|second| history.observe(&shards, 2, at(second)));
        stream(1, 1, 70);
        history.observe(&shards, 2, at(60));
        assert_eq!(mean(&history, 1), Some((2, 60)));
        history.observe(&shards, 2, at(61));
        assert_eq!(mean(&history, 0), None, "the streams ended over a minute ago");
        assert_eq!(mean(&history, 1), Some((1, 70)));
        assert_eq!(history.samples.len(), 61);
        history.observe(&shards, 2, at(1_000));
        assert_eq!(history.samples.len(), 1, "after a pause no old sample counts");
        assert_eq!(mean(&history, 1), None);
    }
}
