//! HTTP of the simulated engine in the formats of SGLang 0.5.23's Rust server, with its
//! disaggregation by bootstrap rooms. Runs on the engine's runtime. Unlike vLLM, SGLang does not
//! stop at once when a client leaves: each request runs as a separate task until it ends, is
//! aborted by its id, or its client has been gone for a while.

mod abort;
mod answer;
mod request;
mod body;
mod error;
mod flow;
mod generate;
mod info;
mod item;
mod loads;
mod openai;
mod rooms;
mod stream;

pub(super) use error::failed_on_purpose;

use super::state::EngineState;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};

/// All routes of an engine of this kind.
pub(super) fn routes() -> Router<EngineState> {
    Router::new()
        .route("/health", get(empty))
        .route("/health_generate", get(empty))
        .route("/v1/models", get(info::models))
        .route("/model_info", get(info::model_info))
        .route("/server_info", get(info::server_info))
        .route("/v1/loads", get(loads::loads))
        .route("/generate", post(generate::generate))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/completions", post(openai::completions))
        .route("/tokenize", post(info::tokenize))
        .route("/v1/tokenize", post(info::tokenize))
        .route("/abort_request", post(abort::abort_request))
        .route("/flush_cache", get(info::flush_cache).post(info::flush_cache))
        .fallback(not_found)
}

async fn empty() {}

async fn not_found() -> StatusCode {
    StatusCode::NOT_FOUND
}
