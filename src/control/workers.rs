//! The fleet as JSON, for `GET /workers`: what people ask first when a request went somewhere odd.

use super::feeds::Feeds;
use super::kv_events::FeedStatus;
use crate::base::{RankIndex, WorkerIndex};
use crate::worker::{Dialect, FleetSnapshot, LoadBoard, Rank, WorkerState};
use serde_json::{Value, json};

/// All workers with their ranks, models and load.
pub(super) fn list(fleet: &FleetSnapshot, board: &LoadBoard, feeds: &Feeds) -> Value {
    let workers: Vec<Value> = fleet
        .workers
        .iter()
        .enumerate()
        .filter_map(|(index, worker)| {
            let index = WorkerIndex::try_from_index(index)?;
            Some(json!({
                "name": &*worker.name,
                "address": worker.address.to_string(),
                "engine": engine(worker.dialect),
                "state": state(worker.state),
                "models": models_of(fleet, index),
                "ranks": ranks_of(fleet, index, board, feeds),
            }))
        })
        .collect();
    json!({ "generation": fleet.generation, "workers": workers })
}

fn models_of(fleet: &FleetSnapshot, worker: WorkerIndex) -> Vec<&str> {
    let serves = |ranks: &[RankIndex]| {
        let of_worker = |rank: &RankIndex| {
            fleet.ranks.get(rank.index()).is_some_and(|rank| rank.worker == worker)
        };
        ranks.iter().any(of_worker)
    };
    let served = fleet.models.iter().filter(|model| serves(&model.ranks));
    served.map(|model| &*model.name).collect()
}

fn ranks_of(
    fleet: &FleetSnapshot,
    worker: WorkerIndex,
    board: &LoadBoard,
    feeds: &Feeds,
) -> Vec<Value> {
    let ranks = fleet.ranks.iter().enumerate().filter(|(_, rank)| rank.worker == worker);
    ranks
        .filter_map(|(index, rank)| {
            let index = RankIndex::try_from_index(index)?;
            shown(index, rank, board, feeds.status(index))
        })
        .collect()
}

fn shown(
    index: RankIndex,
    rank: &Rank,
    board: &LoadBoard,
    feed: Option<&FeedStatus>,
) -> Option<Value> {
    let load = board.rank(index)?;
    Some(json!({
        "rank": index.0,
        "dp_rank": rank.dp_rank.0,
        "address": rank.address.to_string(),
        "kv_events": rank.kv_feed_live,
        "kv_feed": feed.map(following),
        "block_size": rank.block_size_tokens,
        "kv_blocks": rank.kv_block_count,
        "concurrency_max": rank.concurrency_max,
        "in_flight": load.in_flight(),
        "prefill_tokens": load.prefill_tokens(),
        "decode_tokens": load.decode_tokens(),
        "failures": load.failures(),
        "breaker_open": load.is_open(),
    }))
}

/// How a rank's event stream is.
fn following(feed: &FeedStatus) -> Value {
    json!({
        "state": feed.state().name(),
        "blocks": feed.blocks(),
        "quiet_s": feed.quiet().map(|quiet| quiet.as_secs()),
        "resets": feed.resets(),
        "connections_lost": feed.losses(),
    })
}

/// The engine's word.
pub(super) fn engine(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Vllm => "vllm",
        Dialect::Sglang => "sglang",
        Dialect::Openai => "openai",
    }
}

/// The word for a state.
pub(super) fn state(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Unknown => "unknown",
        WorkerState::Up => "up",
        WorkerState::Down => "down",
    }
}
