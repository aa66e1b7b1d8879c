//! `/tokenize`, `/detokenize` and `/v1/embeddings`.

use super::encoding::{encode, prompt_ids};
use super::error::ApiError;
use super::fields::Fields;
use crate::encode::Input;
use crate::prompt::EnginePrompt;
use crate::random_id::random_id_64;
use crate::state::EngineState;
use crate::unix_time::unix_time_s;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use twox_hash::XxHash3_64;

/// Token ids of a text or of a chat.
pub(super) async fn tokenize(
    State(state): State<EngineState>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&headers, &body)?;
    fields.model(&state.config)?;
    let input = match fields.get::<String>("prompt")? {
        Some(text) => {
            Input::Text { text, special: fields.get("add_special_tokens")?.unwrap_or(true) }
        }
        None if fields.raw("messages").is_some() => Input::Chat(body.clone()),
        None => return Err(ApiError::missing("prompt")),
    };
    let ids = encode(&state, input).await?;
    let spellings = match fields.get("return_token_strs")? {
        Some(true) => ids.iter().map(|id| state.encode.tokenizer().spelling(*id)).collect(),
        _ => None::<Vec<_>>,
    };
    Ok(Json(json!({
        "count": ids.len(), "max_model_len": state.config.model_tokens_max(), "tokens": ids,
        "token_strs": spellings,
    })))
}

/// Text of token ids.
pub(super) async fn detokenize(
    State(state): State<EngineState>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&headers, &body)?;
    fields.model(&state.config)?;
    let ids: Vec<u32> = fields.get("tokens")?.ok_or_else(|| ApiError::missing("tokens"))?;
    Ok(Json(json!({ "prompt": state.encode.tokenizer().decode(&ids) })))
}

/// A unit vector for each input, equal for equal tokens.
pub(super) async fn embeddings(
    State(state): State<EngineState>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&headers, &body)?;
    let model = fields.model(&state.config)?;
    let input: EnginePrompt = fields.get("input")?.ok_or_else(|| ApiError::missing("input"))?;
    let inputs = prompt_ids(&state, input).await?;
    let prompt_tokens: usize = inputs.iter().map(Vec::len).sum();
    let data: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(index, ids)| {
            json!({ "index": index, "object": "embedding", "embedding": embed(ids) })
        })
        .collect();
    Ok(Json(json!({
        "id": format!("embd-{}", random_id_64()), "object": "list",
        "created": unix_time_s(),
        "model": model, "data": data,
        "usage": {
            "prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens, "completion_tokens": 0,
            "prompt_tokens_details": null,
        },
    })))
}

fn embed(ids: &[u32]) -> Vec<f64> {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let mut random = fastrand::Rng::with_seed(XxHash3_64::oneshot_with_seed(0, &bytes));
    let raw: Vec<f64> = (0..DIMENSIONS).map(|_| random.f64() * 2.0 - 1.0).collect();
    let length = raw.iter().map(|value| value * value).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    raw.into_iter().map(|value| value / length).collect()
}

const DIMENSIONS: usize = 32;
