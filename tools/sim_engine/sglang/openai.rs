//! `POST /v1/chat/completions` and `POST /v1/completions` of SGLang.

use super::body::{OneOrList, SglangBody};
use super::error::{ErrorShape, Failure};
use super::flow;
use super::request::{ANSWERS_MAX, SglangApi, SglangForm, SglangRequest, encode};
use super::rooms::{HeadRules, Routing};
use crate::encode::Input;
use crate::prompt::EnginePrompt;
use crate::state::EngineState;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SglangStreamOptions {
    include_usage: bool,
}

/// `POST /v1/chat/completions`, as JSON or as events.
pub(super) async fn chat(
    State(state): State<EngineState>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let timed = state.times();
    match read_chat(&state, &headers, bytes).await {
        Ok(asked) => flow::answer(&state, asked, timed).await,
        Err(failure) => failure.response(ErrorShape::Openai),
    }
}

/// Completes a single prompt or several.
pub(super) async fn completions(
    State(state): State<EngineState>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let timed = state.times();
    match read_completion(&state, &headers, &bytes).await {
        Ok(asked) => flow::answer(&state, asked, timed).await,
        Err(failure) => failure.response(ErrorShape::Openai),
    }
}

async fn read_chat(
    state: &EngineState,
    headers: &HeaderMap,
    bytes: Bytes,
) -> Result<SglangRequest, Failure> {
    let body = SglangBody::read(&bytes, ErrorShape::Openai)?;
    let messages = body.raw("messages").ok_or_else(|| missing("messages"))?;
    if !messages.get().starts_with('[') {
        return Err(Failure::bad_request(
            "Failed to deserialize the JSON body into the target type: messages: expected a sequence",
        ));
    }
    // A router that has tokenized the prompt may send the ids, as to SGLang's Python server.
    let prompt = match body.get("input_ids")? {
        Some(ids) => ids,
        None => encode(state, Input::Chat(bytes.clone())).await?,
    };
    read(state, headers, &body, SglangApi::Chat, OneOrList::One(prompt))
}

async fn read_completion(
    state: &EngineState,
    headers: &HeaderMap,
    bytes: &[u8],
) -> Result<SglangRequest, Failure> {
    let body = SglangBody::read(bytes, ErrorShape::Openai)?;
    let text = |text| Input::Text { text, special: true };
    let prompts = match body.get("prompt")?.ok_or_else(|| missing("prompt"))? {
        EnginePrompt::Ids(ids) => OneOrList::One(ids),
        EnginePrompt::IdLists(lists) => OneOrList::List(lists),
        EnginePrompt::Text(one) => OneOrList::One(encode(state, text(one)).await?),
        EnginePrompt::Texts(list) => {
            let mut prompts = Vec::with_capacity(list.len());
            for one in list {
                prompts.push(encode(state, text(one)).await?);
            }
            OneOrList::List(prompts)
        }
    };
    read(state, headers, &body, SglangApi::Completion, prompts)
}

fn read(
    state: &EngineState,
    headers: &HeaderMap,
    body: &SglangBody<'_>,
    api: SglangApi,
    prompts: OneOrList<Vec<u32>>,
) -> Result<SglangRequest, Failure> {
    let heard = HeadRules { overrides: state.config.header_overrides, rank: true };
    let options: SglangStreamOptions = body.get("stream_options")?.unwrap_or_default();
    let answers = body.get("n")?.unwrap_or(1);
    if !(1..=ANSWERS_MAX).contains(&answers) {
        return Err(Failure::bad_request(format!("n must be 1 to {ANSWERS_MAX}, got {answers}")));
    }
    let mut output_tokens = None;
    for name in ["max_completion_tokens", "max_tokens"] {
        if let (None, Some(asked)) = (output_tokens, body.get::<i64>(name)?) {
            let count = usize::try_from(asked).ok().filter(|count| *count > 0);
            let problem = || Failure::bad_request(format!("{name} must be positive"));
            output_tokens = Some(count.ok_or_else(problem)?);
        }
    }
    Ok(SglangRequest {
        form: SglangForm {
            api,
            // Any model name is served.
            model: body.get("model")?.unwrap_or_else(|| state.config.model_name().to_owned()),
            stream: body.get("stream")?.unwrap_or(false),
            include_usage: options.include_usage,
        },
        prompts,
        answers,
        output_tokens,
        salt: body.get("cache_salt")?.unwrap_or_default(),
        routing: Routing::read(body, headers, heard, state.config.ranks)?,
    })
}

fn missing(field: &str) -> Failure {
    Failure::bad_request(format!(
        "Failed to deserialize the JSON body into the target type: missing field `{field}`"
    ))
}
