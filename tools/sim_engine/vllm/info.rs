//! Routes of vLLM with information about the engine, and the reset of its cache.

use super::error::not_found;
use crate::events::kv_publisher::REPLAY_BATCHES_MAX;
use crate::random_id::random_id_64;
use crate::state::EngineState;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

/// `GET /version`: the release that the engine imitates.
pub(super) async fn version(State(state): State<EngineState>) -> Json<Value> {
    Json(json!({ "version": state.config.wire.release() }))
}

/// `GET /load`: requests that run or wait.
pub(super) async fn load(State(state): State<EngineState>) -> Json<Value> {
    let in_flight: usize =
        state.ranks.stats().iter().map(|rank| rank.requests.running + rank.requests.waiting).sum();
    Json(json!({ "server_load": in_flight }))
}

/// `GET /v1/models`: the model that the engine serves.
pub(super) async fn models(State(state): State<EngineState>) -> Json<Value> {
    let name = state.config.model_name();
    let root = state.config.model_dir.as_ref().map(|dir| dir.display().to_string());
    let permission = json!({
        "id": format!("modelperm-{}", random_id_64()), "object": "model_permission",
        "created": state.place.started_s, "allow_create_engine": false, "allow_sampling": true,
        "allow_logprobs": true, "allow_search_indices": false, "allow_view": true,
        "allow_fine_tuning": false, "organization": "*", "group": null, "is_blocking": false,
    });
    Json(json!({ "object": "list", "data": [{
        "id": name, "object": "model", "created": state.place.started_s, "owned_by": "vllm",
        "root": root.as_deref().unwrap_or(name), "parent": null,
        "max_model_len": state.config.model_tokens_max(), "permission": [permission],
    }] }))
}

/// `GET /kv_event_sources`: endpoints of each rank's publisher.
pub(super) async fn kv_event_sources(State(state): State<EngineState>) -> Json<Value> {
    let mut ranks = Map::new();
    for (rank, source) in state.place.kv_sources.iter().enumerate() {
        let entry = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": source.endpoint,
            "replay_endpoint": source.replay_endpoint, "buffer_steps": REPLAY_BATCHES_MAX,
            "hwm": 100_000, "max_queue_size": 100_000, "topic": "",
        });
        ranks.insert(rank.to_string(), entry);
    }
    Json(Value::Object(ranks))
}

/// `POST /reset_prefix_cache`: empties every cache, unless a request uses it.
pub(super) async fn reset_prefix_cache(State(state): State<EngineState>) -> Json<Value> {
    Json(json!({ "success": state.ranks.clear_caches().await }))
}

/// `GET /server_info`, as far as a router reads it. Without `dev_mode` the answer is 404, as in
/// vLLM.
pub(super) async fn server_info(State(state): State<EngineState>) -> Response {
    let config = &state.config;
    if !config.dev_mode {
        return not_found().await;
    }
    Json(json!({
        "vllm_config": {
            "model_config": { "model": config.model_name(),
                "max_model_len": config.model_tokens_max() },
            "cache_config": { "block_size": config.block_size, "num_gpu_blocks": config.kv_blocks },
            "parallel_config": { "data_parallel_size": config.ranks },
            "scheduler_config": { "max_num_seqs": config.concurrency },
        },
        "vllm_env": {},
    }))
    .into_response()
}
