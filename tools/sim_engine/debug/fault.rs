//! `POST /debug/fault {"at":"mid_body","count":3}`: the next requests for an answer get a fault.
//! Not part of any engine's interface.
//!
//! | field | default | meaning |
//! |---|---|---|
//! | `at` | | the fault: a value of [`FaultAt`], in snake case |
//! | `count` | 1 | requests that get the fault; 0 cancels the plan |
//! | `body_bytes` | 20 | bytes of the body that go out before `mid_body` cuts |
//! | `ms` | 1000 | `connect`: time for which the port is closed |
//!
//! While the port is closed, connections that are open end with their next request.

use crate::config::EngineWire;
use crate::fault::{FaultAt, FaultPlan};
use crate::refusal::EngineRefusal;
use crate::sglang::failed_on_purpose;
use crate::state::EngineState;
use crate::times::TimedRequest;
use crate::vllm::{ApiError, refusal_response};
use crate::wire_cut::ConnectionCutter;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::time::Duration;

#[derive(Debug, Deserialize)]
struct FaultOrder {
    at: FaultAt,
    #[serde(default = "one")]
    count: u64,
    #[serde(default = "body_bytes_default")]
    body_bytes: usize,
    #[serde(default = "ms_default")]
    ms: u64,
}

fn one() -> u64 {
    1
}

fn body_bytes_default() -> usize {
    20
}

fn ms_default() -> u64 {
    1_000
}

/// Replaces the planned fault; answers with the plan.
pub(super) async fn plan(
    State(state): State<EngineState>,
    bytes: Bytes,
) -> Result<Json<FaultPlan>, ApiError> {
    let order: FaultOrder = serde_json::from_slice(&bytes)
        .map_err(|error| ApiError::bad_request(error.to_string(), Some("at")))?;
    if order.at == FaultAt::Connect {
        let deaf = Duration::from_millis(order.ms.min(MS_MAX));
        state.faults.be_deaf(state.clock.now().plus(deaf));
    } else {
        state.faults.plan(order.at, order.count, order.body_bytes);
    }
    Ok(Json(state.faults.current()))
}

/// `GET /debug/fault`: the plan, and the number of requests with a fault so far.
pub(super) async fn planned(State(state): State<EngineState>) -> Json<FaultPlan> {
    Json(state.faults.current())
}

/// Applies the planned fault to requests for an answer.
pub(crate) async fn meet_fault(
    State(state): State<EngineState>,
    ConnectInfo(scissors): ConnectInfo<ConnectionCutter>,
    request: Request,
    next: Next,
) -> Response {
    let is_inference =
        request.method() == Method::POST && INFERENCE.contains(&request.uri().path());
    let met = if is_inference { state.faults.meet(state.clock.now()) } else { None };
    let Some(plan) = met else { return next.run(request).await };
    let is_cut_later = matches!(plan.at, FaultAt::AfterHead | FaultAt::MidBody);
    let mut timed = if is_cut_later { TimedRequest::unwanted() } else { state.times() };
    match plan.at {
        FaultAt::AfterHead | FaultAt::MidBody => {
            scissors.cut(plan);
            next.run(request).await
        }
        FaultAt::Connect | FaultAt::BeforeHead | FaultAt::InHead => {
            timed.ended("fault");
            scissors.cut(plan);
            StatusCode::OK.into_response()
        }
        // Until the client leaves, as its line in the time log shows.
        FaultAt::Hang => std::future::pending().await,
        FaultAt::Error | FaultAt::Refuse => {
            timed.ended("fault");
            answered(&state, request.uri().path(), plan.at)
        }
    }
}

fn answered(state: &EngineState, path: &str, at: FaultAt) -> Response {
    let is_error = at == FaultAt::Error;
    match (state.config.wire, state.config.refusal) {
        (EngineWire::Sglang, EngineRefusal::Vllm | EngineRefusal::Sglang) => {
            failed_on_purpose(path, is_error)
        }
        (EngineWire::Sglang, _) if is_error => failed_on_purpose(path, is_error),
        (EngineWire::Vllm, _) if is_error => ApiError::internal().into_response(),
        (_, refusal) => refusal_response(refusal, false),
    }
}

const INFERENCE: [&str; 3] = ["/generate", "/v1/chat/completions", "/v1/completions"];
const MS_MAX: u64 = 3_600_000;
