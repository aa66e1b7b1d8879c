//! Encoders that engines use instead of a chat template, for models that were trained with an
//! encoder of their own.

use super::anthropic;
use super::date::utc_now;
use super::encoded_prompt::EncodedPrompt;
use super::error::RenderError;
use super::harmony;
use super::message::{ChatApi, MessageSpan};
use super::mistral::{self, MistralEncoder};
use super::template::parse;
use crate::Vocabulary;

/// An engine's own encoder of chats. Goes before a chat template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatEncoder {
    /// Harmony, the encoder of gpt-oss.
    Harmony,
    /// `mistral_common`, for Mistral's models with `tekken.json`.
    Mistral(MistralEncoder),
    /// SGLang's Harmony, which writes only the prompts of `/v1/responses`. Its text is not known.
    OfResponses,
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
            Self::OfResponses => "a template (responses go by guesses)",
            Self::Unknown => "an unknown encoder (chats go by guesses)",
        }
    }

    /// False if chats are matched by guesses only.
    #[must_use]
    pub fn is_known(&self) -> bool {
        *self != Self::Unknown
    }

    /// Does the encoder write the prompts of an API, and not the template?
    #[must_use]
    pub fn writes(&self, api: ChatApi) -> bool {
        *self != Self::OfResponses || api == ChatApi::Responses
    }

    /// Appends the prompt of plain messages; otherwise returns false and appends nothing. Does not
    /// allocate, except where `out` must grow.
    pub fn render_plain(
        &self,
        messages: &[MessageSpan],
        body: &[u8],
        vocabulary: &Vocabulary,
        out: &mut Vec<u8>,
    ) -> bool {
        let start = out.len();
        let mut prompt = EncodedPrompt::new(out, vocabulary);
        let written = match self {
            Self::Harmony => {
                harmony::write_plain(messages, body, &utc_now(HARMONY_DATE), &mut prompt)
            }
            Self::Mistral(encoder) => mistral::write_plain(encoder, messages, body, &mut prompt),
            Self::OfResponses | Self::Unknown => false,
        };
        let written = prompt.finish().is_ok() && written;
        if !written {
            out.truncate(start);
        }
        written
    }

    /// False where the engine's tokenizer finds special tokens in a text, as in a prompt of
    /// `/v1/completions`.
    #[must_use]
    pub const fn reads_tokens_as_text(&self) -> bool {
        match self {
            // Only chats go through Harmony.
            Self::Harmony | Self::OfResponses => false,
            Self::Mistral(_) | Self::Unknown => true,
        }
    }

    /// The reasoning effort that vLLM finds by trials for requests that disable thinking: `none`
    /// where it gives a prompt of its own.
    fn disabled_effort(&self) -> &'static str {
        match self {
            Self::Mistral(encoder) if encoder.has_effort("none") => "none",
            _ => "low",
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
        vocabulary: &Vocabulary,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let start = out.len();
        let mut body = parse(body)?;
        if api == ChatApi::Messages {
            anthropic::to_chat(&mut body, self.disabled_effort())?;
        }
        let mut prompt = EncodedPrompt::new(out, vocabulary);
        let date = utc_now(HARMONY_DATE);
        let written = match self {
            Self::Harmony => {
                harmony::write_body(api == ChatApi::Responses, &body, &date, &mut prompt)
            }
            Self::Mistral(_) if api == ChatApi::Responses => {
                Err(RenderError::Unsupported("responses of a model of Mistral's"))
            }
            Self::Mistral(encoder) => mistral::write_body(encoder, &body, &mut prompt),
            Self::OfResponses | Self::Unknown => {
                Err(RenderError::Unsupported("the encoder is not known"))
            }
        };
        let written = written.and_then(|()| prompt.finish());
        if written.is_err() {
            out.truncate(start);
        }
        written
    }
}
