//! HTTP of the simulated engine in the formats of vLLM 0.33. Runs on the engine's runtime, without
//! state of its own: the encode thread and the ranks' task do the work.

mod answer;
mod request;
mod answer_start;
mod encoding;
mod error;
mod fields;
mod generate;
mod legs;
mod info;
mod refusal_response;
mod stream;
mod tokens;

pub(super) use encoding::{encode, prompt_ids};
pub(super) use error::ApiError;
pub(super) use fields::Fields;
pub(super) use refusal_response::refusal_response;

use super::state::EngineState;
use axum::Router;
use axum::routing::{get, post};

/// All routes of an engine of this kind.
pub(super) fn routes() -> Router<EngineState> {
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
