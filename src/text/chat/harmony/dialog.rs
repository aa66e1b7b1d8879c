//! A conversation with its preamble, and the parts of a body that become text.

use super::schema;
use super::turn::{self, DialogTurn};
use crate::chat::encoded_prompt::EncodedPrompt;
use crate::chat::error::RenderError;
use crate::chat::steps::count_read;
use serde_json::Value;
use std::borrow::Cow;

/// The effort of requests that name none.
pub(super) const DEFAULT_EFFORT: &str = "medium";
/// Efforts that the encoder takes.
const EFFORTS: [&str; 3] = ["low", "medium", "high"];

/// A conversation and what stands before it.
pub(super) struct Dialog<'a> {
    pub(super) instructions: Option<Cow<'a, str>>,
    pub(super) effort: &'a str,
    pub(super) tools: Vec<schema::Tool<'a>>,
    pub(super) turns: Vec<DialogTurn<'a>>,
}

impl Dialog<'_> {
    pub(super) fn write(&self, date: &str, out: &mut EncodedPrompt<'_>) -> Result<(), RenderError> {
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
pub(super) fn effort(asked: Option<&Value>) -> Result<&str, RenderError> {
    match asked {
        None | Some(Value::Null) => Ok(DEFAULT_EFFORT),
        Some(effort) => effort
            .as_str()
            .filter(|effort| EFFORTS.contains(effort))
            .ok_or(RenderError::Unsupported("the encoder has no such reasoning effort")),
    }
}

/// Text of a content: the string, or the texts of all parts, which may be strings. `None` where
/// there is no text at all.
pub(super) fn flat_text(content: Option<&Value>) -> Option<Cow<'_, str>> {
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
    count_read(1);
    part.as_str().or_else(|| part.get("text")?.as_str())
}

/// A name in a header. Names with special tokens have another text in the engine.
pub(super) fn header_name(name: Option<&Value>) -> Result<&str, RenderError> {
    name.and_then(Value::as_str)
        .filter(|name| !name.contains("<|"))
        .ok_or(RenderError::Unsupported("a function has no plain name"))
}

pub(super) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The texts of all parts; parts without a text count as empty.
pub(super) fn parts_text(content: Option<&Value>) -> Result<Cow<'_, str>, RenderError> {
    match content {
        None | Some(Value::Null) => Ok(Cow::Borrowed("")),
        Some(Value::String(text)) => Ok(Cow::Borrowed(text)),
        Some(Value::Array(parts)) => {
            let texts: Option<String> = parts.iter().map(text_of_part).collect();
            texts.map(Cow::Owned).ok_or(RenderError::Unsupported("a part is no text"))
        }
        Some(_) => Err(RenderError::Unsupported("a content is no text")),
    }
}

fn text_of_part(part: &Value) -> Option<&str> {
    count_read(1);
    part.as_object()?.get("text").map_or(Some(""), Value::as_str)
}
