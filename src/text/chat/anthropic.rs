//! Bodies of `/v1/messages` for an encoder, which sees what a template does not: blocks without
//! text, and arguments as text.

use super::error::RenderError;
use super::message::ChatApi;
use super::printing::python_json::write_python_json;
use super::shape::from_anthropic;
use serde_json::{Map, Value, json};

/// Converts a body of `/v1/messages` to that of a chat, as vLLM does.
///
/// # Errors
/// [`RenderError::Unsupported`] for numbers that the engine prints with other digits.
pub(super) fn to_chat(body: &mut Map<String, Value>) -> Result<(), RenderError> {
    if let Some(Value::Array(messages)) = body.get_mut("messages") {
        messages.retain_mut(keep_texts);
    }
    merge_systems(body);
    from_anthropic(body, ChatApi::Messages);
    let Some(Value::Array(messages)) = body.get_mut("messages") else { return Ok(()) };
    for message in messages {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            let mut text = String::new();
            if arguments.is_null() {
                text.push_str("{}");
            } else {
                write_python_json(arguments, true, &mut text)?;
            }
            *arguments = Value::String(text);
        }
    }
    Ok(())
}

/// Appends late system messages to the leading system text, as vLLM does for a renderer
/// without a template.
fn merge_systems(body: &mut Map<String, Value>) {
    let Some(Value::Array(messages)) = body.get_mut("messages") else { return };
    let mut late = Vec::new();
    messages.retain_mut(|message| {
        let is_system = message.get("role").and_then(Value::as_str) == Some("system");
        if is_system {
            late.extend(message.get_mut("content").map(Value::take).map(blocks_of));
        }
        !is_system
    });
    if late.is_empty() {
        return;
    }
    let leading = body.remove("system").map(blocks_of).unwrap_or_default();
    let blocks = leading.into_iter().chain(late.into_iter().flatten()).collect();
    body.insert("system".into(), Value::Array(blocks));
}

/// A content as a list of blocks.
fn blocks_of(content: Value) -> Vec<Value> {
    match content {
        Value::Array(blocks) => blocks,
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        _ => Vec::new(),
    }
}

/// Is there thinking without a text? What the conversion to a chat loses.
pub(super) fn thinks_nothing(body: &Map<String, Value>) -> bool {
    let messages = body.get("messages").and_then(Value::as_array);
    let blocks = |message: &'_ Value| -> bool {
        let blocks = message.get("content").and_then(Value::as_array);
        let is_nothing =
            |block: &Value| block.get("thinking").is_some_and(|thinking| thinking == "");
        blocks.is_some_and(|blocks| blocks.iter().any(is_nothing))
    };
    messages.is_some_and(|messages| messages.iter().any(blocks))
}

/// Removes blocks without text; false for a message that the engine leaves out then.
fn keep_texts(message: &mut Value) -> bool {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default().to_owned();
    match message.get_mut("content") {
        Some(Value::Array(blocks)) => {
            blocks.retain(|block| block.get("text").is_none_or(|text| text != ""));
            !blocks.is_empty() || role == "assistant"
        }
        Some(Value::String(text)) => role != "system" || !text.is_empty(),
        _ => true,
    }
}
