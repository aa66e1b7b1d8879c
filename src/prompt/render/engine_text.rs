//! Text as the engine reads it: parts of the body, special tokens, what its tokens decode to.

use super::rendered::{RenderThread, Unrenderable};
use crate::parse::ApiRequest;
use forebay_base::limits::INLINE_COMPOSED_BYTES_MAX;
use forebay_fleet::worker::ModelText;
use forebay_text::chat::EngineRules;

/// Does the engine put its special tokens (BOS) before the prompt? vLLM lets the request decide,
/// SGLang does not.
pub(super) fn special(request: &ApiRequest, text: &ModelText, default: bool) -> bool {
    match text.rules {
        EngineRules::Vllm | EngineRules::VllmRust => request.add_special_tokens.unwrap_or(default),
        EngineRules::Sglang | EngineRules::SglangRust => default,
    }
}

pub(super) fn slice<'a>(body: &'a [u8], span: &std::ops::Range<u32>) -> &'a [u8] {
    let (Ok(start), Ok(end)) = (usize::try_from(span.start), usize::try_from(span.end)) else {
        return &[];
    };
    body.get(start..end).unwrap_or_default()
}

/// Brings `out[start..]` to what its tokens decode to. False when the text now ends early.
pub(super) fn align(
    place: RenderThread,
    text: &ModelText,
    out: &mut Vec<u8>,
    start: usize,
) -> Result<bool, Unrenderable> {
    let written = out.get(start..).unwrap_or_default();
    if place == RenderThread::Shard
        && written.len() > INLINE_COMPOSED_BYTES_MAX
        && text.vocabulary.would_compose(written)
    {
        return Err(Unrenderable::NotHere);
    }
    Ok(text.vocabulary.align(out, start))
}
