//! Stage: the prompt as the engine will see it, in bytes. Chat messages go through the model's template, token ids are
//! decoded, text is taken as it is; then the vocabulary aligns the text with what its tokens decode to.
//!
//! Runs on the shard's thread, called by `shard::request` once a request. In steady state it allocates nothing for
//! plain chats and text; bodies that need the template engine cost a parse and some allocations. Must never refuse a
//! request: what it cannot render is routed by load alone.

mod canonical;
mod chat;
mod raw;
mod token_ids;

pub use canonical::{CANONICAL_BYTES_MAX, canonical};

use crate::chat::EngineRules;
use crate::parse::{ApiRequest, NOT_TEXT_BYTES, PromptSource};
use crate::worker::ModelText;
use std::ops::Range;

/// Which way a prompt took to its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rendered {
    /// The template's verified plan.
    Plan,
    /// The template itself.
    Template,
    /// The template itself, up to the first image, sound or other thing that is not text.
    TextPart,
    /// Text or token ids, no template.
    Raw,
    /// Any of these, cut: behind [`PROMPT_BYTES_MATCHED_MAX`](crate::base::limits::PROMPT_BYTES_MATCHED_MAX), or where a
    /// character has more marks than are followed. What is there can be matched, what follows is not known.
    Beginning,
}

impl Rendered {
    /// Length of the whole prompt whose rendered text has that length.
    #[must_use]
    pub fn prompt_bytes(self, request: &ApiRequest, text_bytes: usize) -> u64 {
        let text_bytes = u64::try_from(text_bytes).unwrap_or(u64::MAX);
        match self {
            Self::TextPart => text_bytes.saturating_add(NOT_TEXT_BYTES),
            Self::Beginning => text_bytes.max(sent_bytes(request)),
            Self::Plan | Self::Template | Self::Raw => text_bytes,
        }
    }
}

/// Bytes of the prompt in the body, as it is written there; 0 where they are not known apart from the rest.
fn sent_bytes(request: &ApiRequest) -> u64 {
    let length = |span: &Range<u32>| u64::from(span.end.saturating_sub(span.start));
    match &request.prompt {
        PromptSource::None | PromptSource::Messages => 0,
        PromptSource::PlainMessages => {
            request.messages.iter().map(|message| length(&message.content)).sum()
        }
        PromptSource::Text(span) | PromptSource::TokenIds(span) | PromptSource::Batch(span) => {
            length(span)
        }
    }
}

/// Why a prompt has no text here. The request is served all the same, without a match by prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrenderable {
    /// The body has no prompt, or one of a shape that is not matched.
    #[error("no prompt that can be matched")]
    NoPrompt,
    /// Images, sound or embeddings beside the prompt.
    #[error("the prompt is not text alone")]
    NotText,
    /// Messages for a model without a chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template refused the messages, or they have parts that are not followed.
    #[error("the chat template does not take these messages")]
    Refused,
    /// A token id that the vocabulary does not have.
    #[error("unknown token id")]
    UnknownToken,
    /// More than [`TEMPLATE_BODY_BYTES_MAX`] that would have to go through the template engine.
    #[error("too large for the template engine")]
    TooLarge,
}

impl Unrenderable {
    /// Label for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoPrompt => "no-prompt",
            Self::NotText => "not-text",
            Self::NoTemplate => "no-template",
            Self::Refused => "refused",
            Self::UnknownToken => "unknown-token",
            Self::TooLarge => "too-large",
        }
    }
}

/// Appends the prompt's bytes to `out`. On an error nothing is appended.
///
/// # Errors
/// [`Unrenderable`], which is never the client's business.
pub fn render(
    request: &ApiRequest,
    body: &[u8],
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<Rendered, Unrenderable> {
    if request.has_more_than_text {
        return Err(Unrenderable::NotText);
    }
    let start = out.len();
    let rendered = match &request.prompt {
        PromptSource::None => Err(Unrenderable::NoPrompt),
        PromptSource::PlainMessages => chat::plain(request, body, text, out),
        PromptSource::Messages => chat::full(request, body, text, out),
        PromptSource::Text(span) => {
            Ok(raw::text(slice(body, span), special(request, text, true), text, out))
        }
        PromptSource::TokenIds(span) => token_ids::decode(slice(body, span), &text.vocabulary, out),
        PromptSource::Batch(span) => {
            let special = special(request, text, true);
            first_of_batch(slice(body, span), special, text, out)
        }
    };
    if rendered.is_err() {
        out.truncate(start);
    }
    rendered
}

/// A batch is routed by its first element: engines split it, and such lists tend to share their beginning.
fn first_of_batch(
    element: &[u8],
    special: bool,
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<Rendered, Unrenderable> {
    match element {
        [b'"', inner @ .., b'"'] => Ok(raw::text(inner, special, text, out)),
        [b'[', ..] => token_ids::decode(element, &text.vocabulary, out),
        _ => Err(Unrenderable::NoPrompt),
    }
}

/// Does the engine put its special tokens (BOS) before the prompt? vLLM lets the request say so, SGLang does not.
fn special(request: &ApiRequest, text: &ModelText, default: bool) -> bool {
    match text.rules {
        EngineRules::Vllm => request.add_special_tokens.unwrap_or(default),
        EngineRules::Sglang => default,
    }
}

fn slice<'a>(body: &'a [u8], span: &std::ops::Range<u32>) -> &'a [u8] {
    let (Ok(start), Ok(end)) = (usize::try_from(span.start), usize::try_from(span.end)) else {
        return &[];
    };
    body.get(start..end).unwrap_or_default()
}

/// Largest body that is put through the template engine on a shard, which takes 2 to 5 us a KB (bench `render`): 1 MiB
/// holds the shard up for at most some 5 ms.
pub const TEMPLATE_BODY_BYTES_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests;
