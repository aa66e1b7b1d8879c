//! Samples of requests, workers and the process. Label sets are bounded: workers, ranks, models
//! (the first 64 have their own label, the rest share `other`), endpoints, reasons.

use super::metrics_text::{Family, OTHER_MODELS, WholeHistogram, approximate};
use super::samples::{each_rank, load, wide};
use crate::calls::roles;
use crate::sources::{ScrapeSources, SpanFigures, total};
use forebay_base::limits::MODELS_MAX;
use forebay_board::EjectReason;
use forebay_board::account::{
    BlameScope, NO_ENDPOINT, NoContinuation, OVERLAP_ERROR_BLOCKS_MAX, ShardCounters, Stage,
    StageHistograms,
};
use forebay_fleet::worker::ModelKind;
use forebay_prompt::parse::{Endpoint, Reason};
use std::sync::Arc;

/// Bounds of the latency buckets, in nanoseconds and as the label in seconds.
pub(crate) const STAGE_BOUNDS: [(u64, f64); 24] = [
    (1_000, 1e-6),
    (2_000, 2e-6),
    (5_000, 5e-6),
    (10_000, 1e-5),
    (20_000, 2e-5),
    (50_000, 5e-5),
    (100_000, 1e-4),
    (200_000, 2e-4),
    (500_000, 5e-4),
    (1_000_000, 1e-3),
    (2_000_000, 2e-3),
    (5_000_000, 5e-3),
    (10_000_000, 1e-2),
    (20_000_000, 2e-2),
    (50_000_000, 5e-2),
    (100_000_000, 0.1),
    (200_000_000, 0.2),
    (500_000_000, 0.5),
    (1_000_000_000, 1.0),
    (2_000_000_000, 2.0),
    (5_000_000_000, 5.0),
    (10_000_000_000, 10.0),
    (60_000_000_000, 60.0),
    (600_000_000_000, 600.0),
];
const NANOS_PER_SECOND: f64 = 1e9;

/// Writes a sample for each value of a label.
pub(crate) fn by<T>(
    label: &'static str,
    values: impl IntoIterator<Item = (T, &'static str)>,
    family: &mut Family<'_>,
    read: impl Fn(T) -> u64,
) {
    values.into_iter().for_each(|(of, name)| family.sample(&[(label, name)], read(of)));
}

pub(crate) fn spans_dropped(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let SpanFigures { full, refused, unreachable, .. } = sources.process.spans;
    let counts = [(full, "full"), (refused, "refused"), (unreachable, "unreachable")];
    by("reason", counts, family, |count| count);
}

pub(crate) fn requests(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    each_answered(sources.shards.counters, |endpoint, code, count| {
        family.sample(&[("endpoint", endpoint), ("code", &code.to_string())], count);
    });
}

/// Visits each endpoint and status with a count above 0.
pub(crate) fn each_answered(
    counters: &[Arc<ShardCounters>],
    mut answered: impl FnMut(&'static str, u16, u64),
) {
    for (position, endpoint) in endpoints() {
        for code in 100..600 {
            let count = total(counters, |shard| shard.answered_count(position, code));
            if count > 0 {
                answered(endpoint, code, count);
            }
        }
    }
}

/// Indices and names of endpoints; `none` counts requests that reached no endpoint.
fn endpoints() -> impl Iterator<Item = (usize, &'static str)> {
    let named = Endpoint::ALL.into_iter().map(Endpoint::name).enumerate();
    named.chain([(NO_ENDPOINT, "none")])
}

/// Label for body fields of a request that was refused before its body was read.
const UNKNOWN: &str = "unknown";
const KINDS: [(Option<bool>, &str); 3] =
    [(Some(false), "unary"), (Some(true), "stream"), (None, UNKNOWN)];

pub(crate) fn rejected(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    each_refused(sources.shards.counters, |refused, count| {
        let model = sources.fleet.fleet.models.get(refused.model_index);
        let model = model.filter(|_| refused.model_index < MODELS_MAX);
        let unnamed = if refused.kind == UNKNOWN { UNKNOWN } else { OTHER_MODELS };
        let labels = [
            ("reason", refused.reason),
            ("endpoint", refused.endpoint),
            ("model", model.map_or(unnamed, |model| &*model.name)),
            ("type", refused.kind),
        ];
        family.sample(&labels, count);
    });
}

/// Labels of a counter of refused requests.
pub(crate) struct RefusalLabels {
    pub(crate) reason: &'static str,
    endpoint: &'static str,
    kind: &'static str,
    model_index: usize,
}

/// Visits each counter of refused requests above 0.
pub(crate) fn each_refused(
    counters: &[Arc<ShardCounters>],
    mut refused: impl FnMut(&RefusalLabels, u64),
) {
    for (reason_index, reason) in Reason::ALL.iter().enumerate() {
        for (endpoint_index, endpoint) in endpoints() {
            if !counters.iter().any(|shard| shard.has_refused(reason_index, endpoint_index)) {
                continue;
            }
            for (stream, kind) in KINDS {
                for model_index in 0..=MODELS_MAX {
                    let read = |shard: &ShardCounters| {
                        shard.refused_count(reason_index, endpoint_index, stream, model_index)
                    };
                    let count = total(counters, read);
                    if count > 0 {
                        let reason = reason.as_str();
                        let labels = RefusalLabels { reason, endpoint, kind, model_index };
                        refused(&labels, count);
                    }
                }
            }
        }
    }
}

pub(crate) fn not_continued(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for why in NoContinuation::ALL {
        let count = total(sources.shards.counters, |shard| shard.not_continued_count(why));
        family.sample(&[("reason", why.name())], count);
    }
}

pub(crate) fn refusals(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for against in BlameScope::ALL {
        let count = total(sources.shards.counters, |shard| shard.held_count(against));
        family.sample(&[("against", against.name())], count);
    }
}

pub(crate) fn stalled(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (shard, is_stalled) in sources.shards.stalled.iter().enumerate() {
        family.sample(&[("shard", &shard.to_string())], u64::from(*is_stalled));
    }
}

pub(crate) fn offloaded(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (number, shard) in sources.shards.counters.iter().enumerate() {
        family.sample(&[("shard", &number.to_string())], shard.offloaded());
    }
}

pub(crate) fn ejections(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    each_rank(sources, |rank, labels| {
        for reason in EjectReason::ALL {
            let labels = [labels, &[("reason", reason.name())]].concat();
            let count = load(sources, rank).map_or(0, |load| load.ejection_count(reason).into());
            family.sample(&labels, count);
        }
    });
}

pub(crate) fn workers_up(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (_, worker) in sources.fleet.fleet.present_workers() {
        let labels = [("worker", &*worker.name), ("engine", worker.engine_name())];
        family.sample(&labels, u64::from(worker.state.answers()));
    }
}

pub(crate) fn sources_failing(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for source in sources.fleet.sources {
        family.sample(&[("source", &source.name)], u64::from(source.fault().is_some()));
    }
}

pub(crate) fn models_dropped(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for model in sources.fleet.fleet.models.iter().filter(|model| !model.is_any()) {
        let is_dropped = matches!(model.kind, ModelKind::Dropped(_));
        if is_dropped || model.is_known() {
            family.sample(&[("model", &*model.name)], u64::from(is_dropped));
        }
    }
}

pub(crate) fn workers_draining(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (_, worker) in sources.fleet.fleet.present_workers() {
        family.sample(&[("worker", &*worker.name)], u64::from(worker.state.is_draining()));
    }
}

pub(crate) fn workers(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (role, state, count) in roles::census(sources.fleet.fleet) {
        family.sample(&[("role", role), ("state", state)], wide(count));
    }
}

pub(crate) fn overlap_errors(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let count_of = |error: i64| -> u64 {
        let of_shard = |shard: &ShardCounters| -> u64 {
            let same = shard.overlap_errors().filter(|(blocks, _)| blocks.abs() == error);
            same.map(|(_, count)| count).sum()
        };
        total(sources.shards.counters, of_shard)
    };
    let mut below = 0;
    // The last bucket has errors of that size or larger: they count only under +Inf.
    let bounds = 0..OVERLAP_ERROR_BLOCKS_MAX;
    let cumulative: Vec<(f64, u64)> = bounds
        .zip(0_u32..)
        .map(|(error, bound)| {
            below += count_of(error);
            (f64::from(bound), below)
        })
        .collect();
    let count = below + count_of(OVERLAP_ERROR_BLOCKS_MAX);
    let sum = total(sources.shards.counters, ShardCounters::overlap_error_blocks_sum);
    family.buckets(&[], cumulative.into_iter(), WholeHistogram { count, sum: approximate(sum) });
}

pub(crate) fn stages(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (stage, name) in Stage::ALL {
        let Some((below, whole)) = stage_figures(sources.shards.histograms, stage) else {
            continue;
        };
        let bounds = STAGE_BOUNDS.iter().map(|(_, bound)| *bound);
        family.buckets(&[("stage", name)], bounds.zip(below), whole);
    }
}

/// Cumulative counts of a stage at [`STAGE_BOUNDS`], and the total.
pub(crate) fn stage_figures(
    histograms: &StageHistograms,
    stage: Stage,
) -> Option<(Vec<u64>, WholeHistogram)> {
    let histogram = histograms.stage(stage)?;
    let count = histogram.len();
    let mut below = 0_u64;
    let mut from = 0_u64;
    let counts = STAGE_BOUNDS.iter().map(|(bound_ns, _)| {
        below += histogram.count_between(from, *bound_ns);
        from = bound_ns + 1;
        // Adjacent bounds can share a cell of the histogram: clamp to the total.
        below.min(count)
    });
    let counts = counts.collect();
    let sum = histogram.mean() * approximate(count) / NANOS_PER_SECOND;
    Some((counts, WholeHistogram { count, sum }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_reasons_stand_at_their_counters() {
        for (position, endpoint) in Endpoint::ALL.iter().enumerate() {
            assert_eq!(*endpoint as usize, position);
        }
        for (position, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, position);
        }
    }
}
