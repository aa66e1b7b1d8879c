//! Conversations of `/v1/chat/completions` in Harmony's form.

use super::dialog::{Dialog, effort, flat_text, header_name, list, parts_text};
use super::schema;
use super::turn::{DialogTurn, Speaker};
use crate::chat::encoded_prompt::EncodedPrompt;
use crate::chat::error::RenderError;
use crate::chat::steps::count_read;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Kinds of parts with a text.
const TEXT_KINDS: [&str; 3] = ["text", "refusal", "thinking"];
/// Kinds of parts without a text.
const MEDIA_KINDS: [&str; 4] = ["image_url", "input_audio", "audio_url", "video_url"];

/// Names of functions by the ids of their calls.
type CallNames<'a> = HashMap<&'a str, &'a Value>;

pub(super) fn write(
    body: &Map<String, Value>,
    date: &str,
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    let messages = body.get("messages").and_then(Value::as_array).ok_or(RenderError::NoMessages)?;
    let preamble = messages.first().filter(|first| matches!(role(first), "system" | "developer"));
    let spoken = messages.get(usize::from(preamble.is_some())..).unwrap_or_default();
    let names = call_names(messages);
    check_parts(preamble.and_then(|first| first.get("content")))?;
    let mut turns = Vec::with_capacity(spoken.len());
    for message in spoken {
        add_message(message, &names, &mut turns)?;
    }
    let dialog = Dialog {
        instructions: preamble.and_then(|first| flat_text(first.get("content"))),
        effort: effort(body.get("reasoning_effort"))?,
        tools: tools(body)?,
        turns,
    };
    dialog.write(date, out)
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

fn tools(body: &Map<String, Value>) -> Result<Vec<schema::Tool<'_>>, RenderError> {
    let refused = RenderError::Unsupported("the engine refuses these tools");
    match body.get("tools") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(tools)) if !tools.is_empty() => {
            tools.iter().map(tool).collect::<Option<_>>().ok_or(refused)
        }
        Some(_) => Err(refused),
    }
}

fn tool(tool: &Value) -> Option<schema::Tool<'_>> {
    schema::Tool::read(tool.get("function")?.as_object()?)
}

/// The last call of an id names its function.
fn call_names(messages: &[Value]) -> CallNames<'_> {
    let calls = messages.iter().flat_map(|message| list(message.get("tool_calls")));
    calls
        .inspect(|_| count_read(1))
        .filter_map(|call| Some((call.get("id")?.as_str()?, call.pointer("/function/name")?)))
        .collect()
}

fn add_message<'a>(
    message: &'a Value,
    names: &CallNames<'a>,
    turns: &mut Vec<DialogTurn<'a>>,
) -> Result<(), RenderError> {
    let content = message.get("content");
    check_parts(content)?;
    match role(message) {
        "assistant" => return add_answer(message, turns),
        "tool" => {
            let id = message.get("tool_call_id").and_then(Value::as_str).unwrap_or_default();
            let name = match names.get(id) {
                Some(name) => header_name(Some(name))?,
                None => "",
            };
            turns
                .push(DialogTurn::new(Speaker::Tool(name), flat_text(content).unwrap_or_default()));
        }
        "system" | "developer" => {
            let text = flat_text(content);
            turns.extend(text.map(|text| DialogTurn::new(Speaker::Developer, text)));
        }
        "user" => {
            turns.push(DialogTurn::new(Speaker::User, parts_text(content)?));
        }
        _ => return Err(RenderError::Unsupported("the encoder has no such role")),
    }
    Ok(())
}

/// vLLM reads strings among parts, and parts of other kinds or without their text, as parts of
/// nothing or as no list.
fn check_parts(content: Option<&Value>) -> Result<(), RenderError> {
    let is_known = |part: &Value| {
        count_read(1);
        let kind = part.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| MEDIA_KINDS.contains(&kind) || has_text(part, kind))
    };
    let parts = list(content);
    let refused = RenderError::Unsupported("a part of a kind that the encoder may not read");
    parts.iter().all(is_known).then_some(()).ok_or(refused)
}

/// Kinds of parts have their text under their own name.
fn has_text(part: &Value, kind: &str) -> bool {
    TEXT_KINDS.contains(&kind) && part.get(kind).is_some_and(Value::is_string)
}

/// Reasoning, calls, and the answer itself.
fn add_answer<'a>(message: &'a Value, turns: &mut Vec<DialogTurn<'a>>) -> Result<(), RenderError> {
    let set = |key: &str| message.get(key).filter(|value| !value.is_null());
    let reasoning = match set("reasoning").or_else(|| set("reasoning_content")) {
        None => "",
        Some(Value::String(text)) => text,
        Some(_) => return Err(RenderError::Unsupported("reasoning is no text")),
    };
    let reasoning = (!reasoning.is_empty()).then(|| DialogTurn::new(Speaker::Analysis, reasoning));
    let content = message.get("content");
    let calls = list(message.get("tool_calls"));
    if calls.is_empty() {
        turns.extend(reasoning);
        // An empty first part hides all parts.
        let parts = content.and_then(Value::as_array);
        let starts_empty = parts.and_then(|parts| parts.first()).is_some_and(is_empty_part);
        let text = parts_text(content)?;
        if !text.is_empty() && !starts_empty {
            turns.push(DialogTurn::new(Speaker::Final, text));
        }
        return Ok(());
    }
    let text = flat_text(content).filter(|text| !text.is_empty());
    turns.extend(text.map(|text| DialogTurn::new(Speaker::Commentary, text)));
    turns.extend(reasoning);
    for call in calls {
        let name = header_name(call.pointer("/function/name"))?;
        turns.push(DialogTurn::new(Speaker::Call(name), arguments(call)?));
    }
    Ok(())
}

fn is_empty_part(part: &Value) -> bool {
    part.get("text").is_none_or(|text| text.as_str() == Some(""))
}

fn arguments(call: &Value) -> Result<&str, RenderError> {
    match call.pointer("/function/arguments") {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(RenderError::Unsupported("arguments of a call are no text")),
    }
}
