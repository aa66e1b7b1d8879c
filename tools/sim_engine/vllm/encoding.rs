//! Token ids of prompts and inputs.

use super::error::ApiError;
use crate::encode::{EncodeError, Input};
use crate::prompt::EnginePrompt;
use crate::state::EngineState;

/// Token ids of every prompt.
pub(crate) async fn prompt_ids(
    state: &EngineState,
    prompt: EnginePrompt,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let texts = match prompt {
        EnginePrompt::Ids(ids) => return Ok(vec![ids]),
        EnginePrompt::IdLists(lists) => return Ok(lists),
        EnginePrompt::Text(text) => vec![text],
        EnginePrompt::Texts(texts) => texts,
    };
    let mut prompts = Vec::with_capacity(texts.len());
    for text in texts {
        prompts.push(encode(state, Input::Text { text, special: true }).await?);
    }
    Ok(prompts)
}

/// Token ids of an input.
pub(crate) async fn encode(state: &EngineState, input: Input) -> Result<Vec<u32>, ApiError> {
    state.encode.encode(input).await.map_err(|error| match error {
        EncodeError::Stopped => ApiError::stopping(),
        error => ApiError::bad_request(error.to_string(), None),
    })
}
