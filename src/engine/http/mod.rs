//! HTTP of the simulated engine: what every wire shares, and the shapes of vLLM 0.33 (SGLang's are
//! in `sglang`). Runs on the engine's runtime; holds no state of its own: everything goes to the
//! encode thread and to the ranks' task.

mod answer;
mod asked;
mod error;
mod fault;
mod generate;
mod halves;
mod held;
mod metrics;
mod refused;
mod server_info;
mod stall;
mod stream;
mod tally;
mod times;
mod tokens;

pub(super) use generate::EnginePrompt;
pub(super) use tally::EngineTally;
pub(super) use times::{Timed, TimesLog};

use super::config::{EngineConfig, EngineWire};
use super::encode::EncodeHandle;
use super::fault::Faults;
use super::kv_publisher::{KvEndpoints, REPLAY_BATCHES_MAX};
use super::ranks::RanksHandle;
use super::sglang::{self, Aborts};
use super::tokenizer::Tokenizer;
use super::transfer::{self, KvSeeker, RegistryState, TransferTable};
use crate::base::Clock;
use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What every route can reach. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct EngineState {
    pub(super) config: Arc<EngineConfig>,
    pub(super) kv_sources: Arc<[KvEndpoints]>,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) encode: EncodeHandle,
    pub(super) ranks: RanksHandle,
    pub(super) times: Option<TimesLog>,
    pub(super) started_s: u64,
    /// Started with the engine.
    pub(super) clock: Clock,
    /// What is offered to decode engines, and of a decode engine what it waits for.
    pub(super) offers: TransferTable,
    pub(super) seeker: KvSeeker,
    pub(super) aborts: Aborts,
    pub(super) tally: EngineTally,
    pub(super) faults: Faults,
    /// Where requests are taken.
    pub(super) http_port: u16,
    /// Where decode engines ask.
    pub(super) registry_port: u16,
}

impl EngineState {
    /// A request is here, if such are written down.
    pub(super) fn times(&self) -> Option<Timed> {
        self.times.as_ref().map(|times| times.received(self.config.role))
    }
}

/// Routes of the engine's own port, with those of its registry.
pub(super) fn routes(state: EngineState, registry: RegistryState) -> Router {
    let own = match state.config.wire {
        EngineWire::Vllm => vllm_routes(),
        EngineWire::Sglang => sglang::routes(),
    };
    own.route("/metrics", get(metrics::metrics))
        .route("/debug/held", post(held::held))
        .route("/debug/stall", post(stall::stall))
        .route("/debug/fault", get(fault::planned).post(fault::plan))
        .layer(from_fn_with_state(state.clone(), fault::meet))
        .with_state(state)
        .merge(transfer::routes(registry))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// Routes of a registry that has a port of its own.
pub(super) fn registry_routes(registry: RegistryState) -> Router {
    transfer::routes(registry)
        .route("/health", get(|| async { "OK" }))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

fn vllm_routes() -> Router<EngineState> {
    Router::new()
        .route("/health", get(empty))
        .route("/ping", get(empty).post(empty))
        .route("/version", get(version))
        .route("/load", get(load))
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/responses", post(generate::responses))
        .route("/v1/embeddings", post(tokens::embeddings))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/kv_event_sources", get(kv_event_sources))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route("/server_info", get(server_info::server_info))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
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

/// Seconds since 1970.
pub(super) fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn hex_id() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// The release whose bytes this imitates.
const VLLM_VERSION: &str = "0.33.0";
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
