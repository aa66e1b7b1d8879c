//! HTTP of the simulated engine, in the shapes of vLLM 0.33. Runs on the engine's runtime; holds no state of its own:
//! everything goes to the encode thread and to the ranks' task.

mod answer;
mod asked;
mod error;
mod generate;
mod held;
mod metrics;
mod stream;
mod tokens;

use super::config::EngineConfig;
use super::encode::EncodeHandle;
use super::kv_publisher::{KvSource, REPLAY_BATCHES_MAX};
use super::ranks::RanksHandle;
use super::tokenizer::Tokenizer;
use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What every route can reach.
#[derive(Clone, Debug)]
pub(super) struct EngineState {
    config: Arc<EngineConfig>,
    kv_sources: Arc<[KvSource]>,
    tokenizer: Arc<Tokenizer>,
    encode: EncodeHandle,
    ranks: RanksHandle,
    started_s: u64,
}

impl EngineState {
    /// Ties the parts of an engine together.
    #[must_use]
    pub(super) fn new(
        config: EngineConfig,
        kv_sources: Vec<KvSource>,
        tokenizer: Arc<Tokenizer>,
        encode: EncodeHandle,
        ranks: RanksHandle,
    ) -> Self {
        Self {
            config: Arc::new(config),
            kv_sources: kv_sources.into(),
            tokenizer,
            encode,
            ranks,
            started_s: unix_time_s(),
        }
    }
}

/// All routes of an engine.
pub(super) fn routes(state: EngineState) -> Router {
    Router::new()
        .route("/health", get(empty))
        .route("/ping", get(empty).post(empty))
        .route("/version", get(version))
        .route("/load", get(load))
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/embeddings", post(tokens::embeddings))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/metrics", get(metrics::metrics))
        .route("/kv_event_sources", get(kv_event_sources))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route("/debug/held", post(held::held))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(state)
}

async fn empty() {}

async fn version() -> Json<Value> {
    Json(json!({ "version": VLLM_VERSION }))
}

async fn load(State(state): State<EngineState>) -> Json<Value> {
    let in_flight: usize = state.ranks.stats().iter().map(|rank| rank.running + rank.waiting).sum();
    Json(json!({ "server_load": in_flight }))
}

async fn models(State(state): State<EngineState>) -> Json<Value> {
    let name = state.config.model_name();
    let root = state.config.model_dir.as_ref().map(|dir| dir.display().to_string());
    let permission = json!({
        "id": format!("modelperm-{}", hex_id()), "object": "model_permission",
        "created": state.started_s, "allow_create_engine": false, "allow_sampling": true,
        "allow_logprobs": true, "allow_search_indices": false, "allow_view": true,
        "allow_fine_tuning": false, "organization": "*", "group": null, "is_blocking": false,
    });
    Json(json!({ "object": "list", "data": [{
        "id": name, "object": "model", "created": state.started_s, "owned_by": "vllm",
        "root": root.as_deref().unwrap_or(name), "parent": null,
        "max_model_len": state.config.model_tokens_max(), "permission": [permission],
    }] }))
}

async fn kv_event_sources(State(state): State<EngineState>) -> Json<Value> {
    let mut ranks = Map::new();
    for (rank, source) in state.kv_sources.iter().enumerate() {
        let entry = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": source.endpoint,
            "replay_endpoint": source.replay_endpoint, "buffer_steps": REPLAY_BATCHES_MAX,
            "hwm": 100_000, "max_queue_size": 100_000, "topic": "",
        });
        ranks.insert(rank.to_string(), entry);
    }
    Json(Value::Object(ranks))
}

async fn reset_prefix_cache(State(state): State<EngineState>) -> Json<Value> {
    Json(json!({ "success": state.ranks.clear_caches().await }))
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "detail": "Not Found" }))).into_response()
}

async fn method_not_allowed() -> Response {
    let body = Json(json!({ "detail": "Method Not Allowed" }));
    (StatusCode::METHOD_NOT_ALLOWED, body).into_response()
}

fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn hex_id() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// The release whose bytes this imitates.
const VLLM_VERSION: &str = "0.33.0";
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
