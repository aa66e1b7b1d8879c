//! Prompts of gpt-oss as vLLM's Harmony encoder writes them, never the template: a system message
//! with the date and the channels, a developer message with instructions and tools, and the
//! conversation in channels.

mod chat;
mod dialog;
mod responses;
mod schema;
mod turn;

use super::encoded_prompt::EncodedPrompt;
use super::error::RenderError;
use super::message::{ChatRole, MessageSpan};
use dialog::DEFAULT_EFFORT;
use forebay_json::unescape_into;
use serde_json::{Map, Value};
use turn::Speaker;

/// Name of the model in `config.json`.
const MODEL_TYPE: &str = "gpt_oss";
/// Texts of the template that gpt-oss comes with.
const TEMPLATE_TEXTS: [&str; 2] = ["<|start|>", "<|channel|>analysis<|message|>"];

/// Is it gpt-oss, by its `config.json`, or by its template where that has no type?
pub(super) fn is_model(config: &Map<String, Value>, template: Option<&str>) -> bool {
    match config.get("model_type").and_then(Value::as_str) {
        Some(model_type) => model_type == MODEL_TYPE,
        None => template.is_some_and(|text| TEMPLATE_TEXTS.iter().all(|mark| text.contains(mark))),
    }
}

/// Appends the prompt of plain messages; false where the APIs differ: for answers and system
/// messages without text. `out` may have grown then.
pub(super) fn write_plain(
    messages: &[MessageSpan],
    body: &[u8],
    date: &str,
    out: &mut EncodedPrompt<'_>,
) -> bool {
    turn::write_system(date, DEFAULT_EFFORT, false, out);
    for (index, message) in messages.iter().enumerate() {
        let speaker = match message.role {
            ChatRole::System => Speaker::Developer,
            ChatRole::User => Speaker::User,
            ChatRole::Assistant => Speaker::Final,
        };
        let raw = message.raw(body);
        let is_empty_preamble = index == 0 && speaker == Speaker::Developer;
        match raw {
            Some([]) if is_empty_preamble => continue,
            Some(raw) if !raw.is_empty() || speaker == Speaker::User => {
                turn::write_header(speaker, out);
                if message.escaped {
                    unescape_into(raw, out.ordinary());
                } else {
                    out.ordinary().extend_from_slice(raw);
                }
                turn::write_end(speaker, out);
            }
            _ => return false,
        }
    }
    turn::write_answer(out);
    true
}

/// Appends the prompt of a chat, or of a body of `/v1/responses`. On an error, `out` may have
/// grown.
pub(super) fn write_body(
    is_response: bool,
    body: &Map<String, Value>,
    date: &str,
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    match is_response {
        true => responses::write(body, date, out),
        false => chat::write(body, date, out),
    }
}

#[cfg(test)]
mod tests;
