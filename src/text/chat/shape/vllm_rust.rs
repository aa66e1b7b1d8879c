//! Messages in the form that `vllm-rs` (0.33) gives to the template. The frontend reads messages
//! into typed objects and refuses what does not fit, so unknown keys and names are gone.

use super::parts::media_part;
use super::tools::function_tool;
use crate::chat::error::RenderError;
use crate::chat::printing::numbers::{self, NumberDialect};
use crate::chat::rules::ContentFormat;
use serde_json::{Map, Value, json};

/// Names of an assistant message's reasoning.
const REASONING_KEYS: [&str; 3] = ["reasoning", "reasoning_content", "thinking"];

const BAD_CONTENT: RenderError = RenderError::Unsupported("a content that the engine refuses");

/// Shapes a message. `developer` stays a role of its own, for every template.
pub(super) fn message(sent: Value, format: ContentFormat) -> Result<Value, RenderError> {
    let Value::Object(mut sent) = sent else {
        return Err(RenderError::Unsupported("a message is not an object"));
    };
    let Some(Value::String(role)) = sent.remove("role") else {
        return Err(RenderError::Unsupported("a message has no role"));
    };
    let sent_content = sent.remove("content").unwrap_or_default();
    let mut shaped = Map::new();
    shaped.insert("role".into(), Value::String(role.clone()));
    match role.as_str() {
        "assistant" => return assistant(shaped, sent_content, sent, format),
        "function" => return Err(RenderError::Unsupported("the engine has no role `function`")),
        "user" if sent_content == "" => return Err(BAD_CONTENT),
        _ => {}
    }
    shaped.insert("content".into(), content(sent_content, format)?);
    match role.as_str() {
        "tool" => {
            let id = sent.remove("tool_call_id").filter(Value::is_string);
            let id = id.ok_or(RenderError::Unsupported("a result of a tool has no call"))?;
            shaped.insert("tool_call_id".into(), id);
        }
        "developer" => {
            if let Some(Value::Array(tools)) = sent.remove("tools")
                && !tools.is_empty()
            {
                shaped.insert("tools".into(), tools.into_iter().map(function_tool).collect());
            }
        }
        _ => {}
    }
    Ok(Value::Object(shaped))
}

/// Shapes a string or a list of parts; texts of a list follow each other without a separator.
pub(super) fn content(sent: Value, format: ContentFormat) -> Result<Value, RenderError> {
    let parts = match sent {
        Value::String(text) => return Ok(text_content(text, format)),
        Value::Array(parts) if !parts.is_empty() => parts,
        _ => return Err(BAD_CONTENT),
    };
    match format {
        ContentFormat::Text => {
            let texts: Option<String> = parts.iter().map(text_part).collect();
            texts.map(Value::String).ok_or(BAD_CONTENT)
        }
        ContentFormat::Parts => {
            let shaped = |part: &Value| match text_part(part) {
                Some(text) => Some(json!({ "type": "text", "text": text })),
                None => media_part(part),
            };
            parts.iter().map(shaped).collect::<Option<Value>>().ok_or(BAD_CONTENT)
        }
    }
}

fn text_content(text: String, format: ContentFormat) -> Value {
    match format {
        ContentFormat::Text => Value::String(text),
        ContentFormat::Parts => json!([{ "type": "text", "text": text }]),
    }
}

fn assistant(
    mut shaped: Map<String, Value>,
    sent_content: Value,
    mut sent: Map<String, Value>,
    format: ContentFormat,
) -> Result<Value, RenderError> {
    let mut has_content = true;
    let text = match sent_content {
        Value::Null => {
            has_content = false;
            String::new()
        }
        Value::String(text) => text,
        Value::Array(parts) => {
            has_content = !parts.is_empty();
            let texts: Option<String> = parts.iter().map(text_part).collect();
            texts.ok_or(BAD_CONTENT)?
        }
        _ => return Err(BAD_CONTENT),
    };
    shaped.insert("content".into(), text_content(text, format));
    let mut given = REASONING_KEYS.into_iter().filter_map(|key| sent.remove(key));
    let reasoning = match (given.next(), given.next()) {
        (None | Some(Value::Null), None) => String::new(),
        (Some(Value::String(text)), None) => text,
        _ => return Err(RenderError::Unsupported("reasoning that the engine refuses")),
    };
    let has_reasoning = !reasoning.is_empty();
    if has_reasoning {
        shaped.insert("reasoning".into(), Value::String(reasoning.clone()));
        shaped.insert("reasoning_content".into(), Value::String(reasoning));
    }
    let calls = match sent.remove("tool_calls") {
        Some(Value::Array(calls)) => calls,
        None | Some(Value::Null) => Vec::new(),
        Some(_) => return Err(RenderError::Unsupported("tool calls are not a list")),
    };
    if !(has_content || has_reasoning) && calls.is_empty() {
        return Err(RenderError::Unsupported("an assistant message without content"));
    }
    if !calls.is_empty() {
        let calls: Result<Vec<Value>, _> = calls.into_iter().map(call).collect();
        shaped.insert("tool_calls".into(), Value::Array(calls?));
    }
    Ok(Value::Object(shaped))
}

/// Arguments are JSON of any kind, and none for an empty string.
fn call(mut sent: Value) -> Result<Value, RenderError> {
    let mut take = |pointer: &str| sent.pointer_mut(pointer).map(Value::take).unwrap_or_default();
    let arguments = match take("/function/arguments") {
        Value::Null => json!({}),
        Value::String(text) if text.is_empty() => json!({}),
        Value::String(text) => numbers::parse(&text, NumberDialect::QuickFloats)
            .ok()
            .flatten()
            .ok_or(RenderError::Unsupported("arguments of a tool call are no JSON"))?,
        _ => return Err(RenderError::Unsupported("arguments of a tool call are no string")),
    };
    let function = json!({ "name": take("/function/name"), "arguments": arguments });
    Ok(json!({ "id": take("/id"), "type": "function", "function": function }))
}

/// The text of a part of kind `text`.
fn text_part(part: &Value) -> Option<&str> {
    let is_text = part.get("type").and_then(Value::as_str) == Some("text");
    part.get("text").and_then(Value::as_str).filter(|_| is_text)
}
