//! Prompts of gpt-oss as vLLM's Harmony encoder writes them, never the template: a system message
//! with the date and the channels, a developer message with instructions and tools, and the
//! conversation in channels.

mod chat;
mod responses;
mod schema;
mod turn;

use super::error::RenderError;
use super::message::{ChatRole, MessageSpan};
use forebay_json::unescape_into;
use serde_json::{Map, Value};
use std::borrow::Cow;
use turn::{Speaker, Turn};

/// The effort of requests that name none.
const DEFAULT_EFFORT: &str = "medium";
/// Efforts that the encoder takes.
const EFFORTS: [&str; 3] = ["low", "medium", "high"];
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

/// Appends the prompt of plain messages; false, with nothing appended, where the APIs differ: for
/// answers and system messages without text.
pub(super) fn write_plain(
    messages: &[MessageSpan],
    body: &[u8],
    date: &str,
    out: &mut Vec<u8>,
) -> bool {
    let start = out.len();
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
                    unescape_into(raw, out);
                } else {
                    out.extend_from_slice(raw);
                }
                turn::write_end(speaker, out);
            }
            _ => {
                out.truncate(start);
                return false;
            }
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
    out: &mut Vec<u8>,
) -> Result<(), RenderError> {
    match is_response {
        true => responses::write(body, date, out),
        false => chat::write(body, date, out),
    }
}

/// A conversation and what stands before it.
struct Dialog<'a> {
    instructions: Option<Cow<'a, str>>,
    effort: &'a str,
    tools: Vec<schema::Tool<'a>>,
    turns: Vec<Turn<'a>>,
}

impl Dialog<'_> {
    fn write(&self, date: &str, out: &mut Vec<u8>) -> Result<(), RenderError> {
        let has_tools = !self.tools.is_empty();
        turn::write_system(date, self.effort, has_tools, out);
        let instructions = self.instructions.as_deref();
        if has_tools || instructions.is_some_and(|text| !text.is_empty()) {
            let mut tools = schema::SchemaText::default();
            if has_tools {
                schema::write_tools(&self.tools, &mut tools)?;
            }
            turn::write_developer(instructions, tools.as_str(), out);
        }
        turn::write_turns(&self.turns, out);
        Ok(())
    }
}

/// The effort, or the default where the request names none.
fn effort(asked: Option<&Value>) -> Result<&str, RenderError> {
    match asked {
        None | Some(Value::Null) => Ok(DEFAULT_EFFORT),
        Some(effort) => effort
            .as_str()
            .filter(|effort| EFFORTS.contains(effort))
            .ok_or(RenderError::Unsupported("the encoder has no such reasoning effort")),
    }
}

/// Text of a content: the string, or the texts of all parts. `None` where there is no text at all.
fn flat_text(content: Option<&Value>) -> Option<Cow<'_, str>> {
    match content? {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Array(parts) => {
            let mut texts = parts.iter().filter_map(part_text).peekable();
            texts.peek()?;
            Some(Cow::Owned(texts.collect()))
        }
        _ => None,
    }
}

fn part_text(part: &Value) -> Option<&str> {
    part.as_str().or_else(|| part.get("text").and_then(Value::as_str))
}

/// A name in a header. Names with special tokens have another text in the engine.
fn header_name(name: Option<&Value>) -> Result<&str, RenderError> {
    name.and_then(Value::as_str)
        .filter(|name| !name.contains("<|"))
        .ok_or(RenderError::Unsupported("a function has no plain name"))
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests;
