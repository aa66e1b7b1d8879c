//! Metrics of choices: reasons, cache hits, times to the first byte.

use super::catalogue;
use super::metrics_text::{MetricsText, OTHER_MODELS, WholeHistogram, approximate};
use crate::sources::{ScrapeSources, total};
use forebay_base::RankIndex;
use forebay_base::limits::MODELS_MAX;
use forebay_board::account::{Metric, RankCount, TTFT_BOUNDS_NS};
use forebay_fleet::trust::{GuessUse, RequestShape, TRUST_GROUPS, TrustCount, TrustTally};
use forebay_select::ChoiceReason;
use std::ops::RangeInclusive;

const NANOS_PER_SECOND: f64 = 1e9;

static RANK_COUNTERS: [(&Metric, RankCount); 4] = [
    (&catalogue::OVERLAP_BYTES, RankCount::OverlapBytes),
    (&catalogue::CACHED_TOKENS, RankCount::CachedTokens),
    (&catalogue::COMPUTED_TOKENS, RankCount::ComputedTokens),
    (&catalogue::RANK_CUTS, RankCount::CutAnswers),
];

pub(crate) fn choices(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let counters = sources.shards.counters;
    let mut family = text.open(&catalogue::DECISIONS);
    for because in ChoiceReason::ALL {
        let count = total(counters, |shard| shard.choices().decided_count(because as usize));
        family.sample(&[("reason", because.name())], count);
    }
    for (metric, count) in RANK_COUNTERS {
        let mut family = text.open(metric);
        each_rank(sources, |rank, labels| family.sample(labels, of_rank(sources, rank, count)));
    }
    let mut family = text.open(&catalogue::RANK_TTFT_SECONDS);
    each_rank(sources, |rank, labels| {
        let count = of_rank(sources, rank, RankCount::FirstBytes);
        let sum = seconds(of_rank(sources, rank, RankCount::FirstByteNanos));
        family.buckets(labels, std::iter::empty(), WholeHistogram { count, sum });
    });
    compared(sources, text);
    first_bytes(sources, text);
}

/// Predicted and found tokens by model and shape, and verdicts about predictions.
fn compared(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let counters = sources.shards.counters;
    let models = &sources.fleet.fleet.models;
    let shapes = |index: usize| {
        let is_compared = total(counters, |shard| shard.choices().compared_count(index)) > 0;
        RequestShape::ALL.into_iter().filter(move |_| is_compared)
    };
    let mut family = text.open(&catalogue::COMPARED_TOKENS);
    for (index, model) in models.iter().enumerate() {
        for shape in shapes(index) {
            let mut tally = TrustTally::default();
            for (shard, group) in
                counters.iter().flat_map(|shard| (0..TRUST_GROUPS).map(move |group| (shard, group)))
            {
                tally.add(&shard.choices().trust_tally(index, shape, group));
            }
            if tally.get(TrustCount::Samples) == 0 {
                continue;
            }
            for (by, count) in
                [("prediction", TrustCount::PredictedTokens), ("engine", TrustCount::FoundTokens)]
            {
                let labels = [("model", &*model.name), ("shape", shape.name()), ("by", by)];
                family.sample(&labels, tally.get(count));
            }
        }
    }
    let mut family = text.open(&catalogue::PREDICTIONS_OFF);
    for model in models {
        for shape in RequestShape::ALL {
            let verdict = sources.fleet.fleet.serving.trusts.of(&model.name, shape);
            let is_more = verdict.guesses == GuessUse::Counted;
            for (found, _) in
                [("more", is_more), ("less", !verdict.is_whole())].into_iter().filter(|off| off.1)
            {
                let labels = [("model", &*model.name), ("shape", shape.name()), ("found", found)];
                family.sample(&labels, 1_u64);
            }
        }
    }
}

/// Times to the first byte by model.
fn first_bytes(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::TTFT_SECONDS);
    for model in 0..=MODELS_MAX {
        let Some((below, whole)) = first_byte_figures(sources, model..=model) else { continue };
        let known = sources.fleet.fleet.models.get(model).filter(|_| model < MODELS_MAX);
        let name = known.map_or(OTHER_MODELS, |model| &*model.name);
        let bounds = TTFT_BOUNDS_NS.iter().map(|&bound| seconds(bound));
        family.buckets(&[("model", name)], bounds.zip(below), whole);
    }
}

/// Cumulative counts of the models' times to the first byte at [`TTFT_BOUNDS_NS`], and the total.
/// `None` without streams.
pub(crate) fn first_byte_figures(
    sources: &ScrapeSources<'_>,
    models: RangeInclusive<usize>,
) -> Option<(Vec<u64>, WholeHistogram)> {
    let counters = sources.shards.counters;
    let mut below = vec![0_u64; TTFT_BOUNDS_NS.len() + 1];
    let mut nanos = 0;
    for model in models {
        for shard in counters {
            for (below, count) in below.iter_mut().zip(shard.choices().first_bytes(model)) {
                *below += count;
            }
        }
        nanos += total(counters, |shard| shard.choices().first_byte_nanos(model));
    }
    let mut count = 0;
    for below in &mut below {
        count += *below;
        *below = count;
    }
    (count > 0).then(|| (below, WholeHistogram { count, sum: seconds(nanos) }))
}

/// A rank's counter, summed over all shards.
pub(crate) fn of_rank(sources: &ScrapeSources<'_>, rank: RankIndex, count: RankCount) -> u64 {
    total(sources.shards.counters, |shard| shard.choices().value(rank, count))
}

fn each_rank(sources: &ScrapeSources<'_>, mut shown: impl FnMut(RankIndex, &[(&str, &str)])) {
    for (index, rank, worker) in sources.fleet.fleet.present() {
        let dp_rank = rank.dp_rank.0.to_string();
        shown(index, &[("worker", &worker.name), ("dp_rank", &dp_rank)]);
    }
}

pub(crate) fn seconds(nanos: u64) -> f64 {
    approximate(nanos) / NANOS_PER_SECOND
}
