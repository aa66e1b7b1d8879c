//! Routes of a prefill engine's registry: SGLang's bootstrap server, vLLM's Mooncake registry, and
//! the question for KV that stands in for the transfer itself. On the engine's own port, or on a
//! separate port.

use super::offers::TransferTable;
use super::question::{ASK_TIME_MAX, TAKE_PATH, TransferQuestion, WireAnswer};
use crate::config::EngineConfig;
use axum::Json;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use forebay_base::Clock;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// State of the routes. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RegistryState {
    config: Arc<EngineConfig>,
    offers: TransferTable,
    clock: Clock,
    http_port: u16,
    /// Ranks that were registered for single rooms, newest last; at most `ROOM_RANKS_MAX`.
    room_ranks: Arc<watch::Sender<VecDeque<(i64, u64)>>>,
}

impl RegistryState {
    /// State for an engine with HTTP on `http_port`; `clock` started with the engine.
    pub(crate) fn new(
        config: Arc<EngineConfig>,
        offers: TransferTable,
        clock: Clock,
        http_port: u16,
    ) -> Self {
        let room_ranks = Arc::new(watch::Sender::new(VecDeque::new()));
        Self { config, offers, clock, http_port, room_ranks }
    }

    fn is_registered(&self) -> bool {
        let up = Duration::from_nanos(self.clock.now().0);
        up >= self.config.transfer.register_after
    }
}

/// The registry's routes, without `/health`, which every port has already.
pub(crate) fn routes(state: RegistryState) -> Router {
    Router::new()
        .route("/route", get(route))
        .route("/register_dp_rank", post(register_dp_rank))
        .route("/query_dp_ranks", post(query_dp_ranks))
        .route("/query", get(query))
        .route(TAKE_PATH, post(take))
        .with_state(state)
}

#[derive(Deserialize)]
struct RouteQuery {
    prefill_dp_rank: Option<i64>,
    prefill_cp_rank: Option<i64>,
    target_tp_rank: Option<i64>,
    target_pp_rank: Option<i64>,
}

async fn route(State(state): State<RegistryState>, Query(asked): Query<RouteQuery>) -> Response {
    let asked =
        [asked.prefill_dp_rank, asked.prefill_cp_rank, asked.target_tp_rank, asked.target_pp_rank];
    let [Some(dp_rank), Some(cp_rank), Some(tp_rank), Some(pp_rank)] = asked else {
        let missing = "Missing inputs for bootstrap server.";
        return (StatusCode::BAD_REQUEST, missing).into_response();
    };
    let config = &state.config;
    if !state.is_registered() {
        let message = "Prefill server not fully registered yet (0 workers registered).";
        return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    }
    if [dp_rank, cp_rank, tp_rank, pp_rank] == [-1; 4] {
        return Json(json!({
            "attn_tp_size": 1, "attn_cp_size": 1, "dp_size": config.ranks, "pp_size": 1,
            "page_size": config.block_size, "kv_cache_dtype": "auto", "follow_bootstrap_room": true,
            "enable_dsa_cache_layer_split": false, "prefill_http_port": state.http_port,
        }))
        .into_response();
    }
    if !(0..i64::from(config.ranks)).contains(&dp_rank) {
        let message = format!("Bootstrap info not found for dp_rank={dp_rank}");
        return (StatusCode::NOT_FOUND, message).into_response();
    }
    let ip = config.listen.ip().to_string();
    Json(json!({ "rank_ip": ip, "rank_port": state.http_port })).into_response()
}

#[derive(Deserialize)]
struct RoomRank {
    bootstrap_room: i64,
    dp_rank: u64,
}

async fn register_dp_rank(State(state): State<RegistryState>, Json(asked): Json<RoomRank>) {
    state.room_ranks.send_modify(|known| {
        if known.len() >= ROOM_RANKS_MAX {
            known.pop_front();
        }
        known.push_back((asked.bootstrap_room, asked.dp_rank));
    });
}

#[derive(Deserialize)]
struct TakeRooms {
    bootstrap_rooms: Vec<i64>,
}

async fn query_dp_ranks(
    State(state): State<RegistryState>,
    Json(asked): Json<TakeRooms>,
) -> Json<Value> {
    let known = state.room_ranks.borrow();
    let mut found = Map::new();
    for room in asked.bootstrap_rooms {
        if let Some((_, rank)) = known.iter().rev().find(|(known, _)| *known == room) {
            found.insert(room.to_string(), (*rank).into());
        }
    }
    Json(found.into())
}

/// The Mooncake connector's registry.
async fn query(State(state): State<RegistryState>) -> Response {
    if !state.is_registered() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let address = format!("{}:{}", state.config.listen.ip(), state.http_port);
    let ranks = (0..state.config.ranks).map(|rank| {
        let engine_id = state.config.transfer.vllm.engine_id_of(rank, state.config.ranks);
        let rank_answer =
            json!({ "engine_id": engine_id, "worker_addr": { "0": { "0": address } } });
        (rank.to_string(), rank_answer)
    });
    Json(Value::Object(ranks.collect())).into_response()
}

async fn take(State(state): State<RegistryState>, Json(asked): Json<TransferQuestion>) -> Response {
    if !state.is_registered() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let config = &state.config;
    let is_own = |id: &String| {
        (0..config.ranks).any(|rank| config.transfer.vllm.engine_id_of(rank, config.ranks) == *id)
    };
    if !asked.engine_id.as_ref().is_none_or(is_own) {
        return Json(WireAnswer::Failed("the engine has another id".into())).into_response();
    }
    let wait = Duration::from_millis(asked.wait_ms).min(ASK_TIME_MAX);
    let answer = match tokio::time::timeout(wait, state.offers.take(asked.key)).await {
        Ok(Ok(taken)) => taken.into(),
        Ok(Err(_)) => WireAnswer::Failed("asked for twice at the same time".into()),
        Err(_) => WireAnswer::NotYet,
    };
    Json(answer).into_response()
}

const ROOM_RANKS_MAX: usize = 10_000;
