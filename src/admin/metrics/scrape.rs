//! `GET /metrics`: reads all counters in place and writes them as text. Called by the control
//! plane's loop; costs nothing between scrapes. Label sets are bounded: workers, ranks, models (the
//! first 64 have their own label, the rest share `other`), endpoints, reasons.

use super::catalogue;
use super::metrics_text::{MetricsText, WholeHistogram, approximate};
use super::scrape_choices::choices;
use super::scrape_flow::{self, FlowSources};
use super::scrape_load::loads;
use super::scrape_process;
use super::scrape_replicas;
use super::scrape_tenants;
use crate::calls::roles;
use crate::sources::{FeedsView, FleetView, ScrapeSources, SnapshotFigures, SpanFigures, total};
use forebay_base::limits::MODELS_MAX;
use forebay_base::{RankIndex, broken_invariant_count};
use forebay_board::EjectReason;
use forebay_board::account::{
    BlameScope, Count, Metric, NO_ENDPOINT, NoContinuation, OVERLAP_ERROR_BLOCKS_MAX,
    ShardCounters, Stage, StageHistograms,
};
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::IndexReader;
use forebay_kv_events::{
    BatchOutcome, BatchResult, DropReason, EventKind, FeedCounters, ReplayResult, ResetReason, Tier,
};
use forebay_prompt::parse::{Endpoint, Reason};
use forebay_zmq::LossReason;
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

/// All metrics as text.
#[must_use]
pub fn render(sources: &ScrapeSources<'_>) -> String {
    let mut text = MetricsText::default();
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    text.open(&catalogue::BUILD_INFO).sample(&version, 1);
    requests(sources, &mut text);
    rejected(sources, &mut text);
    refusals(sources, &mut text);
    not_continued(sources, &mut text);
    scrape_tenants::tenants(sources, &mut text);
    plain(sources, &mut text);
    ranks(sources, &mut text);
    workers(sources.fleet.fleet, &mut text);
    loads(&sources.fleet, &mut text);
    let FleetView { fleet, board, now, .. } = sources.fleet;
    let drain_rates = sources.drain_rates;
    scrape_flow::flow(&FlowSources { fleet, board, drain_rates, now }, &mut text);
    choices(sources, &mut text);
    overlap_errors(sources, &mut text);
    stages(sources, &mut text);
    kv_feeds(sources.feeds, &mut text);
    index(sources.index, &mut text);
    if let Some(replicas) = &sources.replicas {
        scrape_replicas::replicas(sources.fleet.fleet, replicas, &mut text);
    }
    if let Some(figures) = &sources.snapshots {
        snapshots(figures, sources, &mut text);
    }
    stalled(&sources.shards.stalled, &mut text);
    let mut offloaded = text.open(&catalogue::OFFLOADED);
    for (number, shard) in sources.shards.counters.iter().enumerate() {
        offloaded.sample(&[("shard", &number.to_string())], shard.offloaded());
    }
    scrape_process::process(&mut text);
    text.open(&catalogue::LOG_DROPPED).sample(&[], sources.records.log_dropped);
    spans(&sources.records.spans, &mut text);
    text.open(&catalogue::BROKEN_INVARIANTS).sample(&[], broken_invariant_count());
    text.finish()
}

fn spans(figures: &SpanFigures, text: &mut MetricsText) {
    text.open(&catalogue::TRACE_SPANS).sample(&[], figures.exported);
    let mut family = text.open(&catalogue::TRACE_SPANS_DROPPED);
    let SpanFigures { full, refused, unreachable, .. } = *figures;
    for (reason, count) in [("full", full), ("refused", refused), ("unreachable", unreachable)] {
        family.sample(&[("reason", reason)], count);
    }
}

fn requests(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::REQUESTS);
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

fn rejected(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::REJECTED);
    each_refused(sources.shards.counters, |refused, count| {
        let model = sources.fleet.fleet.models.get(refused.model_index);
        let model = model.filter(|_| refused.model_index < MODELS_MAX);
        let unnamed = if refused.kind == UNKNOWN { UNKNOWN } else { "other" };
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
                        refused(&RefusalLabels { reason, endpoint, kind, model_index }, count);
                    }
                }
            }
        }
    }
}

fn not_continued(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::STREAMS_NOT_CONTINUED);
    for why in NoContinuation::ALL {
        let count = total(sources.shards.counters, |shard| shard.not_continued_count(why));
        family.sample(&[("reason", why.name())], count);
    }
}

fn refusals(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::REFUSALS);
    for against in BlameScope::ALL {
        let count = total(sources.shards.counters, |shard| shard.held_count(against));
        family.sample(&[("against", against.name())], count);
    }
}

fn plain(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    for (count, metric) in Count::ALL {
        let value = total(sources.shards.counters, |shard| shard.value(*count));
        text.open(metric).sample(&[], value);
    }
}

fn stalled(stalled: &[bool], text: &mut MetricsText) {
    let mut family = text.open(&catalogue::SHARD_STALLED);
    for (shard, is_stalled) in stalled.iter().enumerate() {
        family.sample(&[("shard", &shard.to_string())], u64::from(*is_stalled));
    }
}

/// Reads a figure of a rank; `None` if the rank has no such figure.
type RankReader = fn(&ScrapeSources<'_>, RankIndex) -> Option<u64>;

/// Gauges of each rank.
pub(crate) static RANK_GAUGES: [(&Metric, RankReader); 10] = [
    (&catalogue::IN_FLIGHT, |sources, rank| {
        sources.fleet.board.rank(rank).map(|load| u64::from(load.in_flight()))
    }),
    (&catalogue::PREFILL_TOKENS, |sources, rank| {
        sources.fleet.board.rank(rank).map(|load| load.prefill_tokens())
    }),
    (&catalogue::PREFILL_TOKENS_PER_SECOND, |sources, rank| {
        sources.fleet.board.past(rank)?.prefill_tokens_per_s()
    }),
    (&catalogue::WAIT_TOKENS_PER_SECOND, |sources, rank| {
        sources.fleet.board.past(rank)?.wait_tokens_per_s()
    }),
    (&catalogue::DECODE_TOKENS, |sources, rank| {
        sources.fleet.board.rank(rank).map(|load| load.kv_tokens())
    }),
    (&catalogue::BREAKER_OPEN, |sources, rank| {
        sources.fleet.board.rank(rank).map(|load| u64::from(load.is_open()))
    }),
    (&catalogue::KV_FEED_LIVE, |sources, rank| {
        sources.fleet.fleet.rank(rank).map(|(rank, _)| u64::from(rank.kv_feed_live))
    }),
    (&catalogue::KV_OVERLAP_UPPER_BOUND, |sources, rank| {
        sources.fleet.fleet.rank(rank).map(|(rank, _)| u64::from(rank.tiers.is_upper_bound()))
    }),
    (&catalogue::KV_RANK_BLOCKS, |sources, rank| {
        sources.feeds.status(rank).map(|feed| u64::try_from(feed.blocks()).unwrap_or(u64::MAX))
    }),
    (&catalogue::KV_QUIET_SECONDS, |sources, rank| {
        sources.feeds.status(rank)?.quiet().map(|quiet| quiet.as_secs())
    }),
];

fn ranks(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    for (metric, read) in &RANK_GAUGES {
        let mut family = text.open(metric);
        for (index, rank, worker) in sources.fleet.fleet.present() {
            let Some(value) = read(sources, index) else { continue };
            let dp_rank = rank.dp_rank.0.to_string();
            family.sample(&[("worker", &worker.name), ("dp_rank", &dp_rank)], value);
        }
    }
    let mut family = text.open(&catalogue::RANK_EJECTIONS);
    for (index, rank, worker) in sources.fleet.fleet.present() {
        let load = sources.fleet.board.rank(index);
        let dp_rank = rank.dp_rank.0.to_string();
        for reason in EjectReason::ALL {
            let labels =
                [("worker", &*worker.name), ("dp_rank", &dp_rank), ("reason", reason.name())];
            family.sample(&labels, load.map_or(0, |load| load.ejection_count(reason).into()));
        }
    }
}

fn workers(fleet: &FleetSnapshot, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::WORKER_UP);
    for (_, worker) in fleet.present_workers() {
        let labels = [("worker", &*worker.name), ("engine", worker.engine_name())];
        family.sample(&labels, u64::from(worker.state.answers()));
    }
    let mut family = text.open(&catalogue::WORKER_DRAINING);
    for (_, worker) in fleet.present_workers() {
        family.sample(&[("worker", &*worker.name)], u64::from(worker.state.is_draining()));
    }
    let mut family = text.open(&catalogue::WORKERS);
    for (role, state, count) in roles::census(fleet) {
        let labels = [("role", role), ("state", state)];
        family.sample(&labels, u64::try_from(count).unwrap_or(u64::MAX));
    }
    text.open(&catalogue::FLEET_GENERATION).sample(&[], fleet.generation);
    let expires_at = fleet.serving.acceptor.as_ref().and_then(|acceptor| acceptor.expires_at());
    if let Some(expires_at) = expires_at {
        text.open(&catalogue::TLS_EXPIRES_TIMESTAMP_SECONDS).sample(&[], expires_at.as_secs());
    }
}

fn overlap_errors(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::OVERLAP_ERROR_BLOCKS);
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

fn stages(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::STAGE_SECONDS);
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

fn kv_feeds(view: &FeedsView<'_>, text: &mut MetricsText) {
    let FeedsView { counters: feeds, pools, .. } = view;
    let mut family = text.open(&catalogue::KV_BATCHES);
    for (result, label) in BatchResult::ALL {
        family.sample(&[("result", label)], feeds.batch_count(result));
    }
    let mut family = text.open(&catalogue::KV_EVENTS);
    for (kind, kind_label) in EventKind::ALL {
        for (outcome, label) in BatchOutcome::ALL {
            let count = feeds.event_count(kind, outcome);
            if count > 0 || outcome == BatchOutcome::Applied {
                family.sample(&[("kind", kind_label), ("result", label)], count);
            }
        }
    }
    let mut family = text.open(&catalogue::KV_RESETS);
    for (reason, label) in ResetReason::ALL {
        family.sample(&[("reason", label)], feeds.reset_count(reason));
    }
    let mut family = text.open(&catalogue::KV_REPLAYS);
    for (result, label) in ReplayResult::ALL {
        family.sample(&[("result", label)], feeds.replay_count(result));
    }
    text.open(&catalogue::KV_MISSED_BATCHES).sample(&[], feeds.missed_count());
    let mut family = text.open(&catalogue::KV_CONNECTIONS_LOST);
    for (reason, label) in LossReason::ALL {
        family.sample(&[("reason", label)], feeds.loss_count(reason));
    }
    text.open(&catalogue::KV_FEED_STALLED).sample(&[], feeds.stall_count());
    let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    text.open(&catalogue::KV_TRACKED_BLOCKS).sample(&[], wide(feeds.block_count()));
    let mut family = text.open(&catalogue::KV_TIER_BLOCKS);
    for tier in Tier::ALL {
        family.sample(&[("tier", tier.label())], wide(feeds.tier_block_count(tier)));
    }
    let mut family = text.open(&catalogue::KV_EXPIRED_BLOCKS);
    for tier in [Tier::Host, Tier::Disk] {
        family.sample(&[("tier", tier.label())], feeds.expired_count(tier));
    }
    let mut family = text.open(&catalogue::KV_POOL_BLOCKS);
    for pool in pools {
        family.sample(&[("kv_pool", pool.name), ("model", pool.model)], wide(pool.blocks));
    }
    let of_pools = pools.iter().map(|pool| pool.bytes).sum::<usize>();
    text.open(&catalogue::KV_TRACKED_BYTES).sample(&[], wide(feeds.byte_count() + of_pools));
    kv_orphans(feeds, text);
}

fn kv_orphans(feeds: &FeedCounters, text: &mut MetricsText) {
    let waiting = u64::try_from(feeds.orphan_count()).unwrap_or(u64::MAX);
    text.open(&catalogue::KV_ORPHAN_BLOCKS).sample(&[], waiting);
    let gone = feeds.orphans_gone_count();
    let mut family = text.open(&catalogue::KV_ORPHANS);
    for (label, count) in
        [("applied", gone.applied), ("dropped", gone.dropped), ("removed", gone.removed)]
    {
        family.sample(&[("result", label)], u64::try_from(count).unwrap_or(u64::MAX));
    }
}

fn index(index: &IndexReader, text: &mut MetricsText) {
    text.open(&catalogue::INDEX_ENTRIES).sample(&[], index.entry_count());
    text.open(&catalogue::INDEX_RUNS).sample(&[], index.run_count());
    text.open(&catalogue::INDEX_BYTES).sample(&[], index.memory_bytes());
    text.open(&catalogue::INDEX_REFUSED).sample(&[], index.refused_count());
    text.open(&catalogue::INDEX_EVICTED).sample(&[], index.evicted_count());
}

fn snapshots(figures: &SnapshotFigures, sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::SNAPSHOT_WRITES);
    for (count, label) in [(figures.written_count, "written"), (figures.failed_count, "failed")] {
        family.sample(&[("result", label)], count);
    }
    if let Some(last) = &figures.last {
        let age_ns = sources.fleet.now.since(last.ended_at);
        text.open(&catalogue::SNAPSHOT_AGE_SECONDS).seconds(&[], age_ns);
        text.open(&catalogue::SNAPSHOT_BYTES).sample(&[], last.bytes);
        text.open(&catalogue::SNAPSHOT_BLOCKS).sample(&[], last.blocks);
        text.open(&catalogue::SNAPSHOT_WRITE_SECONDS).seconds(&[], last.took_ns);
        text.open(&catalogue::SNAPSHOT_COPY_SECONDS).seconds(&[], last.copy_ns_max);
    }
    let restored = sources.feeds.counters.restored_count();
    text.open(&catalogue::SNAPSHOT_RESTORED_BLOCKS).sample(&[], restored);
    let mut family = text.open(&catalogue::SNAPSHOT_DROPPED_BLOCKS);
    for (reason, label) in DropReason::ALL {
        family.sample(&[("reason", label)], sources.feeds.counters.dropped_count(reason));
    }
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
