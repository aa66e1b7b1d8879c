//! A single pass over a request body: routing facts as spans; everything else is only checked.
//!
//! The last of duplicate keys counts, in any spelling (`"mod\u0065l"`), as in the engines' parsers.

use super::ScanError;
use super::fields::priority;
use super::fields::router_members::OWNED;
use super::lengths::{lengths_of, own_lengths_of};
use super::messages::{MessageList, message_list, message_span};
use super::prompt::{narrow, prompt};
use super::request::{ApiRequest, Endpoint, PromptSource, TEXTS_MAX, TextMember};
use super::transfer;
use forebay_base::limits::{RESPONSE_ID_BYTES_MAX, SCAN_STEPS_MAX};
use forebay_fleet::worker::SESSION_NAME_BYTES_MAX;
use forebay_json::{Cursor, JsonError, Text, flag, present, switch, unescaped};
use forebay_text::chat::{ChatRole, MessageSpan};

/// Longest model name. Longer ones are refused: names go into tables and error messages.
pub const MODEL_BYTES_MAX: usize = 1_024;
/// Longest cache salt that is matched; requests with a longer salt are routed without a prompt.
pub const CACHE_SALT_BYTES_MAX: usize = 1_024;

/// Keys of requests that bypass the prefix cache, or that change the prompt in the body. vLLM 0.32
/// reads no cache for the log probabilities of a prompt, which `echo` in chats implies, and neither
/// does SGLang behind `logprob_start_len`. Any value but `null` counts, 0 too, and `false` for
/// `echo` does not.
const UNMATCHED_KEYS: [&str; 5] =
    ["echo", "logprob_start_len", "prompt_logprobs", "suffix", "truncate_prompt_tokens"];

/// Lengths of all keys that [`ScannedKeys::other`] compares with, a bit each. A key of any other
/// length, as most keys of plain requests, needs no comparison.
const OTHER_LENGTHS: u64 = lengths_of(&OWNED)
    | lengths_of(&TEMPLATE_KEYS)
    | lengths_of(&UNMATCHED_KEYS)
    | lengths_of(&MORE_THAN_TEXT_KEYS)
    | lengths_of(&CONTINUING_KEYS)
    | lengths_of(&[PREVIOUS])
    | lengths_of(&transfer::KEYS)
    | own_lengths_of(&OWN_TEMPLATE_KEYS);

/// Keys that change what the chat template writes. A value of `null` or `false` counts as absent.
const TEMPLATE_KEYS: [&str; 7] = [
    "tools",
    "functions",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "reasoning_effort",
];

/// The same for single endpoints: keys that set the reasoning effort. SGLang knows `reasoning` in
/// chats too.
const OWN_TEMPLATE_KEYS: [(Endpoint, &str); 4] = [
    (Endpoint::ChatCompletions, "reasoning"),
    (Endpoint::Messages, "thinking"),
    (Endpoint::Messages, "output_config"),
    (Endpoint::Responses, "reasoning"),
];

/// Keys of input beside the text (SGLang's, then vLLM's). `null` or `false` counts as absent.
const MORE_THAN_TEXT_KEYS: [&str; 6] =
    ["image_data", "video_data", "audio_data", "input_embeds", "prompt_embeds", "multi_modal_data"];

/// Keys of `/v1/responses` that refer to text before the prompt, which the router does not have.
const CONTINUING_KEYS: [&str; 3] = ["conversation", "previous_response", "previous_input_messages"];
/// The same: id of a response that the engine stored.
const PREVIOUS: &str = "previous_response_id";

/// Reads a request body into `request`, which is cleared first.
///
/// Strict: the body is a single UTF-8 JSON object without trailing bytes, at most
/// [`forebay_base::limits::JSON_DEPTH_MAX`] deep. A missing or wrongly typed key is no error here:
/// the caller decides about the model, the engine about the rest.
pub fn scan(body: &[u8], endpoint: Endpoint, request: &mut ApiRequest) -> Result<(), ScanError> {
    read(&mut begin(body, endpoint, request)?, endpoint, request)
}

/// As [`scan`], in at most [`SCAN_STEPS_MAX`] values, keys and escapes; `None` past them.
pub fn scan_briefly(
    body: &[u8],
    endpoint: Endpoint,
    request: &mut ApiRequest,
) -> Option<Result<(), ScanError>> {
    let mut cursor = match begin(body, endpoint, request) {
        Ok(cursor) => cursor,
        Err(error) => return Some(Err(error)),
    };
    cursor.limit_steps(SCAN_STEPS_MAX);
    let scanned = read(&mut cursor, endpoint, request);
    (!cursor.is_out_of_steps()).then_some(scanned)
}

// A cursor is large, and would be copied.
#[inline]
fn begin<'a>(
    body: &'a [u8],
    endpoint: Endpoint,
    request: &mut ApiRequest,
) -> Result<Cursor<'a>, ScanError> {
    request.clear();
    request.endpoint = Some(endpoint);
    Ok(Cursor::new(body)?)
}

fn read(
    cursor: &mut Cursor<'_>,
    endpoint: Endpoint,
    request: &mut ApiRequest,
) -> Result<(), ScanError> {
    cursor.blanks();
    match cursor.peek() {
        None => return Err(JsonError::Empty.into()),
        Some(b'{') => cursor.open(),
        Some(_) => {
            cursor.skip_value(0)?;
            cursor.end()?;
            return Err(ScanError::NotObject);
        }
    }
    let mut found = ScannedKeys::default();
    let mut first = true;
    while let Some(key) = cursor.next_key(&mut first)? {
        let name = cursor.slice(&key.span);
        if key.escaped {
            let name = unescaped(name);
            found.member(&name, endpoint, cursor, request)?;
        } else {
            found.member(name, endpoint, cursor, request)?;
        }
    }
    cursor.end()?;
    request.media_count = cursor.data().count;
    request.media_bytes = cursor.data().bytes;
    found.finish(endpoint, cursor, request)
}

/// A value that is a string, something else, or nothing.
#[derive(Clone, Debug, Default)]
enum Optional {
    #[default]
    Absent,
    Text(Text),
    Other,
}

/// Values read so far. A later key of the same name overwrites its field.
#[derive(Debug, Default)]
struct ScannedKeys {
    model: Optional,
    cache_salt: Optional,
    /// SGLang's namespace beside the salt.
    extra_key: Optional,
    lora_path: Optional,
    /// `system` of `/v1/messages`, `instructions` of `/v1/responses`.
    preamble: Optional,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    /// Answers to each prompt.
    samples: Option<u32>,
    prompt_count: u32,
    is_background: bool,
    list: MessageList,
    prompt: PromptSource,
    /// A single string as `input` of `/v1/responses`.
    input: Option<Text>,
    input_ids: PromptSource,
    /// A flag for each of [`TEMPLATE_KEYS`].
    template_keys: [bool; TEMPLATE_KEYS.len()],
    /// A flag for each of [`OWN_TEMPLATE_KEYS`].
    own_template_keys: [bool; OWN_TEMPLATE_KEYS.len()],
    /// A flag for each of [`CONTINUING_KEYS`].
    continuing_keys: [bool; CONTINUING_KEYS.len()],
    /// The value of [`PREVIOUS`].
    previous: Optional,
    /// A flag for each of [`MORE_THAN_TEXT_KEYS`].
    more_than_text: [bool; MORE_THAN_TEXT_KEYS.len()],
    /// Findings of [`transfer`]. Earlier duplicates of a key count too.
    transfer: transfer::TransferFindings,
    /// A flag for each of [`UNMATCHED_KEYS`].
    unmatched: [bool; UNMATCHED_KEYS.len()],
    /// A flag for each of [`OWNED`].
    owned: [bool; OWNED.len()],
}

impl ScannedKeys {
    /// Reads a member of the top object, from the start of its value to the end.
    fn member(
        &mut self,
        name: &str,
        endpoint: Endpoint,
        cursor: &mut Cursor<'_>,
        request: &mut ApiRequest,
    ) -> Result<(), ScanError> {
        match (name, endpoint) {
            ("model", _) => self.model = optional(cursor)?,
            ("cache_salt", _) => self.cache_salt = optional(cursor)?,
            ("extra_key", _) => self.extra_key = optional(cursor)?,
            ("lora_path", _) => self.lora_path = optional(cursor)?,
            // The engine's own number, which the router cannot resolve.
            ("lora_id", Endpoint::Generate) => request.names_other_lora |= present(cursor)?,
            ("request_id", Endpoint::Responses) => request.sets_response_id |= present(cursor)?,
            ("stream", _) => request.stream = flag(cursor, false)?,
            ("priority", _) => request.priority = priority::of_body(cursor)?,
            ("add_generation_prompt", _) => request.add_generation_prompt = flag(cursor, true)?,
            ("add_special_tokens", _) => request.add_special_tokens = switch(cursor)?,
            ("max_tokens", _) => self.max_tokens = count(cursor)?,
            ("max_completion_tokens", _) | ("max_output_tokens", Endpoint::Responses) => {
                self.max_completion_tokens = count(cursor)?;
            }
            ("sampling_params", Endpoint::Generate) => {
                (self.max_completion_tokens, self.samples) = sampling(cursor)?;
            }
            ("n" | "best_of", _) => self.samples = self.samples.max(count(cursor)?),
            ("background", Endpoint::Responses) => self.is_background = flag(cursor, false)?,
            (
                "messages",
                Endpoint::ChatCompletions
                | Endpoint::Messages
                | Endpoint::Tokenize
                | Endpoint::Embeddings,
            ) => {
                self.list = message_list(cursor, false, &mut request.messages)?;
            }
            ("input", Endpoint::Responses) => self.responses_input(cursor, request)?,
            ("input", Endpoint::Embeddings)
            | ("prompt", Endpoint::Completions | Endpoint::Tokenize)
            | ("text", Endpoint::Generate) => {
                let (source, count) = prompt(cursor)?;
                // Embeddings and token counts produce no answer tokens.
                let is_answered = matches!(endpoint, Endpoint::Completions | Endpoint::Generate);
                self.prompt_count = if is_answered { count } else { 1 };
                self.prompt = source;
            }
            ("input_ids", Endpoint::Generate) => {
                (self.input_ids, self.prompt_count) = prompt(cursor)?;
            }
            ("system", Endpoint::Messages) | ("instructions", Endpoint::Responses) => {
                self.preamble = optional(cursor)?;
            }
            _ => self.other(name, endpoint, cursor, request)?,
        }
        Ok(())
    }

    fn other(
        &mut self,
        name: &str,
        endpoint: Endpoint,
        cursor: &mut Cursor<'_>,
        request: &mut ApiRequest,
    ) -> Result<(), ScanError> {
        if name.len() >= 64 || OTHER_LENGTHS & 1 << name.len() == 0 {
            return unread(cursor, request);
        }
        if transfer::KEYS.contains(&name) {
            return self.transfer.read(name, cursor);
        }
        if let Some((key, flag)) =
            UNMATCHED_KEYS.iter().zip(&mut self.unmatched).find(|(key, _)| **key == name)
        {
            let absent =
                cursor.peek() == Some(b'n') || *key == "echo" && cursor.peek() == Some(b'f');
            *flag = !absent;
            return Ok(cursor.skip_value(1)?);
        }
        if let (PREVIOUS, Endpoint::Responses | Endpoint::Other) = (name, endpoint) {
            self.previous = optional(cursor)?;
            return Ok(());
        }
        let template = TEMPLATE_KEYS.iter().copied().zip(&mut self.template_keys);
        let owned = OWNED.iter().copied().zip(&mut self.owned);
        let own_template = OWN_TEMPLATE_KEYS.iter().zip(&mut self.own_template_keys);
        let own_template = own_template.filter(|((of, _), _)| *of == endpoint);
        let continuing = CONTINUING_KEYS.iter().copied().zip(&mut self.continuing_keys);
        let continuing = continuing.filter(|_| endpoint == Endpoint::Responses);
        let more_than_text = MORE_THAN_TEXT_KEYS.iter().copied().zip(&mut self.more_than_text);
        let mut known = template
            .chain(owned)
            .chain(more_than_text)
            .chain(own_template.map(|((_, key), flag)| (*key, flag)))
            .chain(continuing);
        cursor.count_all_as_data(MORE_THAN_TEXT_KEYS.contains(&name));
        match known.find(|(key, _)| *key == name) {
            Some((_, flag)) => *flag = present(cursor)?,
            None => unread(cursor, request)?,
        }
        cursor.count_all_as_data(false);
        Ok(())
    }

    fn responses_input(
        &mut self,
        cursor: &mut Cursor<'_>,
        request: &mut ApiRequest,
    ) -> Result<(), ScanError> {
        self.input = None;
        if cursor.peek() == Some(b'"') {
            request.messages.clear();
            self.list = MessageList::None;
            self.input = Some(cursor.string()?);
        } else {
            self.list = message_list(cursor, true, &mut request.messages)?;
        }
        Ok(())
    }

    fn finish(
        &mut self,
        endpoint: Endpoint,
        cursor: &Cursor<'_>,
        request: &mut ApiRequest,
    ) -> Result<(), ScanError> {
        if let Some((key, _)) = OWNED.iter().zip(&self.owned).find(|(_, sent)| **sent) {
            return Err(ScanError::Owned { key });
        }
        if let Some(error) = self.transfer.error {
            return Err(error);
        }
        if self.is_background {
            return Err(ScanError::Background);
        }
        if let Optional::Text(model) = &self.model {
            if model.span.len() > MODEL_BYTES_MAX {
                return Err(ScanError::ModelTooLong);
            }
            request.has_model = true;
            request.model_span = narrow(&model.span);
            decode(model, cursor, &mut request.model);
        }
        if let Optional::Text(id) = &self.previous {
            // The router stores no id that is longer.
            let is_short = id.span.len() <= RESPONSE_ID_BYTES_MAX;
            let continues = request.previous_response.insert(String::new());
            if is_short {
                decode(id, cursor, continues);
            }
        }
        request.max_tokens = self.max_completion_tokens.or(self.max_tokens);
        let samples = self.samples.unwrap_or(1).max(1);
        request.answer_count = samples.saturating_mul(self.prompt_count.max(1));
        request.prompt = self.source(endpoint, request);
        // `tools` and `functions`.
        request.rich_shape = self.list.rich_shape(self.template_keys[0] || self.template_keys[1]);
        self.namespace(cursor, request);
        if request.prompt != PromptSource::PlainMessages {
            request.messages.clear();
        }
        request.reads_no_cache = self.transfer.other_prompt || self.unmatched.contains(&true);
        Ok(())
    }

    /// Reads the cache namespace: salt, SGLang's `extra_key`, adapter.
    fn namespace(&self, cursor: &Cursor<'_>, request: &mut ApiRequest) {
        if let Optional::Text(salt) = &self.cache_salt {
            if salt.span.len() <= CACHE_SALT_BYTES_MAX {
                decode(salt, cursor, &mut request.cache_salt);
            } else {
                request.prompt = PromptSource::None;
            }
        }
        if let Optional::Text(key) = &self.extra_key
            && !key.span.is_empty()
        {
            if key.span.len() <= CACHE_SALT_BYTES_MAX {
                // No engine's salt contains a zero byte, so this key matches no salt in KV events.
                request.cache_salt.push('\0');
                decode(key, cursor, &mut request.cache_salt);
            } else {
                request.prompt = PromptSource::None;
            }
        }
        match &self.lora_path {
            Optional::Text(lora) if lora.span.len() <= MODEL_BYTES_MAX => {
                decode(lora, cursor, &mut request.lora);
            }
            other => request.names_other_lora |= !matches!(other, Optional::Absent),
        }
        // Lists of keys or adapters have an entry for each prompt of a batch.
        request.has_more_than_text = self.more_than_text.contains(&true)
            || request.names_other_lora
            || matches!(self.extra_key, Optional::Other);
    }

    fn source(&mut self, endpoint: Endpoint, request: &mut ApiRequest) -> PromptSource {
        match endpoint {
            Endpoint::Generate => match std::mem::take(&mut self.input_ids) {
                PromptSource::None => std::mem::take(&mut self.prompt),
                ids => ids,
            },
            Endpoint::Responses => {
                if let Some(message) =
                    self.input.take().and_then(|text| message_span(ChatRole::User, &text))
                {
                    request.messages.push(message);
                    self.list = MessageList::Plain;
                }
                self.with_preamble(endpoint, &mut request.messages)
            }
            Endpoint::Messages => self.with_preamble(endpoint, &mut request.messages),
            _ => match (std::mem::take(&mut self.prompt), self.list) {
                (PromptSource::None, MessageList::None) => PromptSource::None,
                (PromptSource::None, MessageList::Plain) if !self.needs_template() => {
                    PromptSource::PlainMessages
                }
                (PromptSource::None, _) => PromptSource::Messages,
                (prompt, _) => prompt,
            },
        }
    }

    fn needs_template(&self) -> bool {
        self.template_keys.contains(&true) || self.own_template_keys.contains(&true)
    }

    /// Requests that become chats: messages with an optional preamble.
    fn with_preamble(&self, endpoint: Endpoint, messages: &mut Vec<MessageSpan>) -> PromptSource {
        let continues =
            self.continuing_keys.contains(&true) || !matches!(self.previous, Optional::Absent);
        if self.list == MessageList::None || continues {
            return PromptSource::None;
        }
        let rich = matches!(self.list, MessageList::Rich(_)) || self.needs_template();
        match &self.preamble {
            // Anthropic's preamble may be a list of blocks; instructions are text or an error of
            // the engine's.
            Optional::Other if endpoint != Endpoint::Messages => PromptSource::None,
            Optional::Other => PromptSource::Messages,
            _ if rich => PromptSource::Messages,
            Optional::Absent => PromptSource::PlainMessages,
            // Engines render no message for an empty preamble.
            Optional::Text(text) if text.span.is_empty() => PromptSource::PlainMessages,
            Optional::Text(text) => match message_span(ChatRole::System, text) {
                Some(message) => {
                    messages.insert(0, message);
                    PromptSource::PlainMessages
                }
                None => PromptSource::None,
            },
        }
    }
}

/// Skips a member that the scan does not read. Short text is kept: it may name a session.
fn unread(cursor: &mut Cursor<'_>, request: &mut ApiRequest) -> Result<(), ScanError> {
    let name = cursor.key_span();
    let start = cursor.at();
    let is_text = cursor.peek() == Some(b'"');
    cursor.skip_value(1)?;
    let value = start + 1..cursor.at().saturating_sub(1);
    if is_text && value.len() <= SESSION_NAME_BYTES_MAX && request.text_members.len() < TEXTS_MAX {
        request.text_members.push(TextMember { name: narrow(&name), value: narrow(&value) });
    }
    Ok(())
}

fn decode(text: &Text, cursor: &Cursor<'_>, out: &mut String) {
    let raw = cursor.slice(&text.span);
    if text.escaped { out.push_str(&unescaped(raw)) } else { out.push_str(raw) }
}

fn optional(cursor: &mut Cursor<'_>) -> Result<Optional, ScanError> {
    if cursor.peek() == Some(b'"') {
        return Ok(Optional::Text(cursor.string()?));
    }
    let is_null = cursor.peek() == Some(b'n');
    cursor.skip_value(1)?;
    Ok(if is_null { Optional::Absent } else { Optional::Other })
}

/// A whole number from 0; larger ones than 32 bits saturate.
fn count(cursor: &mut Cursor<'_>) -> Result<Option<u32>, ScanError> {
    if !matches!(cursor.peek(), Some(b'0'..=b'9')) {
        cursor.skip_value(1)?;
        return Ok(None);
    }
    let digits = cursor.number()?;
    Ok(digits.map(|digits| cursor.slice(&digits).parse().unwrap_or(u32::MAX)))
}

/// `max_new_tokens` and `n` of `/generate`'s sampling parameters.
fn sampling(cursor: &mut Cursor<'_>) -> Result<(Option<u32>, Option<u32>), ScanError> {
    let mut tokens = None;
    let mut samples = None;
    if cursor.peek() != Some(b'{') {
        cursor.skip_value(1)?;
        return Ok((tokens, samples));
    }
    cursor.open();
    let mut first = true;
    while let Some(key) = cursor.next_key(&mut first)? {
        match cursor.slice(&key.span) {
            "max_new_tokens" => tokens = count(cursor)?,
            "n" => samples = count(cursor)?,
            _ => cursor.skip_value(2)?,
        }
    }
    Ok((tokens, samples))
}

#[cfg(test)]
mod tests;
