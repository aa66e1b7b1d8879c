//! Routes that no real engine has, to test a router's view of caches and its reaction to failures.

mod fault;
mod cached_blocks;
mod stall;

pub(super) use fault::meet_fault;

use super::state::EngineState;
use axum::Router;
use axum::routing::{get, post};

/// All routes below `/debug`.
pub(super) fn routes() -> Router<EngineState> {
    Router::new()
        .route("/debug/held", post(cached_blocks::held))
        .route("/debug/stall", post(stall::stall))
        .route("/debug/fault", get(fault::planned).post(fault::plan))
}
