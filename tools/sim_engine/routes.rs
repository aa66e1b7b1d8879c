//! The routes of an engine: routes of its wire, and routes that every engine has.

use super::config::EngineWire;
use super::debug;
use super::metrics::metrics;
use super::sglang;
use super::state::EngineState;
use super::transfer::{self, RegistryState};
use super::vllm;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::get;

/// Routes of the engine's own port, with the routes of its registry.
pub(super) fn routes(state: EngineState, registry: RegistryState) -> Router {
    let own = match state.config.wire {
        EngineWire::Vllm => vllm::routes(),
        EngineWire::Sglang => sglang::routes(),
    };
    own.route("/metrics", get(metrics))
        .merge(debug::routes())
        .layer(from_fn_with_state(state.clone(), debug::meet_fault))
        .with_state(state)
        .merge(transfer::routes(registry))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// Routes of a registry on a separate port.
pub(super) fn registry_routes(registry: RegistryState) -> Router {
    transfer::routes(registry)
        .route("/health", get(|| async { "OK" }))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
