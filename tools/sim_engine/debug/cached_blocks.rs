//! `POST /debug/held`: blocks of a prompt in each rank's cache, without computing anything. Not
//! part of any engine's interface, but the truth to compare a router's view with.

use crate::encode::Input;
use crate::prompt::EnginePrompt;
use crate::state::EngineState;
use crate::vllm::{ApiError, Fields, encode, prompt_ids};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};

/// Answers the body of a chat or a completion with the number of leading full blocks of the prompt
/// on each rank.
pub(super) async fn held(
    State(state): State<EngineState>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&headers, &body)?;
    let salt: String = fields.get("cache_salt")?.unwrap_or_default();
    let prompt = if fields.raw("messages").is_some() {
        encode(&state, Input::Chat(body.clone())).await?
    } else {
        let asked: EnginePrompt =
            fields.get("prompt")?.ok_or_else(|| ApiError::missing("prompt"))?;
        let mut prompts = prompt_ids(&state, asked).await?;
        prompts.pop().ok_or_else(|| ApiError::missing("prompt"))?
    };
    let prompt_tokens = prompt.len();
    let blocks = state.ranks.held_blocks(prompt, salt).await;
    Ok(Json(json!({ "prompt_tokens": prompt_tokens, "held_blocks": blocks })))
}
