//! `GET /server_info`, which vLLM answers in development mode only.

use super::EngineState;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// What a router reads of it; 404 without `dev_mode`.
pub(super) async fn server_info(State(state): State<EngineState>) -> Response {
    let config = &state.config;
    if !config.dev_mode {
        return super::not_found().await;
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
