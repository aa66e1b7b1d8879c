//! Messages in the form that SGLang's Rust server (0.5.23) gives to the template. Its renderer is
//! Dynamo's, which adapts messages to what the template accepts (`rust_traits`).

use super::sglang;
use crate::chat::error::RenderError;
use crate::chat::frontends::rust_traits::{RustTraits, TemplateTraits};
use crate::chat::printing::numbers::{self, NumberDialect};
use serde_json::{Map, Value, json};

/// Roles that the server knows.
const ROLES: [&str; 6] = ["developer", "system", "user", "assistant", "tool", "function"];

/// Shapes the messages. Also returns the text of the last answer that the request continues.
pub(super) fn messages(
    sent: Vec<Value>,
    continues: bool,
    has_tools: bool,
    traits: &RustTraits,
) -> Result<(Vec<Value>, Option<String>), RenderError> {
    let mut messages = Vec::with_capacity(sent.len());
    for message in sent {
        messages.push(typed(message)?);
    }
    let continued = sglang::take_last_answer(&mut messages, continues);
    if continued.is_some() {
        messages.pop();
    }
    let of_template = traits.of(has_tools);
    settle_roles(&mut messages, of_template);
    for message in &mut messages {
        let Some(fields) = message.as_object_mut() else { continue };
        if let Some(content) = fields.get_mut("content") {
            check_texts(content, traits.needs_parts)?;
            *content = flattened(content.take(), traits.needs_parts);
        }
        if !of_template.takes_text_arguments {
            parse_arguments(fields);
        }
        if traits.is_rewritten && fields.contains_key("reasoning_content") {
            return Err(RenderError::Unsupported("the engine rewrites how reasoning is printed"));
        }
        if !traits.reads_reasoning {
            inject_reasoning(fields);
        }
    }
    Ok((messages, continued))
}

/// Reads a message into the keys that the server knows.
fn typed(message: Value) -> Result<Value, RenderError> {
    let Value::Object(mut sent) = message else {
        return Err(RenderError::Unsupported("a message is not an object"));
    };
    let role =
        sent.remove("role").filter(|role| role.as_str().is_some_and(|role| ROLES.contains(&role)));
    let role = role.ok_or(RenderError::Unsupported("a message has no role of the engine"))?;
    let is_assistant = role == "assistant";
    let mut shaped = Map::new();
    shaped.insert("role".into(), role.clone());
    if let Some(reasoning) = sent.remove("reasoning") {
        sent.entry("reasoning_content").or_insert(reasoning);
    }
    let is_set =
        |value: &Value| !value.is_null() && value.as_array().is_none_or(|it| !it.is_empty());
    if sent.get("tools").is_some_and(is_set) || sent.get("partial") == Some(&Value::Bool(true)) {
        return Err(RenderError::Unsupported("a message that the engine refuses"));
    }
    if ["audio", "function_call"].iter().any(|key| sent.get(*key).is_some_and(is_set)) {
        return Err(RenderError::Unsupported("audio or a call of the old form"));
    }
    let content = sent.remove("content").filter(|content| !content.is_null());
    match &content {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) if parts.iter().all(|part| is_known(part, is_assistant)) => {}
        None if is_assistant => {}
        _ => return Err(RenderError::Unsupported("a content that the engine refuses")),
    }
    shaped.extend(content.map(|content| ("content".to_owned(), content)));
    if role == "tool" {
        let id = sent.remove("tool_call_id").filter(Value::is_string);
        let id = id.ok_or(RenderError::Unsupported("a result of a tool has no call"))?;
        shaped.insert("tool_call_id".into(), id);
        return Ok(Value::Object(shaped));
    }
    let order: &[&str] = if is_assistant {
        &["reasoning_content", "refusal", "name", "tool_calls"]
    } else {
        &["name"]
    };
    for key in order {
        let value = sent.remove(*key).filter(|value| !value.is_null());
        let Some(value) = value else { continue };
        let value = match (*key, value) {
            ("tool_calls", Value::Array(calls)) => calls.into_iter().map(call).collect(),
            ("tool_calls", _) => {
                return Err(RenderError::Unsupported("tool calls are not a list"));
            }
            ("reasoning_content", value) if !value.is_string() => {
                return Err(RenderError::Unsupported("reasoning in pieces"));
            }
            (_, value) => value,
        };
        shaped.insert((*key).to_owned(), value);
    }
    Ok(Value::Object(shaped))
}

/// True for parts that the server reads; other kinds of media are cut off before.
fn is_known(part: &Value, is_assistant: bool) -> bool {
    let has = |key: &str| part.get(key).is_some_and(Value::is_string);
    match part.get("type").and_then(Value::as_str) {
        Some("text") => has("text"),
        Some("refusal") => is_assistant && has("refusal"),
        _ => false,
    }
}

fn call(mut sent: Value) -> Value {
    let mut take = |pointer: &str| sent.pointer_mut(pointer).map(Value::take).unwrap_or_default();
    let function = json!({ "name": take("/function/name"),
        "arguments": match take("/function/arguments") {
            Value::String(text) => text,
            other => other.to_string(),
        },
    });
    json!({ "id": take("/id"), "type": "function", "function": function })
}

/// Adapts the roles to what the template accepts: leading system messages become a single message,
/// later system messages become the user's, and neighboring user messages become a single message.
pub(super) fn settle_roles(messages: &mut Vec<Value>, traits: &TemplateTraits) {
    let has_role =
        |message: &Value, role: &str| message.get("role").and_then(Value::as_str) == Some(role);
    if traits.refuses_late_system {
        let leading = messages.iter().take_while(|message| has_role(message, "system")).count();
        let further: Vec<Value> = messages.drain(leading.min(1)..leading).collect();
        if let Some(first) = messages.first_mut() {
            further.into_iter().for_each(|message| append_content(first, message));
        }
        let late = messages.iter_mut().skip(leading.min(1));
        for message in late.filter(|message| has_role(message, "system")) {
            if let Some(fields) = message.as_object_mut() {
                fields.insert("role".into(), "user".into());
            }
        }
    }
    if traits.refuses_user_runs {
        let mut settled: Vec<Value> = Vec::with_capacity(messages.len());
        for message in messages.drain(..) {
            match settled.last_mut() {
                Some(last) if has_role(last, "user") && has_role(&message, "user") => {
                    append_content(last, message);
                }
                _ => settled.push(message),
            }
        }
        *messages = settled;
    }
}

/// Appends the content of a message to another, which keeps its other keys.
fn append_content(target: &mut Value, mut source: Value) {
    let Some(target) = target.as_object_mut() else { return };
    let source = source.get_mut("content").map(Value::take).unwrap_or_default();
    let part = |text: String| json!({ "type": "text", "text": text });
    let merged = match (target.swap_remove("content").unwrap_or_default(), source) {
        (Value::String(mut before), Value::String(after)) => {
            if !before.is_empty() && !after.is_empty() {
                before.push_str("\n\n");
            }
            Value::String(before + &after)
        }
        (Value::Array(mut before), Value::Array(after)) => {
            before.extend(after);
            Value::Array(before)
        }
        (Value::Array(mut before), Value::String(after)) => {
            before.extend((!after.is_empty()).then(|| part(after)));
            Value::Array(before)
        }
        (Value::String(before), Value::Array(after)) => {
            let first = (!before.is_empty()).then(|| part(before));
            Value::Array(first.into_iter().chain(after).collect())
        }
        (Value::Null, after) => after,
        (before, _) => before,
    };
    target.insert("content".into(), merged);
}

/// Where the template takes no parts, the server writes marks of media for parts without a text.
fn check_texts(content: &Value, needs_parts: bool) -> Result<(), RenderError> {
    let is_text = |part: &Value| part.get("text").is_some();
    let is_known = needs_parts || content.as_array().is_none_or(|parts| parts.iter().all(is_text));
    is_known.then_some(()).ok_or(RenderError::Unsupported("a part without a text"))
}

/// A list of only texts becomes their lines; a string becomes a list where the template needs it.
pub(super) fn flattened(content: Value, needs_parts: bool) -> Value {
    match content {
        Value::String(text) if needs_parts => json!([{ "type": "text", "text": text }]),
        Value::Array(parts) if !needs_parts && !parts.is_empty() => {
            let text = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            texts.map_or(Value::Array(parts), |texts| Value::String(texts.join("\n")))
        }
        other => other,
    }
}

fn parse_arguments(fields: &mut Map<String, Value>) {
    let Some(Value::Array(calls)) = fields.get_mut("tool_calls") else { return };
    for arguments in calls.iter_mut().filter_map(|call| call.pointer_mut("/function/arguments")) {
        let read = |text| numbers::parse(text, NumberDialect::ExactFloats).ok().flatten();
        if let Some(parsed) = arguments.as_str().and_then(read) {
            *arguments = parsed;
        }
    }
}

/// Puts the reasoning of an answer before its content, for templates that do not read it.
fn inject_reasoning(fields: &mut Map<String, Value>) {
    let reasoning = match fields.get("reasoning_content").and_then(Value::as_str) {
        Some(text) if !text.is_empty() => format!("<think>{text}</think>"),
        _ => return,
    };
    match fields.get_mut("content") {
        Some(Value::String(text)) => text.insert_str(0, &reasoning),
        Some(Value::Array(parts)) => {
            parts.insert(0, json!({ "type": "text", "text": reasoning }));
        }
        _ => {
            fields.insert("content".into(), Value::String(reasoning));
        }
    }
    // The frontend's map fills the gap with its last key.
    fields.swap_remove("reasoning_content");
}
