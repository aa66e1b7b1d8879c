//! Messages and tools in the form that SGLang (0.5.23) gives to the template. SGLang reads them
//! into typed objects and writes these, so unknown keys are gone and some absent keys are null.

use super::parts::{part_text, shaped_part};
use crate::chat::error::RenderError;
use crate::chat::printing::numbers::{self, NumberDialect};
use crate::chat::rules::ContentFormat;
use serde_json::{Map, Value, json};

/// Keys that messages of all roles but `user` keep, in order.
const MESSAGE_KEYS: [&str; 4] = ["tool_call_id", "name", "phase", "reasoning_content"];
/// Kinds of parts that are text.
const TEXT_KINDS: [&str; 2] = ["text", "input_text"];

/// Shapes a message of SGLang.
pub(super) fn message(
    role: &str,
    mut sent: Map<String, Value>,
    format: ContentFormat,
) -> Result<Value, RenderError> {
    let content = content(role, sent.remove("content").unwrap_or_default(), format);
    let mut shaped = Map::new();
    shaped.insert("role".into(), role.into());
    shaped.insert("content".into(), content);
    if role == "user" {
        return Ok(Value::Object(shaped));
    }
    let mut keep = |key: &str, value: Option<Value>| {
        shaped.extend(value.filter(|value| !value.is_null()).map(|value| (key.to_owned(), value)));
    };
    for key in MESSAGE_KEYS {
        keep(key, sent.remove(key));
    }
    if let Some(Value::Array(calls)) = sent.remove("tool_calls") {
        let calls: Result<Vec<Value>, _> = calls.into_iter().map(|sent| call(role, sent)).collect();
        keep("tool_calls", Some(Value::Array(calls?)));
    }
    keep("tools", sent.remove("tools"));
    keep("prefix", sent.remove("prefix"));
    Ok(Value::Object(shaped))
}

/// Shapes a content; strings stay strings in both formats.
fn content(role: &str, content: Value, format: ContentFormat) -> Value {
    match content {
        Value::Null => Value::String(String::new()),
        Value::Array(parts) if format == ContentFormat::Text || all_text(role, &parts) => {
            let texts = parts.iter().filter(|part| is_text(part)).filter_map(part_text);
            Value::String(texts.collect::<Vec<_>>().join(" "))
        }
        Value::Array(parts) => parts.into_iter().map(shaped_part).collect(),
        other => other,
    }
}

/// True for results of tools that are only text, which become strings.
fn all_text(role: &str, parts: &[Value]) -> bool {
    role == "tool" && parts.iter().all(is_text)
}

fn is_text(part: &Value) -> bool {
    part.get("type").and_then(Value::as_str).is_some_and(|kind| TEXT_KINDS.contains(&kind))
}

fn call(role: &str, mut sent: Value) -> Result<Value, RenderError> {
    let mut take = |pointer: &str| sent.pointer_mut(pointer).map(Value::take).unwrap_or_default();
    let arguments = match take("/function/arguments") {
        Value::String(text) if role == "assistant" => numbers::parse(&text, NumberDialect::Python)
            .ok()
            .flatten()
            .filter(Value::is_object)
            .ok_or(RenderError::Unsupported("arguments of a tool call are no JSON object"))?,
        other => other,
    };
    let function = json!({ "name": take("/function/name"), "arguments": arguments });
    Ok(json!({ "id": take("/id"), "index": take("/index"), "type": "function",
        "function": function }))
}

/// Takes an assistant message at the end: to continue it, returns its text; else it becomes a user
/// message.
pub(super) fn take_last_answer(messages: &mut [Value], continues: bool) -> Option<String> {
    let last = messages.last_mut()?.as_object_mut()?;
    if last.get("role").and_then(Value::as_str) != Some("assistant") {
        return None;
    }
    let text = last.get("content")?.as_str()?.to_owned();
    if continues {
        return Some(text);
    }
    last.clear();
    last.insert("role".into(), "user".into());
    last.insert("content".into(), text.into());
    None
}

/// Shapes a tool: keys in the client's order, and null for absent keys.
pub(super) fn tool(mut tool: Map<String, Value>, sent: Map<String, Value>) -> Value {
    let outer = tool.remove("defer_loading").unwrap_or_default();
    let mut function: Map<String, Value> = sent
        .into_iter()
        .filter(|(key, value)| match key.as_str() {
            "description" | "name" | "parameters" => true,
            "strict" | "defer_loading" => !value.is_null(),
            _ => false,
        })
        .collect();
    for key in ["description", "name", "parameters"] {
        function.entry(key).or_insert(Value::Null);
    }
    if !outer.is_null() {
        function.entry("defer_loading").or_insert_with(|| outer.clone());
    }
    let kind = tool.remove("type").unwrap_or_else(|| "function".into());
    json!({ "type": kind, "function": function, "defer_loading": outer })
}

/// `reasoning_effort`, or the effort of `reasoning`, and whether the request enables thinking.
pub(super) fn effort(body: &mut Map<String, Value>) -> (Option<Value>, Option<bool>) {
    let reasoning = body.remove("reasoning").unwrap_or_default();
    let set = |key: &str| reasoning.get(key).filter(|value| !value.is_null());
    let nested = set("effort").or_else(|| set("reasoning_effort")).cloned();
    let plain = body.remove("reasoning_effort").filter(|effort| !effort.is_null());
    let enabled = set("enabled").or_else(|| set("enable")) == Some(&Value::Bool(true));
    let effort = nested.or(plain);
    let thinks = effort.as_ref().map(|effort| effort != "none");
    (effort, thinks.or(enabled.then_some(true)))
}

/// Sets the variables of [`effort`], unless the arguments of the template set them.
pub(super) fn insert_effort(
    variables: &mut Map<String, Value>,
    effort: Option<Value>,
    thinks: Option<bool>,
) {
    for name in ["thinking", "enable_thinking"] {
        if let Some(thinks) = thinks {
            variables.entry(name).or_insert(Value::Bool(thinks));
        }
    }
    if let Some(effort) = effort {
        variables.entry("reasoning_effort").or_insert(effort);
    }
}
