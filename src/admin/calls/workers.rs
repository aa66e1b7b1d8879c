//! The fleet as JSON, for `GET /workers`: the operator's first question after a surprising route.

use super::prompt_faults::prompt_fault;
use super::rank_faults::{callers, feed_fault, request_fault, suspicion_fault};
use super::roles;
use crate::metrics::metrics_text::approximate;
use crate::sources::{FleetView, KvPoolView, WorkerSource, WorkerSources};
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_board::account::TtftMean;
use forebay_board::{EjectReason, HeldFailures, LoadReports, RankLoad};
use forebay_fleet::worker::{EngineLosses, FleetSnapshot, Rank, Worker, WorkerState};
use forebay_kv_events::{FeedStatus, TextFit};
use forebay_load::ReportSource;
use serde_json::{Value, json};
use std::borrow::Cow;

/// All workers with their ranks, models and load.
#[must_use]
pub fn list(sources: &WorkerSources<'_>) -> Value {
    let fleet = sources.fleet.fleet;
    let shown = |(index, worker)| shown(index, worker, sources);
    let workers: Vec<Value> = fleet.present_workers().map(shown).collect();
    let source = |source: &WorkerSource| {
        let error = source.fault().map(|fault| &fault.full);
        json!({ "name": source.name, "error": error })
    };
    let of: Vec<Value> = sources.fleet.sources.iter().map(source).collect();
    json!({ "generation": fleet.generation, "workers": workers, "sources": of })
}

/// A single worker; `None` if the name is unknown.
#[must_use]
pub fn named(name: &str, sources: &WorkerSources<'_>) -> Option<Value> {
    let mut workers = sources.fleet.fleet.present_workers();
    let (index, worker) = workers.find(|(_, worker)| &*worker.name == name)?;
    Some(shown(index, worker, sources))
}

fn shown(index: WorkerIndex, worker: &Worker, sources: &WorkerSources<'_>) -> Value {
    let fleet = sources.fleet.fleet;
    let trouble = (sources.trouble)(index);
    json!({
        "name": &*worker.name,
        "url": format!("{}://{}", scheme(worker), worker.authority),
        "address": worker.address.to_string(),
        "engine": worker.engine_name(),
        "state": state(worker.state),
        "engine_used_by": (sources.engine_used_by)(index),
        "draining": worker.state.is_draining(),
        "moves_streams": fleet.moves_streams(index),
        "sleep": (sources.sleep)(index),
        "in_flight": in_flight(index, sources),
        "role": roles::role_of(fleet, index),
        "error": trouble.map(|trouble| trouble.reason),
        "help": trouble.map(|trouble| trouble.help),
        "answers": trouble.map(|trouble| trouble.is_answer),
        "waits_for": waits_for(index, sources),
        "restarts": sources.fleet.restart_count(index),
        "models": models_of(fleet, index),
        "load_source": (sources.load_source)(index).map(ReportSource::word),
        "ranks": ranks_of(index, sources),
    })
}

/// What keeps requests from the worker, if the worker answers.
pub(crate) fn waits_for<'a>(
    index: WorkerIndex,
    sources: &WorkerSources<'a>,
) -> Option<Cow<'a, str>> {
    let twin = (sources.engine_used_by)(index)
        .map(|name| format!("the worker of the same engine, {name}: remove either of them"));
    twin.map(Cow::Owned).or_else(|| (sources.waits_for)(index).map(Cow::Borrowed))
}

pub(crate) fn scheme(worker: &Worker) -> &'static str {
    if worker.connector.is_some() { "https" } else { "http" }
}

/// Requests on all ranks that the worker ever had: a request may outlive its rank.
fn in_flight(worker: WorkerIndex, sources: &WorkerSources<'_>) -> u64 {
    let FleetView { fleet, board, .. } = sources.fleet;
    let ranks = (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index);
    let of_worker =
        ranks.filter(|&index| fleet.rank(index).is_some_and(|(r, _)| r.worker == worker));
    of_worker.filter_map(|rank| board.rank(rank)).map(|load| u64::from(load.in_flight())).sum()
}

pub(crate) fn models_of(fleet: &FleetSnapshot, worker: WorkerIndex) -> Vec<&str> {
    let serves = |ranks: &[RankIndex]| {
        let of_worker = |rank: &RankIndex| {
            fleet.ranks.get(rank.index()).is_some_and(|rank| rank.worker == worker)
        };
        ranks.iter().any(of_worker)
    };
    let served = fleet.models.iter().filter(|model| serves(&model.ranks));
    served.map(|model| &*model.name).collect()
}

fn ranks_of(worker: WorkerIndex, sources: &WorkerSources<'_>) -> Vec<Value> {
    let ranks = sources.fleet.fleet.present().filter(|(_, rank, _)| rank.worker == worker);
    ranks.filter_map(|(index, rank, _)| shown_rank(index, rank, sources)).collect()
}

fn shown_rank(index: RankIndex, rank: &Rank, sources: &WorkerSources<'_>) -> Option<Value> {
    let load = sources.fleet.board.rank(index)?;
    let room = sources.fleet.board.limits_now(index, rank.room);
    Some(json!({
        "rank": index.0,
        "dp_rank": rank.dp_rank.0,
        "address": rank.address.to_string(),
        "kv_events": rank.kv_feed_live,
        "overlap_kind": rank.tiers.overlap_kind(),
        "kv_feed": sources.feeds.status(index).map(following),
        "kv_pool": rank.tiers.kv_pool.and_then(|pool| sources.feeds.pool(pool)).map(shared),
        "block_size": rank.block_size_tokens,
        "kv_blocks": rank.kv_block_count,
        "concurrency_max":
            (!rank.room.is_closed()).then_some(load.limited(rank.room).places_max),
        "concurrency_source": rank.limit_source.word(),
        "kv_tokens_max": rank.room.kv_tokens_max,
        "prefill_tokens_max": room.prefill_tokens_shown(),
        "engine_running_max": rank.running_max,
        "role": rank.role.name(),
        "topology": rank.topology.as_deref(),
        "kv_transfer": roles::kv_transfer(rank.kv_transfer.as_ref()),
        "pool": rank.pool.0,
        "in_flight": load.in_flight(),
        "places_elsewhere": load.places_elsewhere(),
        "kv_tokens": load.kv_tokens(),
        "ended": load.ended(),
        "busy_ms": load.busy_until(None).since(sources.fleet.now).div_ceil(1_000_000),
        "queue": queue(index, sources),
        "prefill_tokens": load.prefill_tokens(),
        "prefill_tokens_per_s": sources.fleet.board.past(index)?.prefill_tokens_per_s(),
        "wait_tokens_per_s": sources.fleet.board.past(index)?.wait_tokens_per_s(),
        "decode_tokens": load.kv_tokens(),
        "ttft_1m": sources.fleet.ttft_history.mean(index).map(ttft),
        "failures": load.failures(),
        "breaker_open": load.is_restricted(),
        "held": load.held().map(|held| held_against(held, sources.fleet.now)),
        "ejected": load.ejected().map(EjectReason::name),
        "fault": fault(index, rank, sources),
        "report": report(index, &sources.fleet.loads.reports(), sources.fleet.now),
    }))
}

/// Why requests fail on the rank, why it has no KV events, or why these are suspect.
fn fault(index: RankIndex, rank: &Rank, sources: &WorkerSources<'_>) -> Option<String> {
    let FleetView { fleet, board, now, .. } = sources.fleet;
    let worker = fleet.workers.get(rank.worker.index())?;
    let feed = sources.feeds.status(index);
    rank_fault(board.rank(index)?, rank, worker, feed, now)
        .or_else(|| prompt_fault(fleet, index, feed))
}

/// The first fault of a rank of a worker that is up. A worker that is not up has its own reason.
pub(crate) fn rank_fault(
    load: &RankLoad,
    rank: &Rank,
    worker: &Worker,
    feed: Option<&FeedStatus>,
    now: NanosSinceStart,
) -> Option<String> {
    let is_up = state(worker.state) == "up";
    let of_requests = || request_fault(load, worker.api_key.is_some(), now);
    let losses = rank.losses.as_deref();
    let of_lost_events = || losses.and_then(EngineLosses::kv_events_fault);
    let of_feed = || of_lost_events().or_else(|| feed.and_then(feed_fault));
    let of_endpoint = || rank.feed_suspicion.as_deref().map(suspicion_fault);
    let of_models = || losses.and_then(EngineLosses::models_fault);
    let of_engine = || of_requests().or_else(of_models);
    is_up.then(|| of_engine().or_else(of_feed).or_else(of_endpoint)).flatten()
}

/// Failures recorded against a rank: for which callers and models, and until when.
fn held_against(held: HeldFailures, now: NanosSinceStart) -> Value {
    let HeldFailures { score, status, is_one_model, is_one_caller, until, pauses } = held;
    json!({
        "score": score,
        "status": status,
        "callers": callers(is_one_caller),
        "models": if is_one_model { "one" } else { "all" },
        "paused_ms": until.since(now).div_ceil(1_000_000),
        "pauses": pauses,
    })
}

/// The queue of the rank, which other ranks may share. Null without queues.
fn queue(rank: RankIndex, sources: &WorkerSources<'_>) -> Value {
    let queue =
        sources.fleet.fleet.queue_of(rank).and_then(|queue| sources.fleet.board.queue(queue));
    queue.map_or(Value::Null, |queue| {
        json!({ "depth": queue.waiting(), "bytes": queue.waiting_bytes(),
            "kv_tokens": queue.waiting_tokens() })
    })
}

/// Status of a rank's event stream.
fn following(feed: &FeedStatus) -> Value {
    json!({
        "state": feed.state().name(),
        "text": feed.text().map(TextFit::name),
        "blocks": feed.blocks(),
        "quiet_s": feed.quiet().map(|quiet| quiet.as_secs()),
        "resets": feed.resets(),
        "connections_lost": feed.losses(),
    })
}

/// Times to the first token of the last minute.
fn ttft(TtftMean { streams, mean }: TtftMean) -> Value {
    json!({ "streams": streams, "mean_seconds": mean.as_secs_f64() })
}

/// A KV pool that several ranks share.
fn shared(pool: &KvPoolView<'_>) -> Value {
    json!({ "name": pool.name, "blocks": pool.blocks })
}

/// The rank's last load report, with the load that this router did not send; null without a report.
pub(crate) fn report(rank: RankIndex, reports: &LoadReports, now: NanosSinceStart) -> Value {
    let Some(report) = reports.newest(rank) else { return Value::Null };
    json!({
        "age_seconds": approximate(now.since(report.at)) / 1e9,
        "counts": reports.counting(rank, now).is_some(),
        "running": report.running,
        "waiting": report.waiting,
        "kv_usage": report.kv_permille.map(|permille| f64::from(permille) / 1e3),
        "foreign_requests": report.foreign.requests,
        "foreign_waiting_tokens": report.foreign.waiting_tokens,
        "foreign_held_tokens": report.foreign.held_tokens,
    })
}

/// Name of the health state.
pub(crate) const fn state(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Unknown => "unknown",
        WorkerState::Up | WorkerState::Draining { answers: true, .. } => "up",
        WorkerState::Down | WorkerState::Draining { answers: false, .. } => "down",
        WorkerState::Unused => "unused",
        WorkerState::Gone => "gone",
    }
}
