//! `POST /debug/fault {"at":"mid_body","count":3}`: the next requests for an answer meet a fault.
//! Not part of any engine's interface.
//!
//! | field | default | meaning |
//! |---|---|---|
//! | `at` | | the fault: a value of [`FaultAt`], in snake case |
//! | `count` | 1 | requests that meet the fault; 0 ends what was planned |
//! | `body_bytes` | 20 | bytes of the body that go out before `mid_body` cuts |
//! | `ms` | 1000 | `connect`: for so long the port is closed |
//!
//! While the port is closed, connections that are open end with their next request.

use crate::config::EngineWire;
use crate::fault::{FaultAt, FaultPlan};
use crate::refusal::EngineRefusal;
use crate::sglang::failed_on_purpose;
use crate::state::EngineState;
use crate::times::Timed;
use crate::vllm::{ApiError, refusal_response};
use crate::wire_cut::Scissors;
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

/// Plans a fault in place of the one that was planned; answers with the plan.
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

/// `GET /debug/fault`: what is planned, and how many requests met a fault.
pub(super) async fn planned(State(state): State<EngineState>) -> Json<FaultPlan> {
    Json(state.faults.current())
}

/// Lets requests for an answer meet what is planned.
pub(crate) async fn meet_fault(
    State(state): State<EngineState>,
    ConnectInfo(scissors): ConnectInfo<Scissors>,
    request: Request,
    next: Next,
) -> Response {
    let is_inference =
        request.method() == Method::POST && INFERENCE.contains(&request.uri().path());
    let met = if is_inference { state.faults.meet(state.clock.now()) } else { None };
    let Some(plan) = met else { return next.run(request).await };
    let is_cut_later = matches!(plan.at, FaultAt::AfterHead | FaultAt::MidBody);
    let mut timed = if is_cut_later { Timed::unwanted() } else { state.times() };
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
        // Until the client leaves. Its line in the log of times says so.
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
