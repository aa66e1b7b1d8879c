//! A generation request on vLLM's wire, except for its prompt.

use super::error::ApiError;
use super::fields::Fields;
use crate::config::EngineConfig;
use crate::random_id::random_id_64;
use axum::http::HeaderMap;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
    continuous_usage_stats: bool,
}

/// Format of the answer.
#[derive(Debug)]
pub(super) struct OpenAiForm {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) stream: bool,
    /// A stream ends with the usage.
    pub(super) include_usage: bool,
    /// Every chunk of a stream has the usage so far.
    pub(super) continuous_usage: bool,
    pub(super) return_token_ids: bool,
}

/// A parsed generation request, except for its prompt.
#[derive(Debug)]
pub(super) struct OpenAiRequest {
    pub(super) form: OpenAiForm,
    /// Number of answers to each prompt.
    pub(super) choice_count: u32,
    /// `None` is the default length, after which the answer ends by itself.
    pub(super) output_tokens: Option<usize>,
    pub(super) salt: String,
    pub(super) dp_rank: Option<usize>,
}

impl OpenAiRequest {
    /// Reads all fields but the prompt.
    pub(super) fn read(
        fields: &Fields<'_>,
        headers: &HeaderMap,
        config: &EngineConfig,
    ) -> Result<Self, ApiError> {
        let options: StreamOptions = fields.get("stream_options")?.unwrap_or_default();
        let choice_count: i64 = fields.get("n")?.unwrap_or(1);
        let in_range =
            u32::try_from(choice_count).ok().filter(|count| (1..=CHOICES_MAX).contains(count));
        let choice_count = in_range
            .ok_or_else(|| ApiError::out_of_range("n must be 1 to 128", "n", choice_count))?;
        let id = headers.get("x-request-id").and_then(|value| value.to_str().ok());
        let form = OpenAiForm {
            id: id.map_or_else(random_id_64, str::to_owned),
            model: fields.model(config)?,
            stream: fields.get("stream")?.unwrap_or(false),
            include_usage: options.include_usage,
            continuous_usage: options.include_usage && options.continuous_usage_stats,
            return_token_ids: fields.get("return_token_ids")?.unwrap_or(false),
        };
        Ok(Self {
            form,
            choice_count,
            output_tokens: output_tokens(fields)?,
            salt: fields.get("cache_salt")?.unwrap_or_default(),
            dp_rank: dp_rank(headers, config.ranks)?,
        })
    }
}

fn output_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    for name in ["max_completion_tokens", "max_tokens"] {
        if let Some(value) = fields.get::<i64>(name)? {
            let count = usize::try_from(value).ok().filter(|count| *count > 0);
            let problem =
                || ApiError::out_of_range(&format!("{name} must be at least 1"), name, value);
            return count.ok_or_else(problem).map(Some);
        }
    }
    Ok(None)
}

/// Rank that the client pins. Ignores text that is no number, and refuses a rank that does not
/// exist.
fn dp_rank(headers: &HeaderMap, rank_count: u32) -> Result<Option<usize>, ApiError> {
    let value = headers.get("x-data-parallel-rank").and_then(|value| value.to_str().ok());
    let Some(rank) = value.and_then(|value| value.trim().parse::<i64>().ok()) else {
        return Ok(None);
    };
    match u32::try_from(rank) {
        Ok(known) if known < rank_count => Ok(Some(known as usize)),
        _ => {
            let message = format!("data_parallel_rank {rank} is out of range [0, {rank_count}).");
            Err(ApiError::bad_request(message, None))
        }
    }
}

const CHOICES_MAX: u32 = 128;
