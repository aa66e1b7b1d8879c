//! `GET /v1/loads`: present load of each rank.

use crate::batching::rank_stats::RankStats;
use crate::state::EngineState;
use crate::unix_time::unix_time_s;
use axum::Json;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
pub(super) struct LoadsQuery {
    dp_rank: Option<usize>,
}

/// Figures of every rank, or of a single rank. Requests that wait for KV count as waiting, as in
/// SGLang; they are reported for rank 0, because their rank is not chosen yet.
pub(super) async fn loads(
    State(state): State<EngineState>,
    Query(asked): Query<LoadsQuery>,
) -> Json<Value> {
    let stats = state.ranks.stats();
    let counts = state.transfer.offers.counts();
    let loads =
        stats.iter().enumerate().filter(|(rank, _)| asked.dp_rank.is_none_or(|only| only == *rank));
    let loads: Vec<_> = loads
        .map(|(rank, stats)| load(&state, rank, stats, if rank == 0 { counts.open } else { 0 }))
        .collect();
    Json(json!({
        "timestamp": unix_time_s(), "version": state.config.wire.release(),
        "accelerator": "simulated", "num_accelerators": 1, "loads": loads,
    }))
}

fn load(state: &EngineState, rank: usize, stats: &RankStats, rooms: usize) -> Value {
    let block = state.config.block_size as usize;
    let used = stats.used_blocks * block;
    let computed = stats.tokens.queried.saturating_sub(stats.tokens.hit);
    json!({
        "dp_rank": rank, "num_running_reqs": stats.requests.running,
        "num_waiting_reqs": stats.requests.waiting + rooms,
        "num_used_tokens": used, "num_total_tokens": used,
        "max_total_num_tokens": stats.capacity_blocks * block,
        "max_running_requests": state.config.concurrency,
        "token_usage": stats.used_blocks as f64 / stats.capacity_blocks.max(1) as f64,
        "gen_throughput": 0.0,
        "cache_hit_rate": stats.tokens.hit as f64 / stats.tokens.queried.max(1) as f64,
        "total_prefill_uncached_tokens": computed,
    })
}
