//! Result of rendering a prompt, and the thread that may render it.

use crate::parse::{ApiRequest, NOT_TEXT_BYTES, PromptSource};
use forebay_text::chat::RenderError;
use std::ops::Range;

/// How the text of a prompt was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenderMethod {
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
    /// character has more marks than are followed. The text up to the cut can be matched, the rest
    /// is unknown.
    Beginning,
}

impl RenderMethod {
    /// Length of the whole prompt, given the length of its rendered text.
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

/// Bytes of the prompt in the body, raw; 0 where the prompt has no span of its own.
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
    /// The body has no prompt, or a prompt of a shape that is not matched.
    #[error("no prompt that can be matched")]
    NoPrompt,
    /// Images, sound or embeddings beside the prompt.
    #[error("the prompt is not text alone")]
    NotText,
    /// Messages for a model without a chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template refused the messages, or they have parts that the router does not render.
    #[error("the chat template does not take these messages")]
    Refused,
    /// Engines with different frontends serve the model, and see different prompts.
    #[error("the engines of the model render the prompt in different ways")]
    EnginesDiffer,
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
    /// It would take too long on this [`RenderThread`].
    #[error("it takes too long here")]
    NotHere,
}

impl Unrenderable {
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoPrompt => "no-prompt",
            Self::NotText => "not-text",
            Self::NoTemplate => "no-template",
            Self::Refused => "refused",
            Self::EnginesDiffer => "engines-differ",
            Self::UnknownToken => "unknown-token",
            Self::TooLarge => "too-large",
            Self::TooManySteps => "too-many-steps",
            Self::Late => "late",
            Self::NotHere => "not-here",
        }
    }
}

impl From<RenderError> for Unrenderable {
    fn from(error: RenderError) -> Self {
        if error.is_out_of_steps() { Self::TooManySteps } else { Self::Refused }
    }
}

/// Thread that renders a prompt, which limits the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenderThread {
    /// A shard, which must not block: no template engine, little Unicode composition. More work is
    /// [`Unrenderable::NotHere`].
    Shard,
    /// Any other thread, without a limit.
    #[default]
    Offload,
}
