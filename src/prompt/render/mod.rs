//! Stage: the prompt as the engine will see it, in bytes. Chat messages go through the model's
//! template, token ids are decoded, text is taken as it is; then the vocabulary aligns the text
//! with what its tokens decode to.
//!
//! Runs once a request, on the shard's thread where that takes little ([`Place::Shard`]), else on
//! its offload thread. In steady state it allocates nothing for plain chats and text on a shard.
//! Bodies that need the template engine cost a parse and allocations. Must never refuse a request:
//! what it cannot render is routed by load alone.

mod canonical;
mod chat;
mod raw;
mod token_ids;

pub use canonical::{CANONICAL_BYTES_MAX, canonical};

use crate::parse::{ApiRequest, NOT_TEXT_BYTES, PromptSource};
use forebay_base::limits::INLINE_COMPOSED_BYTES_MAX;
use forebay_fleet::worker::ModelText;
use forebay_text::chat::{EngineRules, RenderError};
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
    /// Any of these, cut: behind
    /// [`PROMPT_BYTES_MATCHED_MAX`](forebay_base::limits::PROMPT_BYTES_MATCHED_MAX), or where a
    /// character has more marks than are followed. What is there can be matched, what follows is
    /// not known.
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

/// Bytes of the prompt in the body, as it is written there; 0 where they are not known apart from
/// the rest.
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
    /// More than `TEMPLATE_BODY_BYTES_MAX` that would have to go through the template engine.
    #[error("too large for the template engine")]
    TooLarge,
    /// The template takes more than `TEMPLATE_STEPS_MAX` steps for these messages.
    #[error("the chat template takes too many steps for these messages")]
    TooManySteps,
    /// The thread that runs templates was too far behind.
    #[error("the thread that renders prompts was busy")]
    Late,
    /// It would take too long at this [`Place`].
    #[error("it takes too long here")]
    NotHere,
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
            Self::TooManySteps => "too-many-steps",
            Self::Late => "late",
            Self::NotHere => "not-here",
        }
    }
}

/// Where a prompt is rendered, which decides what that may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// On a shard, where nothing may take long: no template engine, little composing. What takes
    /// more is [`Unrenderable::NotHere`].
    Shard,
    /// Anywhere else.
    #[default]
    Offload,
}

/// Appends the prompt's bytes to `out`, however long that takes. On an error nothing is appended.
///
/// # Errors
/// [`Unrenderable`], which is never the client's business.
pub fn render(
    request: &ApiRequest,
    body: &[u8],
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<Rendered, Unrenderable> {
    render_at(Place::Offload, request, body, text, out)
}

/// The same within what may be done at a place.
///
/// # Errors
/// [`Unrenderable`], which is never the client's business.
pub fn render_at(
    place: Place,
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
        PromptSource::PlainMessages => chat::plain(place, request, body, text, out),
        PromptSource::Messages => chat::full(place, request, body, text, out),
        PromptSource::Text(span) => {
            raw::text(place, slice(body, span), special(request, text, true), text, out)
        }
        PromptSource::TokenIds(span) => {
            token_ids::decode(place, slice(body, span), &text.vocabulary, out)
        }
        PromptSource::Batch(span) => {
            let special = special(request, text, true);
            first_of_batch(place, slice(body, span), special, text, out)
        }
    };
    if rendered.is_err() {
        out.truncate(start);
    }
    rendered
}

/// A batch is routed by its first element: engines split it, and such lists tend to share their
/// beginning.
fn first_of_batch(
    place: Place,
    element: &[u8],
    special: bool,
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<Rendered, Unrenderable> {
    match element {
        [b'"', inner @ .., b'"'] => raw::text(place, inner, special, text, out),
        [b'[', ..] => token_ids::decode(place, element, &text.vocabulary, out),
        _ => Err(Unrenderable::NoPrompt),
    }
}

/// Does the engine put its special tokens (BOS) before the prompt? vLLM lets the request say so,
/// SGLang does not.
fn special(request: &ApiRequest, text: &ModelText, default: bool) -> bool {
    match text.rules {
        EngineRules::Vllm => request.add_special_tokens.unwrap_or(default),
        EngineRules::Sglang => default,
    }
}

impl From<RenderError> for Unrenderable {
    fn from(error: RenderError) -> Self {
        if error.is_out_of_steps() { Self::TooManySteps } else { Self::Refused }
    }
}

fn slice<'a>(body: &'a [u8], span: &std::ops::Range<u32>) -> &'a [u8] {
    let (Ok(start), Ok(end)) = (usize::try_from(span.start), usize::try_from(span.end)) else {
        return &[];
    };
    body.get(start..end).unwrap_or_default()
}

/// Brings `out[start..]` to what its tokens decode to. False when the text now ends early.
fn align(
    place: Place,
    text: &ModelText,
    out: &mut Vec<u8>,
    start: usize,
) -> Result<bool, Unrenderable> {
    let written = out.get(start..).unwrap_or_default();
    if place == Place::Shard
        && written.len() > INLINE_COMPOSED_BYTES_MAX
        && text.vocabulary.would_compose(written)
    {
        return Err(Unrenderable::NotHere);
    }
    Ok(text.vocabulary.align(out, start))
}

#[cfg(test)]
mod tests;
