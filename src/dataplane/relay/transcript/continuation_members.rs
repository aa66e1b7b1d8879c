//! Members of a request that a continuation has to repeat. Each member that may change the answer
//! is in a table below. A request with any other member is not continued.

use forebay_json::{Cursor, JsonError};

/// Members that go on as they are: none counts what was computed before.
const COPIED: [&str; 15] = [
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "logit_bias",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "cache_salt",
    "priority",
    "user",
    "stream_options",
];
/// Members that shape the prompt of a chat, which is known as ids.
const OF_PROMPT: [&str; 7] = [
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "parallel_tool_calls",
];
/// Members of OpenAI's own service, which do not change the answer. vLLM 0.32 and SGLang 0.5.23
/// take them and do not read them.
const OF_SERVICE: [&str; 6] = [
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];
/// Members with the values that change nothing.
const NEUTRAL: [(&str, &[&str]); 16] = [
    ("stream", &["true"]),
    ("n", &["1"]),
    ("best_of", &["1"]),
    ("presence_penalty", &["0", "0.0"]),
    ("frequency_penalty", &["0", "0.0"]),
    ("echo", &["false"]),
    ("logprobs", &["false"]),
    ("top_logprobs", &["0"]),
    ("prompt_logprobs", &[]),
    ("suffix", &[]),
    ("stop", &["[]"]),
    ("tools", &["[]"]),
    ("tool_choice", &["\"none\""]),
    ("response_format", &[r#"{"type":"text"}"#, r#"{"type": "text"}"#]),
    ("use_beam_search", &["false"]),
    ("include_stop_str_in_output", &["false"]),
];
/// Bytes of the members that go on.
const COPIED_BYTES_MAX: usize = 4 * 1024;
/// The limit of vLLM 0.32 and SGLang 0.5.23 in `/v1/completions` where the client sets none.
const COMPLETION_TOKENS: u64 = 16;

/// Members that a continuation repeats.
#[derive(Debug, Default)]
pub(super) struct ContinuationMembers {
    pub(super) is_chat: bool,
    /// Members that go on, as they stand in JSON, with a comma behind each.
    pub(super) members: Vec<u8>,
    /// `None` for a chat without a limit: it may fill the context.
    pub(super) tokens_max: Option<u64>,
    pub(super) tokens_min: u64,
    /// The stream ends with the usage.
    pub(super) has_usage: bool,
}

/// Members of a body that limit the length of the answer.
#[derive(Default)]
struct Found {
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    has_seed: bool,
    is_greedy: bool,
    has_prompt: bool,
}

impl ContinuationMembers {
    /// Reads a body. `None`: the body has a member that a continuation could not repeat.
    pub(super) fn read(body: &[u8], is_chat: bool) -> Option<Self> {
        let mut asked = Self { is_chat, ..Self::default() };
        asked.scan(body).ok().flatten()?;
        Some(asked)
    }

    fn scan(&mut self, body: &[u8]) -> Result<Option<()>, JsonError> {
        let mut cursor = Cursor::new(body)?;
        cursor.blanks();
        if cursor.peek() != Some(b'{') {
            return Ok(None);
        }
        cursor.open();
        let mut first = true;
        let mut found = Found::default();
        while let Some(key) = cursor.next_key(&mut first)? {
            let name = cursor.slice(&key.span);
            let is_known = match (name, self.is_chat) {
                ("messages", true) => is_text_alone(&mut cursor)?,
                ("prompt", false) => is_one_prompt(&mut cursor)?,
                _ => {
                    let start = cursor.at();
                    cursor.skip_value(1)?;
                    self.member(name, cursor.slice(&(start..cursor.at())), &mut found)
                }
            };
            found.has_prompt |= matches!(name, "messages" | "prompt");
            if !is_known {
                return Ok(None);
            }
        }
        cursor.end()?;
        Ok(self.limit(&found))
    }

    /// Takes a member; false if the member is unknown.
    fn member(&mut self, name: &str, value: &str, found: &mut Found) -> bool {
        let number = || value.parse::<u64>().ok();
        let is_null = value == "null";
        match name {
            "max_tokens" => found.max_tokens = number(),
            "max_completion_tokens" if self.is_chat => found.max_completion_tokens = number(),
            "min_tokens" => self.tokens_min = number().unwrap_or(0),
            // The state of a seeded generator does not go on.
            "seed" => found.has_seed = !is_null,
            _ if OF_PROMPT.contains(&name) => return self.is_chat,
            _ if OF_SERVICE.contains(&name) => return true,
            _ if COPIED.contains(&name) => return self.copied(name, value, found),
            _ => {
                let neutral = NEUTRAL.iter().find(|(known, _)| *known == name);
                return neutral.is_some_and(|(_, values)| is_null || values.contains(&value));
            }
        }
        is_null || number().is_some() || name == "seed"
    }

    fn copied(&mut self, name: &str, value: &str, found: &mut Found) -> bool {
        if name == "temperature" {
            found.is_greedy = value.parse::<f64>().is_ok_and(|temperature| temperature == 0.0);
        }
        if name == "stream_options" {
            let Some(has_usage) = usage_wanted(value) else { return false };
            self.has_usage = has_usage;
        }
        if self.members.len() + name.len() + value.len() > COPIED_BYTES_MAX {
            return false;
        }
        for part in ["\"", name, "\":", value, ","] {
            self.members.extend_from_slice(part.as_bytes());
        }
        true
    }

    fn limit(&mut self, found: &Found) -> Option<()> {
        let told = found.max_completion_tokens.or(found.max_tokens);
        self.tokens_max = told.or((!self.is_chat).then_some(COMPLETION_TOKENS));
        (found.has_prompt && (found.is_greedy || !found.has_seed)).then_some(())
    }
}

/// Do the options ask for the usage? `None` if they ask for something unknown.
fn usage_wanted(options: &str) -> Option<bool> {
    if options == "null" {
        return Some(false);
    }
    let mut cursor = Cursor::new(options.as_bytes()).ok()?;
    if cursor.peek() != Some(b'{') {
        return None;
    }
    cursor.open();
    let mut first = true;
    let mut wanted = false;
    while let Some(key) = cursor.next_key(&mut first).ok()? {
        let start = cursor.at();
        cursor.skip_value(2).ok()?;
        let is_true = cursor.slice(&(start..cursor.at())) == "true";
        match cursor.slice(&key.span) {
            "include_usage" => wanted = is_true,
            "continuous_usage_stats" => {}
            _ => return None,
        }
    }
    Some(wanted)
}

/// Reads the prompt of a completion: a single string, or a single list of ids.
fn is_one_prompt(cursor: &mut Cursor<'_>) -> Result<bool, JsonError> {
    if cursor.peek() != Some(b'[') {
        let is_text = cursor.peek() == Some(b'"');
        return cursor.skip_value(1).map(|()| is_text);
    }
    cursor.open();
    let mut first = true;
    let mut are_ids = true;
    let mut any = false;
    while cursor.next_element(&mut first)? {
        cursor.skip_ids();
        are_ids &= cursor.peek().is_some_and(|byte| byte.is_ascii_digit());
        any = true;
        cursor.skip_value(2)?;
    }
    Ok(are_ids && any)
}

/// Reads the messages of a chat. Images and sound are no token ids.
fn is_text_alone(cursor: &mut Cursor<'_>) -> Result<bool, JsonError> {
    if cursor.peek() != Some(b'[') {
        return cursor.skip_value(1).map(|()| false);
    }
    cursor.open();
    let mut first = true;
    let mut is_text = true;
    while cursor.next_element(&mut first)? {
        is_text &= is_text_message(cursor)?;
    }
    Ok(is_text)
}

fn is_text_message(cursor: &mut Cursor<'_>) -> Result<bool, JsonError> {
    if cursor.peek() != Some(b'{') {
        return cursor.skip_value(2).map(|()| false);
    }
    cursor.open();
    let mut first = true;
    let mut is_text = true;
    while let Some(key) = cursor.next_key(&mut first)? {
        match cursor.slice(&key.span) {
            "content" if cursor.peek() == Some(b'[') => is_text &= are_text_parts(cursor)?,
            "content" | "role" | "name" | "tool_call_id" => {
                is_text &= matches!(cursor.peek(), Some(b'"' | b'n'));
                cursor.skip_value(3)?;
            }
            "tool_calls" => cursor.skip_value(3)?,
            _ => {
                is_text = false;
                cursor.skip_value(3)?;
            }
        }
    }
    Ok(is_text)
}

fn are_text_parts(cursor: &mut Cursor<'_>) -> Result<bool, JsonError> {
    cursor.open();
    let mut first = true;
    let mut are_text = true;
    while cursor.next_element(&mut first)? {
        if cursor.peek() != Some(b'{') {
            are_text &= cursor.peek() == Some(b'"');
            cursor.skip_value(4)?;
            continue;
        }
        cursor.open();
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            let start = cursor.at();
            cursor.skip_value(5)?;
            let value = cursor.slice(&(start..cursor.at()));
            are_text &= match cursor.slice(&key.span) {
                "type" => value == "\"text\"",
                "text" => value.starts_with('"'),
                _ => false,
            };
        }
    }
    Ok(are_text)
}
