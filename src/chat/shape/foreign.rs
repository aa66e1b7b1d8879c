//! Bodies of `/v1/messages` (Anthropic) and `/v1/responses` (OpenAI) as bodies of `/v1/chat/completions`, the way vLLM
//! converts them.

use super::RenderError;
use serde_json::{Map, Value, json};

/// Rewrites the body if it is not a chat body already.
pub(super) fn to_chat(body: &mut Map<String, Value>) -> Result<(), RenderError> {
    if body.contains_key("messages") {
        from_anthropic(body);
        return Ok(());
    }
    if body.get("previous_response_id").is_some_and(|id| !id.is_null()) {
        return Err(RenderError::Unsupported("the conversation is kept by the engine"));
    }
    from_responses(body)
}

fn from_anthropic(body: &mut Map<String, Value>) {
    let system = body.remove("system");
    let Some(Value::Array(sent)) = body.get_mut("messages") else { return };
    let mut messages = Vec::with_capacity(sent.len() + 1);
    let system = system.map(|system| joined_text(&system, "")).filter(|text| !text.is_empty());
    if let Some(text) = system {
        messages.push(json!({ "role": "system", "content": text }));
    }
    for message in sent.drain(..) {
        convert_blocks(message, &mut messages);
    }
    *sent = messages;
    if let Some(Value::Array(tools)) = body.get_mut("tools") {
        for tool in tools.iter_mut().filter(|tool| tool.get("input_schema").is_some()) {
            *tool = json!({ "type": "function", "function": {
                "name": tool.get("name"), "description": tool.get("description"),
                "parameters": tool.get("input_schema"),
            }});
        }
    }
}

/// Messages without Anthropic's tool blocks pass as they are: their text parts are OpenAI's.
fn convert_blocks(message: Value, messages: &mut Vec<Value>) {
    let blocks = message.get("content").and_then(Value::as_array);
    let has_tools = |blocks: &&Vec<Value>| {
        blocks.iter().any(|block| matches!(kind(block), "tool_use" | "tool_result"))
    };
    let Some(blocks) = blocks.filter(has_tools) else {
        messages.push(message);
        return;
    };
    let (mut parts, mut calls) = (Vec::new(), Vec::new());
    for block in blocks {
        match kind(block) {
            "tool_use" => {
                calls.push(json!({ "id": block.get("id"), "type": "function", "function": {
                    "name": block.get("name"), "arguments": block.get("input"),
                }}))
            }
            "tool_result" => messages.push(json!({
                "role": "tool", "tool_call_id": block.get("tool_use_id"),
                "content": joined_text(block.get("content").unwrap_or(&Value::Null), "\n"),
            })),
            _ => parts.push(block.clone()),
        }
    }
    if parts.is_empty() && calls.is_empty() {
        return;
    }
    let content = match parts.as_slice() {
        [] => Value::Null,
        [only] if kind(only) == "text" => only.get("text").cloned().unwrap_or_default(),
        _ => Value::Array(parts),
    };
    let mut converted = json!({ "role": message.get("role"), "content": content });
    if let Some(fields) = converted.as_object_mut().filter(|_| !calls.is_empty()) {
        fields.insert("tool_calls".into(), Value::Array(calls));
    }
    messages.push(converted);
}

fn from_responses(body: &mut Map<String, Value>) -> Result<(), RenderError> {
    let mut messages = Vec::new();
    if let Some(Value::String(instructions)) = body.remove("instructions") {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match body.remove("input") {
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) => {
            for item in items {
                messages.push(response_item(item)?);
            }
        }
        _ => return Err(RenderError::NoMessages),
    }
    body.insert("messages".into(), Value::Array(messages));
    if let Some(Value::Array(tools)) = body.get_mut("tools") {
        tools.retain(|tool| kind(tool) == "function");
        for tool in tools.iter_mut().filter(|tool| tool.get("function").is_none()) {
            *tool = json!({ "type": "function", "function": {
                "name": tool.get("name"), "description": tool.get("description"),
                "parameters": tool.get("parameters"),
            }});
        }
    }
    Ok(())
}

fn response_item(item: Value) -> Result<Value, RenderError> {
    match kind(&item) {
        "" | "message" => Ok(item),
        "function_call" => Ok(json!({ "role": "assistant", "tool_calls": [{
            "id": item.get("call_id"), "type": "function",
            "function": { "name": item.get("name"), "arguments": item.get("arguments") },
        }]})),
        "function_call_output" => Ok(json!({
            "role": "tool", "tool_call_id": item.get("call_id"),
            "content": joined_text(item.get("output").unwrap_or(&Value::Null), "\n"),
        })),
        _ => Err(RenderError::Unsupported("an input item of this kind")),
    }
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// A string, or the texts of a list of blocks.
fn joined_text(value: &Value, joint: &str) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let text =
                |block: &'_ Value| block.get("text").and_then(Value::as_str).map(str::to_owned);
            blocks.iter().filter_map(text).collect::<Vec<_>>().join(joint)
        }
        _ => String::new(),
    }
}
