//! What routing needs to know of a request, found in one scan of its body.

use crate::chat::MessageSpan;
use std::ops::Range;

/// The API surface, one variant per route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages` (Anthropic shape)
    Messages,
    /// `POST /v1/rerank`, also `/rerank`, `/v2/rerank`
    Rerank,
    /// `POST /v1/score`, also `/score`
    Score,
    /// `POST /generate` (SGLang)
    Generate,
    /// `POST /tokenize`
    Tokenize,
    /// `POST /detokenize`
    Detokenize,
    /// `GET /v1/models`, answered by the router
    Models,
}

/// Where the prompt stands in the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PromptSource {
    /// None found, or of a shape that is not matched.
    #[default]
    None,
    /// `messages` where every entry is plain; the spans are in [`ApiRequest::messages`].
    PlainMessages,
    /// `messages` (or tools, template arguments) that need the full template.
    Messages,
    /// One string: the span between the quotes, JSON-escaped if it holds a backslash.
    Text(Range<u32>),
    /// One list of token ids: the span of the array, brackets included.
    TokenIds(Range<u32>),
    /// A list of strings or of id lists: the span of its first element, brackets or quotes included.
    Batch(Range<u32>),
}

/// The scan's result. One per connection, reused: `clear` keeps capacity.
#[derive(Clone, Debug, Default)]
pub struct ApiRequest {
    /// Model name, decoded; empty when the body has none.
    pub model: String,
    /// True when `"model"` was present as a string.
    pub has_model: bool,
    /// `"stream": true`.
    pub stream: bool,
    /// `max_completion_tokens` if present, else `max_tokens` (or `max_new_tokens` inside `sampling_params`).
    pub max_tokens: Option<u32>,
    /// Where the prompt is.
    pub prompt: PromptSource,
    /// Plain messages, in order; empty unless `prompt` is [`PromptSource::PlainMessages`].
    pub messages: Vec<MessageSpan>,
    /// `add_generation_prompt`, true when absent.
    pub add_generation_prompt: bool,
    /// LoRA or cache namespace given in the body (`cache_salt`), decoded; empty when absent.
    pub cache_salt: String,
}
