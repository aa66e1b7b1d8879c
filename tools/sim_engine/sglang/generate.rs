//! `POST /generate`: SGLang's own route. Text or token ids, a single prompt or several.

use super::body::{OneOrList, SglangBody};
use super::error::{ErrorShape, Failure};
use super::flow;
use super::request::{ANSWERS_MAX, SglangApi, SglangForm, SglangRequest, encode};
use super::rooms::{HeadRules, Routing};
use crate::encode::Input;
use crate::state::EngineState;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;

/// Sampling parameters that matter here; unknown parameters are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Sampling {
    max_new_tokens: Option<usize>,
    n: Option<usize>,
}

/// Answers a single prompt or several.
pub(super) async fn generate(
    State(state): State<EngineState>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let timed = state.times();
    match read(&state, &headers, &bytes).await {
        Ok(asked) => flow::answer(&state, asked, timed).await,
        Err(failure) => failure.response(ErrorShape::Native),
    }
}

async fn read(
    state: &EngineState,
    headers: &HeaderMap,
    bytes: &[u8],
) -> Result<SglangRequest, Failure> {
    let body = SglangBody::read(bytes, ErrorShape::Native)?;
    let heard = HeadRules { overrides: state.config.header_overrides, rank: false };
    let routing = Routing::read(&body, headers, heard, state.config.ranks)?;
    let sampling = match body.get::<OneOrList<Sampling>>("sampling_params")? {
        None => Sampling::default(),
        Some(OneOrList::One(one)) => one,
        Some(OneOrList::List(list)) => list.into_iter().next().unwrap_or_default(),
    };
    let answers = sampling.n.unwrap_or(1);
    if !(1..=ANSWERS_MAX).contains(&answers) {
        return Err(Failure::bad_request(format!(
            "validation failed: n must be 1 to 128, got {answers}"
        )));
    }
    let prompts = prompts(state, &body).await?;
    Ok(SglangRequest {
        form: SglangForm {
            api: SglangApi::Generate,
            model: state.config.model_name().to_owned(),
            stream: body.get("stream")?.unwrap_or(false),
            include_usage: false,
        },
        prompts,
        answers,
        output_tokens: sampling.max_new_tokens,
        salt: body.get("cache_salt")?.unwrap_or_default(),
        routing,
    })
}

async fn prompts(
    state: &EngineState,
    body: &SglangBody<'_>,
) -> Result<OneOrList<Vec<u32>>, Failure> {
    if let Some(ids) = body.get::<OneOrList<u32>>("input_ids").ok().flatten() {
        return Ok(match ids {
            OneOrList::One(id) => OneOrList::One(vec![id]),
            OneOrList::List(ids) => OneOrList::One(ids),
        });
    }
    if let Some(lists) = body.get::<Vec<Vec<u32>>>("input_ids")? {
        return Ok(OneOrList::List(lists));
    }
    let text = |text| Input::Text { text, special: true };
    match body.texts("text")? {
        Some(OneOrList::One(one)) => Ok(OneOrList::One(encode(state, text(one)).await?)),
        Some(OneOrList::List(list)) => {
            let mut prompts = Vec::with_capacity(list.len());
            for one in list {
                prompts.push(encode(state, text(one)).await?);
            }
            Ok(OneOrList::List(prompts))
        }
        None => Err(Failure::bad_request(
            "validation failed: Either text, input_ids or input_embeds should be provided.",
        )),
    }
}
