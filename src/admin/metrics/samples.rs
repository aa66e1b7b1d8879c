//! How a scrape reads the samples of a metric.

use super::metrics_text::{Family, MetricLabels, approximate};
use crate::sources::ScrapeSources;
use forebay_base::RankIndex;
use forebay_board::RankLoad;

const NANOS_PER_SECOND: f64 = 1e9;

/// Reader of the samples of a metric. A metric without samples is left out.
pub(crate) enum Samples {
    /// A single value, without labels.
    One(fn(&ScrapeSources<'_>) -> u64),
    /// A single value, if there is such a value.
    Maybe(fn(&ScrapeSources<'_>) -> Option<u64>),
    /// A single time in nanoseconds, if there is such a time.
    Nanos(fn(&ScrapeSources<'_>) -> Option<u64>),
    /// A value for each rank. Also a column of the live page.
    Ranks(fn(&ScrapeSources<'_>, RankIndex) -> Option<u64>),
    /// The same with fractions.
    RankFractions(fn(&ScrapeSources<'_>, RankIndex) -> Option<f64>),
    /// Samples with labels of their own.
    Labelled(fn(&ScrapeSources<'_>, &mut Family<'_>)),
}

impl Samples {
    /// Writes the samples of a scrape.
    pub(crate) fn write(&self, sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
        match self {
            Self::One(read) => family.sample(&[], read(sources)),
            Self::Maybe(read) => read(sources).into_iter().for_each(|v| family.sample(&[], v)),
            Self::Nanos(read) => read(sources).into_iter().for_each(|v| family.seconds(&[], v)),
            Self::Ranks(read) => {
                per_rank(sources, family, |rank| read(sources, rank).map(approximate));
            }
            Self::RankFractions(read) => per_rank(sources, family, |rank| read(sources, rank)),
            Self::Labelled(write) => write(sources, family),
        }
    }
}

/// Writes a sample for each rank with a value.
pub(crate) fn per_rank(
    sources: &ScrapeSources<'_>,
    family: &mut Family<'_>,
    read: impl Fn(RankIndex) -> Option<f64>,
) {
    each_rank(sources, |rank, labels| {
        read(rank).into_iter().for_each(|value| family.fraction(labels, value));
    });
}

/// Visits each present rank with its labels.
pub(crate) fn each_rank(
    sources: &ScrapeSources<'_>,
    mut visit: impl FnMut(RankIndex, MetricLabels<'_>),
) {
    for (index, rank, worker) in sources.fleet.fleet.present() {
        let dp_rank = rank.dp_rank.0.to_string();
        visit(index, &[("worker", &worker.name), ("dp_rank", &dp_rank)]);
    }
}

/// Load of a rank.
pub(crate) fn load<'a>(sources: &ScrapeSources<'a>, rank: RankIndex) -> Option<&'a RankLoad> {
    sources.fleet.board.rank(rank)
}

/// Converts nanoseconds to seconds.
pub(crate) fn seconds(nanos: u64) -> f64 {
    approximate(nanos) / NANOS_PER_SECOND
}

/// A number of things in memory as a sample.
pub(crate) fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
