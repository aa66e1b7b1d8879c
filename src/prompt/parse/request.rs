//! Facts of a request that routing needs, found in a single scan of its body.

use forebay_base::limits::IMAGE_TEXT_BYTES;
use forebay_fleet::trust::RequestShape;
use forebay_text::chat::{ChatRole, MessageSpan};
use std::ops::Range;

/// Weight of an image, a sound or a file in a prompt: the tokens of an image under the common
/// vision models, as bytes of text.
pub const NOT_TEXT_BYTES: u64 = IMAGE_TEXT_BYTES as u64;

/// The API surface: a variant for each route.
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
    /// `POST /v1/messages/count_tokens` (Anthropic shape)
    CountTokens,
    /// `POST` to any other path of an engine that takes a model
    Other,
    /// `/v1/responses/{id}`, and the paths below it
    StoredResponse,
    /// `GET` of `/v1/realtime` or another path of an engine, to go on by WebSocket
    WebSocket,
    /// `GET /v1/models`, answered by the router
    Models,
    /// `GET /health`, `GET /ping`, answered by the router
    Health,
    /// `GET /version`, answered by the router
    Version,
}

/// JSON shape of error bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiShape {
    /// `{"error":{"message","type","param","code"}}`
    #[default]
    OpenAi,
    /// `{"type":"error","error":{"type","message"}}`
    Anthropic,
}

impl Endpoint {
    /// All endpoints, in the order of declaration.
    pub const ALL: [Self; 17] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Embeddings,
        Self::Responses,
        Self::Messages,
        Self::Rerank,
        Self::Score,
        Self::Generate,
        Self::Tokenize,
        Self::Detokenize,
        Self::CountTokens,
        Self::Other,
        Self::StoredResponse,
        Self::WebSocket,
        Self::Models,
        Self::Health,
        Self::Version,
    ];

    /// Position in [`Endpoint::ALL`], for arrays of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Short name for metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Generate => "generate",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::CountTokens => "count_tokens",
            Self::Other => "other",
            Self::StoredResponse => "stored_response",
            Self::WebSocket => "websocket",
            Self::Models => "models",
            Self::Health => "health",
            Self::Version => "version",
        }
    }

    /// Does the request cost an engine work that back pressure has to limit? Listing models,
    /// counting tokens and reading what is stored do not.
    #[must_use]
    pub const fn is_inference(self) -> bool {
        let is_work = !matches!(
            self,
            Self::Tokenize | Self::Detokenize | Self::CountTokens | Self::StoredResponse
        );
        is_work && !self.is_local()
    }

    /// True if the router answers without a worker, and the request has no body. The list of models
    /// is the exception while health checks are off: the router then asks a worker.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Models | Self::Health | Self::Version)
    }

    /// JSON shape of errors on this endpoint.
    #[must_use]
    pub const fn shape(self) -> ApiShape {
        match self {
            Self::Messages | Self::CountTokens => ApiShape::Anthropic,
            _ => ApiShape::OpenAi,
        }
    }
}

/// Where the prompt stands in the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PromptSource {
    /// None found, or of a shape that is not matched.
    #[default]
    None,
    /// `messages` where every entry is plain; the spans are in [`ApiRequest::messages`]. Also
    /// `input` of `/v1/responses` and `system` plus `messages` of `/v1/messages`, in the order the
    /// engine renders them.
    PlainMessages,
    /// Messages that need the full template (parts, tools, template arguments ...): a chat, and the
    /// bodies of `/v1/messages` and `/v1/responses` that become chats.
    Messages,
    /// A string: the span between the quotes, JSON-escaped if it holds a backslash.
    Text(Range<u32>),
    /// A list of token ids: the span of the array, brackets included.
    TokenIds(Range<u32>),
    /// A list of strings or of id lists: the span of its first element, brackets or quotes
    /// included.
    Batch(Range<u32>),
}

/// Most text members that the scan keeps from a body.
pub(super) const TEXTS_MAX: usize = 16;

/// A member of the body with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextMember {
    /// Span between the quotes of its name.
    pub name: Range<u32>,
    /// Span between the quotes of its value.
    pub value: Range<u32>,
}

/// The scan's result. Each connection reuses its own: `clear` keeps capacity.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    /// Where the body was sent; `None` before the scan.
    pub endpoint: Option<Endpoint>,
    /// Model name, decoded; empty when the body has none.
    pub model: String,
    /// Span of the model name in the body, between the quotes.
    pub model_span: Range<u32>,
    /// The body is a form, and no JSON.
    pub is_form: bool,
    /// The model name that the client sent, if the router replaced it.
    pub requested_model: Option<String>,
    /// True when `"model"` was present as a string.
    pub has_model: bool,
    /// `"stream": true`.
    pub stream: bool,
    /// `max_completion_tokens` if present, else `max_tokens` (`max_output_tokens` of
    /// `/v1/responses`, or `max_new_tokens` inside `sampling_params`).
    pub max_tokens: Option<u32>,
    /// Answers that the engine makes: samples (`n`, `best_of`) of each prompt; at least 1.
    pub answer_count: u32,
    /// Where the prompt is.
    pub prompt: PromptSource,
    /// Plain messages, in order; empty unless `prompt` is [`PromptSource::PlainMessages`].
    pub messages: Vec<MessageSpan>,
    /// `add_generation_prompt`, true when absent.
    pub add_generation_prompt: bool,
    /// `add_special_tokens`; `None` when absent, which means false for chats and true for text.
    pub add_special_tokens: Option<bool>,
    /// Cache namespace: `cache_salt`, then a zero byte and SGLang's `extra_key` if present;
    /// decoded. Empty when absent.
    pub cache_salt: String,
    /// `priority` as a whole number: vLLM's, lower is earlier.
    pub priority: Option<i64>,
    /// LoRA adapter named apart from the model (SGLang's `lora_path`), decoded; empty when absent.
    pub lora: String,
    /// An adapter is named in a form that is not read: a list, or a very long name.
    pub names_other_lora: bool,
    /// The prompt is not all that the engine computes: images, sound or embeddings stand beside it,
    /// an adapter is named that is not read, or a list names several namespaces.
    pub has_more_than_text: bool,
    /// The engine finds nothing of the prompt in its cache, or computes another prompt than the
    /// body shows.
    pub reads_no_cache: bool,
    /// Images, sounds and files that stand in the body itself, as long strings.
    pub media_count: u64,
    /// Bytes of these strings.
    pub media_bytes: u64,
    /// Bytes of images with a name, as they stand in the body.
    pub named_bytes: u64,
    /// `previous_response_id` of `/v1/responses` and of calls below it, where it is text.
    pub previous_response: Option<String>,
    /// The body sets the id under which the engine stores the response.
    pub sets_response_id: bool,
    /// Short texts of members that mean nothing to the scan, as they are written; the first
    /// [`TEXTS_MAX`].
    pub text_members: Vec<TextMember>,
    /// Set by the intake: the shard scanned the body itself, and may render the prompt too.
    pub scanned_on_shard: bool,
    /// Shape of a chat that needs the full template.
    pub rich_shape: RequestShape,
}

impl Default for ApiRequest {
    /// An empty request, as [`ApiRequest::clear`] leaves it.
    fn default() -> Self {
        Self {
            endpoint: None,
            model: String::new(),
            model_span: 0..0,
            is_form: false,
            requested_model: None,
            has_model: false,
            stream: false,
            max_tokens: None,
            answer_count: 1,
            prompt: PromptSource::None,
            messages: Vec::new(),
            add_generation_prompt: true,
            add_special_tokens: None,
            cache_salt: String::new(),
            priority: None,
            lora: String::new(),
            names_other_lora: false,
            has_more_than_text: false,
            reads_no_cache: false,
            media_count: 0,
            media_bytes: 0,
            named_bytes: 0,
            previous_response: None,
            sets_response_id: false,
            text_members: Vec::new(),
            scanned_on_shard: false,
            rich_shape: RequestShape::ChatOther,
        }
    }
}

impl ApiRequest {
    /// Weight of `bytes` of the body as text: each image, sound or file counts as
    /// [`NOT_TEXT_BYTES`].
    #[must_use]
    pub fn text_bytes(&self, bytes: u64) -> u64 {
        let data = self.media_count.saturating_mul(NOT_TEXT_BYTES);
        bytes.saturating_sub(self.media_bytes).saturating_add(data)
    }

    /// Shape of the request, as far as it decides how the engine renders the prompt.
    #[must_use]
    pub fn shape(&self) -> RequestShape {
        let is_system = |message: &MessageSpan| message.role == ChatRole::System;
        match (self.endpoint, &self.prompt) {
            (Some(Endpoint::Messages), _) => RequestShape::Messages,
            (Some(Endpoint::Responses), _) => RequestShape::Responses,
            (_, PromptSource::TokenIds(_)) => RequestShape::TokenIds,
            (_, PromptSource::Text(_) | PromptSource::Batch(_)) => RequestShape::Text,
            (_, PromptSource::Messages) => self.rich_shape,
            (_, PromptSource::PlainMessages) if self.messages.iter().any(is_system) => {
                RequestShape::ChatSystem
            }
            (_, PromptSource::PlainMessages | PromptSource::None) => RequestShape::Chat,
        }
    }

    /// Empties the request; vectors and strings keep their capacity. The pattern has all fields, so
    /// that the compiler names a new field that is not reset.
    pub fn clear(&mut self) {
        let Self {
            endpoint,
            model,
            model_span,
            is_form,
            requested_model,
            has_model,
            stream,
            max_tokens,
            answer_count,
            prompt,
            messages,
            add_generation_prompt,
            add_special_tokens,
            cache_salt,
            priority,
            lora,
            names_other_lora,
            has_more_than_text,
            reads_no_cache,
            media_count,
            media_bytes,
            named_bytes,
            previous_response,
            sets_response_id,
            text_members,
            scanned_on_shard,
            rich_shape,
        } = self;
        *endpoint = None;
        model.clear();
        *model_span = 0..0;
        *is_form = false;
        *requested_model = None;
        *has_model = false;
        *stream = false;
        *max_tokens = None;
        *answer_count = 1;
        *prompt = PromptSource::None;
        messages.clear();
        *add_generation_prompt = true;
        *add_special_tokens = None;
        cache_salt.clear();
        *priority = None;
        lora.clear();
        *names_other_lora = false;
        *has_more_than_text = false;
        *reads_no_cache = false;
        *media_count = 0;
        *media_bytes = 0;
        *named_bytes = 0;
        *previous_response = None;
        *sets_response_id = false;
        text_members.clear();
        *scanned_on_shard = false;
        *rich_shape = RequestShape::ChatOther;
    }
}

#[cfg(test)]
mod tests {
    use super::{ApiRequest, Endpoint};
    use crate::parse::scan;
    use forebay_fleet::trust::RequestShape;

    /// Connections reuse a request: nothing of a body may reach the next.
    #[test]
    fn a_cleared_request_is_a_new_request() {
        let mut request = ApiRequest::default();
        let empty = format!("{request:?}");
        for (endpoint, body) in [
            (
                Endpoint::ChatCompletions,
                r#"{"model":"m","stream":true,"max_tokens":7,"n":3,"priority":-2,"cache_salt":"s",
                "lora_path":"a","add_generation_prompt":false,"add_special_tokens":true,"x":"text",
                "messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}]}"#,
            ),
            (
                Endpoint::Responses,
                r#"{"model":"m","input":"hi","previous_response_id":"r","request_id":"q"}"#,
            ),
            (Endpoint::Completions, r#"{"prompt":["a","b"],"lora_path":["a"],"echo":true}"#),
        ] {
            scan(body.as_bytes(), endpoint, &mut request).unwrap();
            request.requested_model = Some("n".to_owned());
            request.scanned_on_shard = true;
            assert_ne!(format!("{request:?}"), empty);
            request.clear();
            assert_eq!(format!("{request:?}"), empty, "{endpoint:?}");
        }
    }

    #[test]
    fn every_shape_is_told_from_the_others() {
        let chat = |messages: &str, more: &str| format!(r#"{{"messages":[{messages}]{more}}}"#);
        let user = r#"{"role":"user","content":"a"}"#;
        let with = |message: &str| chat(&format!("{user},{message}"), "");
        let tools = r#","tools":[{"type":"function","function":{"name":"f"}}]"#;
        let parts = r#"{"role":"user","content":[{"type":"text","text":"a"}]}"#;
        let chats = Endpoint::ChatCompletions;
        let text = Endpoint::Completions;
        for (endpoint, body, shape) in [
            (chats, chat(user, ""), RequestShape::Chat),
            (chats, with(r#"{"role":"system","content":"b"}"#), RequestShape::ChatSystem),
            (chats, with(r#"{"role":"developer","content":"b"}"#), RequestShape::ChatDeveloper),
            (chats, chat(user, tools), RequestShape::ChatTools),
            (chats, chat(parts, tools), RequestShape::ChatTools),
            (chats, with(r#"{"role":"tool","content":"b"}"#), RequestShape::ChatTools),
            (
                chats,
                with(r#"{"role":"assistant","content":null,"tool_calls":[]}"#),
                RequestShape::ChatTools,
            ),
            (chats, with(parts), RequestShape::ChatParts),
            (chats, with(r#"{"role":"user","content":"b","name":"c"}"#), RequestShape::ChatOther),
            (chats, chat(user, r#","reasoning_effort":"low""#), RequestShape::ChatOther),
            (Endpoint::Messages, chat(user, ""), RequestShape::Messages),
            (Endpoint::Messages, chat(parts, ""), RequestShape::Messages),
            (Endpoint::Responses, r#"{"input":"a"}"#.to_owned(), RequestShape::Responses),
            (text, r#"{"prompt":"a"}"#.to_owned(), RequestShape::Text),
            (text, r#"{"prompt":["a","b"]}"#.to_owned(), RequestShape::Text),
            (text, r#"{"prompt":[1,2]}"#.to_owned(), RequestShape::TokenIds),
        ] {
            let mut request = ApiRequest::default();
            scan(body.as_bytes(), endpoint, &mut request).unwrap();
            assert_eq!(request.shape(), shape, "{body}");
        }
    }

    #[test]
    fn indices_are_positions() {
        for (position, endpoint) in Endpoint::ALL.into_iter().enumerate() {
            assert_eq!(endpoint.index(), position);
        }
    }
}
