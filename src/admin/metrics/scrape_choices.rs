//! Metrics of choices: reasons, cache hits, times to the first byte.

use super::metrics_text::{Family, OTHER_MODELS, WholeHistogram, approximate};
use super::samples::{each_rank, per_rank, seconds};
use crate::sources::{ScrapeSources, total};
use forebay_base::RankIndex;
use forebay_base::limits::MODELS_MAX;
use forebay_board::account::{RankCount, ShardCounters, TTFT_BOUNDS_NS};
use forebay_fleet::trust::{GuessUse, RequestShape, TRUST_GROUPS, TrustCount, TrustTally};
use forebay_select::ChoiceReason;
use std::ops::RangeInclusive;

pub(crate) fn decisions(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for reason in ChoiceReason::ALL {
        let read = |shard: &ShardCounters| shard.choices().decided_count(reason as usize);
        family.sample(&[("reason", reason.name())], total(sources.shards.counters, read));
    }
}

/// A counter of each rank.
pub(crate) fn rank_counts(sources: &ScrapeSources<'_>, family: &mut Family<'_>, count: RankCount) {
    per_rank(sources, family, |rank| Some(approximate(of_rank(sources, rank, count))));
}

/// Times to the first byte by rank.
pub(crate) fn rank_first_bytes(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    each_rank(sources, |rank, labels| {
        let count = of_rank(sources, rank, RankCount::FirstBytes);
        let sum = seconds(of_rank(sources, rank, RankCount::FirstByteNanos));
        family.buckets(labels, std::iter::empty(), WholeHistogram { count, sum });
    });
}

/// Predicted and found tokens by model and shape.
pub(crate) fn compared(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let counters = sources.shards.counters;
    for (index, model) in sources.fleet.fleet.models.iter().enumerate() {
        if total(counters, |shard| shard.choices().compared_count(index)) == 0 {
            continue;
        }
        for shape in RequestShape::ALL {
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
}

/// Verdicts about predictions, by model and shape.
pub(crate) fn predictions_off(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for model in &sources.fleet.fleet.models {
        for shape in RequestShape::ALL {
            let verdict = sources.fleet.fleet.serving.trusts.of(&model.name, shape);
            let is_more = verdict.guesses == GuessUse::Counted;
            for (found, _) in
                [("more", is_more), ("less", !verdict.is_whole())].into_iter().filter(|off| off.1)
            {
                let labels = [("model", &*model.name), ("shape", shape.name()), ("found", found)];
                family.sample(&labels, 1);
            }
        }
    }
}

/// Times to the first byte by model.
pub(crate) fn first_bytes(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
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
