//! `/v1/chat/completions` and `/v1/completions`: prompt in, ranks' task, answer out.

use super::EngineState;
use super::answer::{Answer, Api, Choice};
use super::asked::{Asked, Fields};
use super::error::ApiError;
use super::stream::stream_response;
use crate::engine::encode::{EncodeError, Input};
use crate::engine::schedule::{Step, Work};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Prompt of `/v1/completions` in its four forms.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KvTransferParams {
    prompt_token_ids: Option<Vec<u32>>,
}

/// Answers a chat.
pub(super) async fn chat(
    State(state): State<EngineState>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let fields = Fields::of(&headers, &body)?;
    let asked = Asked::read(&fields, &headers, &state.config)?;
    let messages = fields.raw("messages").ok_or_else(|| ApiError::missing("messages"))?;
    if !messages.get().starts_with('[') {
        let problem =
            "{'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list'}";
        return Err(ApiError::validation(problem, Some("body.messages".into())));
    }
    // A router that has tokenized already may hand the ids over.
    let transfer: KvTransferParams = fields.get("kv_transfer_params")?.unwrap_or_default();
    let prompt = match transfer.prompt_token_ids {
        Some(ids) => ids,
        None => encode(&state, Input::Chat(body.clone())).await?,
    };
    answer(&state, Api::Chat, asked, vec![prompt]).await
}

/// Completes one prompt or several.
pub(super) async fn completions(
    State(state): State<EngineState>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let fields = Fields::of(&headers, &body)?;
    let asked = Asked::read(&fields, &headers, &state.config)?;
    let prompt = fields.get("prompt")?.ok_or_else(|| ApiError::missing("prompt"))?;
    let prompts = prompt_ids(&state, prompt).await?;
    answer(&state, Api::Completion, asked, prompts).await
}

/// Token ids of every prompt.
pub(super) async fn prompt_ids(
    state: &EngineState,
    prompt: Prompt,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let texts = match prompt {
        Prompt::Ids(ids) => return Ok(vec![ids]),
        Prompt::IdLists(lists) => return Ok(lists),
        Prompt::Text(text) => vec![text],
        Prompt::Texts(texts) => texts,
    };
    let mut prompts = Vec::with_capacity(texts.len());
    for text in texts {
        prompts.push(encode(state, Input::Text { text, special: true }).await?);
    }
    Ok(prompts)
}

/// Token ids of one input.
pub(super) async fn encode(state: &EngineState, input: Input) -> Result<Vec<u32>, ApiError> {
    state.encode.encode(input).await.map_err(|error| match error {
        EncodeError::Stopped => ApiError::stopping(),
        error => ApiError::bad_request(error.to_string(), None),
    })
}

async fn answer(
    state: &EngineState,
    api: Api,
    asked: Asked,
    prompts: Vec<Vec<u32>>,
) -> Result<Response, ApiError> {
    let output_tokens = asked.output_tokens.unwrap_or(match api {
        Api::Chat => CHAT_TOKENS_DEFAULT,
        Api::Completion => COMPLETION_TOKENS_DEFAULT,
    });
    for prompt in &prompts {
        check_length(prompt.len(), output_tokens, state.config.model_tokens_max())?;
        check_ids(prompt, state.tokenizer.vocabulary_size())?;
    }
    let (sink, steps) = mpsc::unbounded_channel();
    let mut answer = Answer::new(api, asked, state.tokenizer.clone());
    for prompt in prompts {
        let prompt: Arc<[u32]> = prompt.into();
        for at in 0..answer.asked.choice_count {
            let work = Work {
                prompt: prompt.to_vec(),
                output: state.tokenizer.answer(&prompt, at, output_tokens),
                salt: answer.asked.salt.clone(),
            };
            let submitted = state.ranks.submit(answer.asked.dp_rank, work, sink.clone()).await;
            let (request, guard) = submitted.ok_or_else(ApiError::stopping)?;
            answer.choices.push(Choice::new(request, guard, prompt.clone(), at == 0));
        }
    }
    drop(sink);
    if answer.asked.stream {
        return Ok(stream_response(answer, steps));
    }
    whole(answer, steps).await
}

async fn whole(
    mut answer: Answer,
    mut steps: mpsc::UnboundedReceiver<Step>,
) -> Result<Response, ApiError> {
    let mut batch = Vec::new();
    while !answer.is_finished() {
        if steps.recv_many(&mut batch, STEPS_AT_ONCE).await == 0 {
            return Err(ApiError::stopping());
        }
        for step in batch.drain(..) {
            answer.take(step);
        }
    }
    let body = answer.whole_body().to_string();
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn check_length(prompt: usize, output: usize, tokens_max: usize) -> Result<(), ApiError> {
    let limit = format!("This model's maximum context length is {tokens_max} tokens.");
    if prompt == 0 {
        return Err(ApiError::bad_request("The prompt is empty.".into(), Some("prompt")));
    }
    if prompt >= tokens_max {
        let message = format!(
            "{limit} However, your prompt contains {prompt} input tokens, which exceeds this limit even without any \
             output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={prompt})"
        );
        return Err(ApiError::bad_request(message, Some("input_tokens")));
    }
    if prompt.saturating_add(output) > tokens_max {
        let message = format!(
            "'max_tokens' or 'max_completion_tokens' is too large: {output}. {limit} Your request has {prompt} input \
             tokens. (parameter=max_tokens, value={output})"
        );
        return Err(ApiError::bad_request(message, Some("max_tokens")));
    }
    Ok(())
}

fn check_ids(prompt: &[u32], vocabulary_size: usize) -> Result<(), ApiError> {
    match prompt.iter().find(|id| **id as usize >= vocabulary_size) {
        Some(id) => {
            let message = format!("Token id {id} is out of vocabulary");
            Err(ApiError::bad_request(message, Some("prompt")))
        }
        None => Ok(()),
    }
}

/// Length of an answer when the client sets none; then it ends by itself (`stop`).
const CHAT_TOKENS_DEFAULT: usize = 64;
const COMPLETION_TOKENS_DEFAULT: usize = 16;
/// Tokens written in one go when several are ready.
pub(super) const STEPS_AT_ONCE: usize = 64;
