//! Encoders that engines use instead of a chat template, for models that were trained with an
//! encoder of their own.

use super::anthropic;
use super::date::utc_now;
use super::error::RenderError;
use super::harmony;
use super::message::MessageSpan;
use super::mistral::{self, MistralEncoder};
use super::template::parse;

/// API that a body was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatApi {
    /// A body of `/v1/chat/completions`.
    Chat,
    /// A body of Anthropic's `/v1/messages`.
    Messages,
    /// A body of `/v1/responses`.
    Responses,
}

/// An engine's own encoder of chats. Goes before a chat template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatEncoder {
    /// Harmony, the encoder of gpt-oss.
    Harmony,
    /// `mistral_common`, for Mistral's models with `tekken.json`.
    Mistral(MistralEncoder),
    /// An encoder with a text that is not known. Chats are matched by guesses only.
    Unknown,
}

/// Format of the date in Harmony's system message.
const HARMONY_DATE: &str = "%Y-%m-%d";

impl ChatEncoder {
    /// A name for the log.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Harmony => "Harmony encoder",
            Self::Mistral(_) => "mistral_common encoder",
            Self::Unknown => "an unknown encoder (chats go by guesses)",
        }
    }

    /// False if chats are matched by guesses only.
    #[must_use]
    pub fn is_known(&self) -> bool {
        *self != Self::Unknown
    }

    /// Appends the prompt of plain messages; otherwise returns false and appends nothing. Does not
    /// allocate, except where `out` must grow.
    pub fn render_plain(&self, messages: &[MessageSpan], body: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Self::Harmony => harmony::write_plain(messages, body, &utc_now(HARMONY_DATE), out),
            Self::Mistral(encoder) => mistral::write_plain(encoder, messages, body, out),
            Self::Unknown => false,
        }
    }

    /// Appends the prompt of a whole body. On an error nothing is appended.
    ///
    /// # Errors
    /// [`RenderError`] when the engine would refuse the body, or write a text that is not known.
    pub fn render_full(
        &self,
        api: ChatApi,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let start = out.len();
        let mut body = parse(body)?;
        if api == ChatApi::Messages {
            if matches!(self, Self::Mistral(_)) && anthropic::thinks_nothing(&body) {
                return Err(RenderError::Unsupported("thinking without a text"));
            }
            anthropic::to_chat(&mut body)?;
        }
        let written = match self {
            Self::Harmony => {
                harmony::write_body(api == ChatApi::Responses, &body, &utc_now(HARMONY_DATE), out)
            }
            Self::Mistral(_) if api == ChatApi::Responses => {
                Err(RenderError::Unsupported("responses of a model of Mistral's"))
            }
            Self::Mistral(encoder) => mistral::write_body(encoder, &body, out),
            Self::Unknown => Err(RenderError::Unsupported("the encoder is not known")),
        };
        if written.is_err() {
            out.truncate(start);
        }
        written
    }
}
