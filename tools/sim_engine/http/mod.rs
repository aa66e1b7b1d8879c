//! HTTP of the simulated engine: what every wire shares, and the shapes of vLLM 0.33 (SGLang's are
//! in `sglang`). Runs on the engine's runtime; holds no state of its own: everything goes to the
//! encode thread and to the ranks' task.

mod answer;
mod asked;
mod begin;
mod encoding;
mod error;
mod fault;
mod generate;
mod halves;
mod held;
mod info;
mod metrics;
mod refused;
mod stall;
mod stream;
mod tokens;

use super::config::EngineWire;
use super::sglang;
use super::state::EngineState;
use super::transfer::{self, RegistryState};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

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
        .route("/version", get(info::version))
        .route("/load", get(info::load))
        .route("/v1/models", get(info::models))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/responses", post(generate::responses))
        .route("/v1/embeddings", post(tokens::embeddings))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/kv_event_sources", get(info::kv_event_sources))
        .route("/reset_prefix_cache", post(info::reset_prefix_cache))
        .route("/server_info", get(info::server_info))
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
}

async fn empty() {}

const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
