//! Converts bodies of `/v1/responses` (OpenAI) into bodies of `/v1/chat/completions`, as vLLM does.
//! [`super::anthropic`] converts bodies of `/v1/messages`.

use super::anthropic::AnthropicRules;
use crate::chat::error::RenderError;
use crate::chat::message::ChatApi;
use serde_json::{Map, Value, json};

/// Converts the body, unless it is a chat body.
pub(super) fn to_chat(
    body: &mut Map<String, Value>,
    api: ChatApi,
    rules: AnthropicRules,
) -> Result<(), RenderError> {
    if body.contains_key("messages") {
        return if api == ChatApi::Messages { rules.to_chat(body) } else { Ok(()) };
    }
    if body.get("previous_response_id").is_some_and(|id| !id.is_null()) {
        return Err(RenderError::Unsupported("the conversation is kept by the engine"));
    }
    from_responses(body)
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
