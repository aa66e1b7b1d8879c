//! `POST /debug/stall?ms=500`: stalls the ranks for a while, like an engine that hangs. Requests
//! are still accepted and `/health` still answers. `ms=0` ends a stall. Not part of any engine's
//! interface.

use crate::state::EngineState;
use crate::vllm::ApiError;
use axum::extract::{Query, State};
use serde::Deserialize;
use std::time::Duration;

#[derive(Debug, Deserialize)]
pub(super) struct Stall {
    ms: u64,
}

/// Answers at once; the stall begins before the next token.
pub(super) async fn stall(
    State(state): State<EngineState>,
    Query(asked): Query<Stall>,
) -> Result<(), ApiError> {
    if asked.ms > MS_MAX {
        let value = i64::try_from(asked.ms).unwrap_or(i64::MAX);
        return Err(ApiError::out_of_range("ms must be 0 to 3600000", "ms", value));
    }
    state.ranks.stall(Duration::from_millis(asked.ms)).await;
    Ok(())
}

const MS_MAX: u64 = 3_600_000;
