//! A generation request on SGLang's wire, from any route.

use super::body::OneOrList;
use super::error::{ErrorShape, Failure};
use super::item::SglangItem;
use super::rooms::{Routing, Spread, check_room};
use crate::encode::{EncodeError, Input};
use crate::state::EngineState;
use std::sync::Arc;

/// API of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SglangApi {
    Generate,
    Chat,
    Completion,
}

impl SglangApi {
    /// Format of the API's errors.
    pub(super) fn shape(self) -> ErrorShape {
        match self {
            Self::Generate => ErrorShape::Native,
            Self::Chat | Self::Completion => ErrorShape::Openai,
        }
    }
}

/// Format of the answer.
#[derive(Clone, Debug)]
pub(super) struct SglangForm {
    pub(super) api: SglangApi,
    pub(super) model: String,
    pub(super) stream: bool,
    /// A stream ends with the usage.
    pub(super) include_usage: bool,
}

/// A parsed generation request.
#[derive(Debug)]
pub(super) struct SglangRequest {
    pub(super) form: SglangForm,
    pub(super) prompts: OneOrList<Vec<u32>>,
    /// Number of answers to each prompt.
    pub(super) answers: usize,
    /// `None` is a default length, after which the answer ends by itself.
    pub(super) output_tokens: Option<usize>,
    pub(super) salt: String,
    pub(super) routing: Routing,
}

impl SglangRequest {
    /// The checked items of the request.
    pub(super) fn items(&self, state: &EngineState) -> Result<Vec<SglangItem>, Failure> {
        let prompts = self.prompts.as_slice();
        let answers = self.answers;
        let is_batch = self.prompts.is_list();
        let spread = Spread { prompts: prompts.len(), answers, is_batch };
        self.routing.check(spread)?;
        let output_tokens = self.output_tokens.unwrap_or(match self.form.api {
            SglangApi::Generate => GENERATE_TOKENS_DEFAULT,
            SglangApi::Chat => CHAT_TOKENS_DEFAULT,
            SglangApi::Completion => COMPLETION_TOKENS_DEFAULT,
        });
        let mut items = Vec::with_capacity(prompts.len() * answers);
        for prompt in prompts {
            let output_tokens = checked_length(state, prompt, output_tokens)?;
            let prompt: Arc<[u32]> = prompt.as_slice().into();
            for choice in 0..answers {
                let index = items.len();
                let rid = self.routing.rid(spread, index);
                let room = self.routing.room(index)?;
                check_room(state.config.role, room.as_ref(), &rid)?;
                items.push(SglangItem {
                    rid,
                    room,
                    prompt: prompt.clone(),
                    choice: u32::try_from(choice).unwrap_or(u32::MAX),
                    output_tokens,
                    salt: self.salt.clone(),
                    dp_rank: self.routing.dp_rank,
                    prefill_dp_rank: self.routing.prefill_dp_rank,
                });
            }
        }
        Ok(items)
    }

    /// Id of the room that the legs of the request share, for the time log.
    pub(super) fn room_name(&self) -> Option<String> {
        self.routing.room(0).ok().flatten().map(|room| room.id.to_string())
    }
}

/// Token ids of an input.
pub(super) async fn encode(state: &EngineState, input: Input) -> Result<Vec<u32>, Failure> {
    state.encode.encode(input).await.map_err(|error| match error {
        EncodeError::Stopped => Failure::unavailable("service unavailable"),
        error => Failure::bad_request(error.to_string()),
    })
}

/// Checks a prompt; returns the length of the answer, cut to the context.
fn checked_length(state: &EngineState, prompt: &[u32], output: usize) -> Result<usize, Failure> {
    let prompt_tokens = prompt.len();
    let tokens_max = state.config.model_tokens_max();
    if prompt_tokens == 0 {
        return Err(Failure::bad_request("validation failed: the prompt is empty"));
    }
    if prompt_tokens >= tokens_max {
        return Err(Failure::bad_request(format!(
            "validation failed: The input ({prompt_tokens} tokens) is longer than the model's context length \
             ({tokens_max} tokens)."
        )));
    }
    let vocabulary = state.encode.tokenizer().vocabulary_size();
    if let Some(id) = prompt.iter().find(|id| **id as usize >= vocabulary) {
        return Err(Failure::bad_request(format!(
            "validation failed: token id {id} is out of vocabulary ({vocabulary})"
        )));
    }
    Ok(output.min(tokens_max - prompt_tokens))
}

/// Length of an answer without a limit of the client; it then ends by itself (`stop`).
const GENERATE_TOKENS_DEFAULT: usize = 128;
const CHAT_TOKENS_DEFAULT: usize = 64;
const COMPLETION_TOKENS_DEFAULT: usize = 16;
/// Most answers to a prompt.
pub(super) const ANSWERS_MAX: usize = 128;
