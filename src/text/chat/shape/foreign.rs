//! Converts bodies of `/v1/messages` (Anthropic) and `/v1/responses` (OpenAI) into bodies of
//! `/v1/chat/completions`, as vLLM does.

use super::shaper::BILLING_LINE;
use crate::chat::error::RenderError;
use crate::chat::message::ChatApi;
use serde_json::{Map, Value, json};

/// Converts the body, unless it is a chat body.
pub(super) fn to_chat(body: &mut Map<String, Value>, api: ChatApi) -> Result<(), RenderError> {
    if body.contains_key("messages") {
        from_anthropic(body, api);
        return Ok(());
    }
    if body.get("previous_response_id").is_some_and(|id| !id.is_null()) {
        return Err(RenderError::Unsupported("the conversation is kept by the engine"));
    }
    from_responses(body)
}

/// Converts a body of `/v1/messages`.
pub(in crate::chat) fn from_anthropic(body: &mut Map<String, Value>, api: ChatApi) {
    let system = body.remove("system").map(without_billing);
    let effort = body.get("output_config").and_then(|config| config.get("effort")).cloned();
    let disabled = body.get("thinking").is_some_and(|thinking| kind(thinking) == "disabled");
    if let Some(effort) = if disabled { Some("none".into()) } else { effort } {
        body.insert("reasoning_effort".into(), effort);
    }
    let Some(Value::Array(sent)) = body.get_mut("messages") else { return };
    let mut messages = Vec::with_capacity(sent.len() + 1);
    let system = system.map(|system| joined_text(&system, "")).filter(|text| !text.is_empty());
    if let Some(text) = system {
        messages.push(json!({ "role": "system", "content": text }));
    }
    for message in sent.drain(..) {
        convert_blocks(message, api, &mut messages);
    }
    *sent = messages;
    if let Some(Value::Array(tools)) = body.get_mut("tools") {
        for tool in tools.iter_mut().filter(|tool| tool.get("input_schema").is_some()) {
            if let Some(Value::Object(schema)) = tool.get_mut("input_schema") {
                schema.entry("type").or_insert_with(|| "object".into());
            }
            *tool = json!({ "type": "function", "function": {
                "name": tool.get("name"), "description": tool.get("description"),
                "parameters": tool.get("input_schema"),
            }});
        }
    }
}

/// Removes blocks with Claude Code's changing line, which the engine skips.
fn without_billing(system: Value) -> Value {
    match system {
        Value::Array(mut blocks) => {
            let billing = |text: &str| text.starts_with(BILLING_LINE);
            blocks.retain(|block| !block.get("text").and_then(Value::as_str).is_some_and(billing));
            Value::Array(blocks)
        }
        other => other,
    }
}

/// Converts Anthropic's own blocks. Messages without them stay unchanged, because their text parts
/// have OpenAI's form.
fn convert_blocks(message: Value, api: ChatApi, messages: &mut Vec<Value>) {
    let blocks = message.get("content").and_then(Value::as_array);
    let own = ["tool_use", "tool_result", "redacted_thinking", "tool_reference"];
    // In a chat, a part `thinking` is text.
    let is_own = |kind: &str| own.contains(&kind) || (kind == "thinking" && api != ChatApi::Chat);
    let has_own = |blocks: &&Vec<Value>| blocks.iter().any(|block| is_own(kind(block)));
    let Some(blocks) = blocks.filter(has_own) else {
        messages.push(message);
        return;
    };
    let mut parts = Vec::new();
    let mut calls = Vec::new();
    let mut reasoning = String::new();
    for block in blocks {
        match kind(block) {
            "tool_use" => {
                calls.push(json!({ "id": block.get("id"), "type": "function", "function": {
                    "name": block.get("name"), "arguments": block.get("input"),
                }}));
            }
            "tool_result" => messages.push(json!({
                "role": "tool", "tool_call_id": block.get("tool_use_id"),
                "content": joined_text(block.get("content").unwrap_or(&Value::Null), "\n"),
            })),
            "thinking" => {
                reasoning
                    .push_str(block.get("thinking").and_then(Value::as_str).unwrap_or_default());
            }
            "redacted_thinking" | "tool_reference" => {}
            _ => parts.push(block.clone()),
        }
    }
    let from_user = message.get("role").and_then(Value::as_str) == Some("user");
    if from_user && parts.is_empty() {
        return;
    }
    let content = match parts.as_slice() {
        [] => Value::Null,
        [only] if kind(only) == "text" => only.get("text").cloned().unwrap_or_default(),
        _ => Value::Array(parts),
    };
    let mut converted = Map::new();
    converted.insert("role".into(), message.get("role").cloned().unwrap_or_default());
    converted.insert("content".into(), content);
    if !reasoning.is_empty() {
        converted.insert("reasoning".into(), Value::String(reasoning));
    }
    if !calls.is_empty() {
        converted.insert("tool_calls".into(), Value::Array(calls));
    }
    messages.push(Value::Object(converted));
}

fn from_responses(body: &mut Map<String, Value>) -> Result<(), RenderError> {
    let mut messages = Vec::new();
    if let Some(Value::String(instructions)) = body.remove("instructions")
        && !instructions.is_empty()
    {
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
    let effort = body.get("reasoning").and_then(|reasoning| reasoning.get("effort")).cloned();
    if let Some(effort) = effort.filter(|effort| !effort.is_null()) {
        // An argument of the template, because the chat's own key would also switch thinking on or
        // off.
        let arguments = body.entry("chat_template_kwargs").or_insert_with(|| json!({}));
        if let Some(arguments) = arguments.as_object_mut() {
            arguments.insert("reasoning_effort".into(), effort);
        }
    }
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

/// The text of a string, or the joined texts of a list of blocks.
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
