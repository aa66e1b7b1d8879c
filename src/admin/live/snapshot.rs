//! A snapshot as JSON. Figures of `/metrics` are named after their metric, without the prefix, and
//! use the same readers. The page computes rates and quantiles from consecutive snapshots.

use super::super::calls::windows;
use super::super::metrics::catalogue;
use super::super::metrics::samples::seconds;
use super::super::metrics::scrape::{STAGE_BOUNDS, each_answered, each_refused, stage_figures};
use super::super::metrics::scrape_choices::{first_byte_figures, of_rank};
use super::super::readiness::RouterReadiness;
use super::super::sources::{ScrapeSources, WorkerSources, total};
use super::ranks;
use super::tenants;
use forebay_base::limits::MODELS_MAX;
use forebay_base::{PoolIndex, QueueIndex, RankIndex, RouterId, broken_invariant_count};
use forebay_board::account::{Count, RankCount, Stage, TTFT_BOUNDS_NS};
use forebay_config::QueueMode;
use forebay_fleet::worker::{FleetSnapshot, Pool};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Times to the first token of streams, beside the stages of requests: the head of a stream comes
/// before its first token.
const FIRST_TOKEN: &str = "first_token";

/// Sources of a snapshot.
pub struct LiveSources<'a, 's, 'w> {
    /// Identifies this process: viewers compare only snapshots of the same process.
    pub router_id: RouterId,
    pub scrape: &'a ScrapeSources<'s>,
    pub workers: &'a WorkerSources<'w>,
    pub readiness: RouterReadiness,
    /// Other routers; `None` without replicas.
    pub replicas: Option<Value>,
}

/// Contents of a snapshot.
pub(super) struct SnapshotParts<'a, 's, 'w> {
    pub(super) sources: &'a LiveSources<'a, 's, 'w>,
    /// Include the parts that change only with the fleet.
    pub(super) is_whole: bool,
    pub(super) events: Vec<Value>,
}

impl SnapshotParts<'_, '_, '_> {
    pub(super) fn shown(&self) -> Map<String, Value> {
        let LiveSources { router_id, scrape, workers, readiness, replicas } = self.sources;
        let fleet = scrape.fleet.fleet;
        let whole = self.is_whole.then(|| {
            json!({
                "version": env!("CARGO_PKG_VERSION"),
                "policy": fleet.config.policy.name(),
                "queue_mode": queue_mode(fleet.config.flow.queue.mode),
                "queue_depth_max": fleet.config.flow.queue.depth_max,
                "workers": ranks::workers(workers),
                "ranks": ranks::places(scrape),
            })
        });
        let beside = json!({
            "router_id": router_id.as_str(),
            "generation": fleet.generation,
            "whole": whole,
            "state": readiness.state(),
            "reasons": readiness.reasons,
            "concerns": readiness.concerns,
            "orders": readiness.orders,
            "certificates": readiness.shown_certificates(),
            "replicas": replicas,
            "ranks": ranks::figures(scrape),
            "pools": pools(scrape),
            "stalled": scrape.shards.stalled,
            "events": self.events,
        });
        let mut shown = router_figures(scrape);
        if let Value::Object(beside) = beside {
            shown.extend(beside);
        }
        shown
    }
}

/// Figures of the whole router, of which viewers show the course.
pub(super) fn router_figures(sources: &ScrapeSources<'_>) -> Map<String, Value> {
    let figures = [
        ("uptime_ms", json!(sources.fleet.now.0 / 1_000_000)),
        ("totals", totals(sources)),
        ("requests_total", answered(sources)),
        ("rejected_total", refused(sources)),
        ("stage_seconds", stages(sources)),
    ];
    let tenants = tenants::figures(sources).map(|tenants| ("tenants", tenants));
    let figures = figures.into_iter().chain(tenants);
    figures.map(|(name, figure)| (name.to_owned(), figure)).collect()
}

const fn queue_mode(mode: QueueMode) -> &'static str {
    match mode {
        QueueMode::Off => "off",
        QueueMode::Pool => "pool",
        QueueMode::Endpoint => "endpoint",
    }
}

/// Totals of metrics without labels, and of `OVERLAP_BYTES`.
fn totals(sources: &ScrapeSources<'_>) -> Value {
    let mut totals = Map::new();
    for (count, metric) in Count::ALL {
        let value = total(sources.shards.counters, |shard| shard.value(*count));
        totals.insert(metric.name.to_owned(), json!(value));
    }
    let ranks = (0..sources.fleet.fleet.ranks.len()).filter_map(RankIndex::try_from_index);
    let overlap_bytes = ranks.map(|rank| of_rank(sources, rank, RankCount::OverlapBytes));
    for (metric, value) in [
        (&catalogue::OVERLAP_BYTES, overlap_bytes.sum()),
        (&catalogue::INDEX_ENTRIES, sources.index.entry_count()),
        (&catalogue::INDEX_BYTES, sources.index.memory_bytes()),
        (&catalogue::LOG_DROPPED, sources.process.log_dropped),
        (&catalogue::BROKEN_INVARIANTS, broken_invariant_count()),
    ] {
        totals.insert(metric.name.to_owned(), json!(value));
    }
    Value::Object(totals)
}

/// Answered requests by status.
fn answered(sources: &ScrapeSources<'_>) -> Value {
    let mut by_code: BTreeMap<u16, u64> = BTreeMap::new();
    each_answered(sources.shards.counters, |_, code, count| {
        *by_code.entry(code).or_default() += count;
    });
    json!(by_code)
}

/// Refused requests by reason.
fn refused(sources: &ScrapeSources<'_>) -> Value {
    let mut by_reason: BTreeMap<&str, u64> = BTreeMap::new();
    each_refused(sources.shards.counters, |refused, count| {
        *by_reason.entry(refused.reason).or_default() += count;
    });
    json!(by_reason)
}

fn stages(sources: &ScrapeSources<'_>) -> Value {
    let mut stages = Map::new();
    for (stage, name) in Stage::ALL {
        if let Some((below, whole)) = stage_figures(sources.shards.histograms, stage) {
            let shown = json!({ "below": below, "count": whole.count, "sum": whole.sum });
            stages.insert(name.to_owned(), shown);
        }
    }
    if let Some((below, whole)) = first_byte_figures(sources, 0..=MODELS_MAX) {
        let bounds: Vec<f64> = TTFT_BOUNDS_NS.iter().map(|&bound| seconds(bound)).collect();
        stages.insert(
            FIRST_TOKEN.to_owned(),
            json!({ "bounds": bounds, "below": below, "count": whole.count, "sum": whole.sum }),
        );
    }
    let bounds: Vec<f64> = STAGE_BOUNDS.iter().map(|(_, bound)| *bound).collect();
    json!({ "bounds": bounds, "stages": stages })
}

/// Each pool with its window and its queues.
fn pools(sources: &ScrapeSources<'_>) -> Value {
    let fleet = sources.fleet.fleet;
    let board = sources.fleet.board;
    let now = sources.fleet.now;
    let shown = fleet.used_pools().map(|(pool, ranks)| {
        let mut shown = windows::shown((pool, ranks), fleet, board.windows(), now);
        let queues = queues(fleet, pool, ranks);
        let cells = || queues.iter().filter_map(|queue| board.queue(*queue));
        let added = json!({
            "queue_depth": cells().map(|queue| u64::from(queue.waiting())).sum::<u64>(),
            "queue_bytes": cells().map(|queue| queue.waiting_bytes()).sum::<u64>(),
            "drain_rate": sources.drain_rates.per_second(pool, now),
        });
        if let (Value::Object(shown), Value::Object(added)) = (&mut shown, added) {
            shown.extend(added);
        }
        shown
    });
    shown.collect()
}

/// Queues of a pool.
pub(super) fn queues(fleet: &FleetSnapshot, pool: PoolIndex, ranks: &Pool) -> Vec<QueueIndex> {
    match fleet.config.flow.queue.mode {
        QueueMode::Off => Vec::new(),
        QueueMode::Pool => vec![QueueIndex(pool.0)],
        QueueMode::Endpoint => ranks.ranks.iter().map(|rank| QueueIndex(rank.0)).collect(),
    }
}
