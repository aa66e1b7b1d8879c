//! `/v1/chat/completions`, `/v1/completions` and `/v1/responses`: prompt in, ranks' task, answer
//! out.

use super::answer::{OpenAiAnswer, OpenAiApi};
use super::answer_start::{STEPS_AT_ONCE, StartRefusal, begin};
use super::encoding::{encode, prompt_ids};
use super::error::ApiError;
use super::fields::Fields;
use super::legs::{EngineLeg, TransferParams};
use super::refusal_response::refusal_response;
use super::request::OpenAiRequest;
use super::stream::{stream_response, stream_response_later};
use crate::batching::schedule::{LegPart, TokenStep};
use crate::encode::Input;
use crate::state::EngineState;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// `POST /v1/chat/completions`, as JSON or as events.
pub(super) async fn chat(
    State(state): State<EngineState>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let timed = state.times();
    let fields = Fields::of(&headers, &body)?;
    let asked = OpenAiRequest::read(&fields, &headers, &state.config)?;
    let messages = fields.raw("messages").ok_or_else(|| ApiError::missing("messages"))?;
    if !messages.get().starts_with('[') {
        let problem =
            "{'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list'}";
        return Err(ApiError::validation(problem, Some("body.messages".into())));
    }
    // A router that has tokenized the prompt may send the ids.
    let mut transfer = TransferParams::read(&fields)?;
    let prompt = match transfer.prompt_token_ids.take() {
        Some(ids) => ids,
        None => encode(&state, Input::Chat(body.clone())).await?,
    };
    let answer = OpenAiAnswer::new(
        OpenAiApi::Chat,
        asked,
        state.encode.tokenizer().clone(),
        timed,
        state.requests.tally.item(),
    );
    respond(&state, answer, vec![prompt], transfer).await
}

/// Completes a single prompt or several.
pub(super) async fn completions(
    State(state): State<EngineState>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let timed = state.times();
    let fields = Fields::of(&headers, &body)?;
    let asked = OpenAiRequest::read(&fields, &headers, &state.config)?;
    let prompt = fields.get("prompt")?.ok_or_else(|| ApiError::missing("prompt"))?;
    let transfer = TransferParams::read(&fields)?;
    let prompts = prompt_ids(&state, prompt).await?;
    let tokenizer = state.encode.tokenizer().clone();
    let answer = OpenAiAnswer::new(
        OpenAiApi::Completion,
        asked,
        tokenizer,
        timed,
        state.requests.tally.item(),
    );
    respond(&state, answer, prompts, transfer).await
}

/// Answers `/v1/responses`: input and instructions become a chat. vLLM 0.32 ignores all fields with
/// a rank here (`entrypoints/openai/responses/serving.py`).
pub(super) async fn responses(
    State(state): State<EngineState>,
    mut headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let timed = state.times();
    headers.remove("x-data-parallel-rank");
    let fields = Fields::of(&headers, &body)?;
    let mut asked = OpenAiRequest::read(&fields, &headers, &state.config)?;
    asked.output_tokens = fields.get("max_output_tokens")?;
    let chat = json!({ "messages": response_messages(&fields)? }).to_string();
    let prompt = encode(&state, Input::Chat(chat.into())).await?;
    let transfer = TransferParams::read(&fields)?;
    let tokenizer = state.encode.tokenizer().clone();
    let answer = OpenAiAnswer::new(
        OpenAiApi::Responses,
        asked,
        tokenizer,
        timed,
        state.requests.tally.item(),
    );
    respond(&state, answer, vec![prompt], transfer).await
}

fn response_messages(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(text) = fields.get::<String>("instructions")? {
        messages.push(json!({ "role": "system", "content": text }));
    }
    match fields.get("input")?.ok_or_else(|| ApiError::missing("input"))? {
        Value::Array(items) => messages.extend(items),
        text => messages.push(json!({ "role": "user", "content": text })),
    }
    Ok(messages)
}

async fn respond(
    state: &EngineState,
    mut answer: OpenAiAnswer,
    prompts: Vec<Vec<u32>>,
    transfer: TransferParams,
) -> Result<Response, ApiError> {
    let output_tokens = answer.asked.output_tokens.unwrap_or(answer.api.tokens_default());
    for prompt in &prompts {
        check_length(prompt.len(), output_tokens, state.config.model_tokens_max())?;
        check_ids(prompt, state.encode.tokenizer().vocabulary_size())?;
    }
    // Only requests with a single prompt and a single answer are split.
    let half = match prompts.len() == 1 && answer.asked.choice_count == 1 {
        true => transfer.half(state, &answer.full_id()).await?,
        false => EngineLeg::Whole,
    };
    let (part, wanted) = match half {
        EngineLeg::Whole => (LegPart::Whole, None),
        EngineLeg::Give(giving) => {
            answer.gives(giving);
            (LegPart::Prefill, None)
        }
        EngineLeg::Take(wanted) => {
            answer.timed.meets_at(&wanted.key);
            (LegPart::Decode, Some(wanted))
        }
    };
    let stream = answer.asked.form.stream;
    let is_late = wanted.is_some();
    let begin = begin(state.clone(), answer, prompts, output_tokens, part, wanted);
    if stream && is_late {
        // The status is sent before the KV arrives.
        return Ok(stream_response_later(begin));
    }
    match begin.await {
        Ok((answer, steps)) if stream => Ok(stream_response(answer, steps)),
        Ok((answer, steps)) => whole(answer, steps).await,
        Err(StartRefusal::Refused) => Ok(refusal_response(state.config.refusal, stream)),
        Err(StartRefusal::Error(error)) => Err(error),
    }
}

async fn whole(
    mut answer: OpenAiAnswer,
    mut steps: mpsc::UnboundedReceiver<TokenStep>,
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
    answer.hand_over().await;
    let body = answer.whole_body().to_string();
    answer.timed.first_byte();
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
