//! Bodies of `/v1/responses`: items instead of messages.

use super::dialog::{Dialog, effort, flat_text, header_name, list, parts_text};
use super::schema;
use super::turn::{DialogTurn, Speaker};
use crate::chat::encoded_prompt::EncodedPrompt;
use crate::chat::error::RenderError;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::HashMap;

/// Members that put messages before the input, or change it.
const CHANGES_INPUT: [&str; 4] =
    ["previous_response_id", "previous_input_messages", "conversation", "prompt"];

pub(super) fn write(
    body: &Map<String, Value>,
    date: &str,
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    let set = |key: &&str| body.get(*key).is_some_and(|value| !value.is_null());
    if CHANGES_INPUT.iter().any(set) {
        return Err(RenderError::Unsupported("the engine keeps a part of the conversation"));
    }
    let given = body.get("instructions").filter(|value| !value.is_null());
    let mut items = list(body.get("input"));
    let instructions = match (given, items.first()) {
        (Some(Value::String(text)), _) => Some(Cow::Borrowed(text.as_str())),
        (Some(_), _) => return Err(RenderError::Unsupported("instructions are no text")),
        (None, Some(first)) if matches!(role(first), "system" | "developer") => {
            items = items.get(1..).unwrap_or_default();
            flat_text(first.get("content"))
        }
        (None, _) => None,
    };
    let turns = match body.get("input") {
        Some(Value::String(text)) => vec![DialogTurn::new(Speaker::User, text.as_str())],
        Some(Value::Array(_)) => turns_of(items)?,
        _ => return Err(RenderError::NoMessages),
    };
    let asked = body.get("reasoning").and_then(|reasoning| reasoning.get("effort"));
    let dialog = Dialog { instructions, effort: effort(asked)?, tools: tools(body)?, turns };
    dialog.write(date, out)
}

fn role(item: &Value) -> &str {
    item.get("role").and_then(Value::as_str).unwrap_or_default()
}

fn tools(body: &Map<String, Value>) -> Result<Vec<schema::Tool<'_>>, RenderError> {
    let tools: Option<Vec<_>> = list(body.get("tools")).iter().map(tool).collect();
    tools.ok_or(RenderError::Unsupported("tools that are no functions"))
}

/// Tools of other kinds may run in the engine, and then change the system message.
fn tool(tool: &Value) -> Option<schema::Tool<'_>> {
    let fields = tool.as_object()?;
    let is_function = fields.get("type")?.as_str()? == "function";
    schema::Tool::read(is_function.then_some(fields)?)
}

fn turns_of(items: &[Value]) -> Result<Vec<DialogTurn<'_>>, RenderError> {
    let mut turns = Vec::with_capacity(items.len());
    let mut names: HashMap<&str, &str> = HashMap::new();
    for item in items {
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("message");
        let text = |key: &str| {
            let text = item.get(key).and_then(Value::as_str);
            text.ok_or(RenderError::Unsupported("an item lacks a text"))
        };
        match kind {
            "message" => turns.extend(message(item)?),
            "function_call" => {
                let name = header_name(item.get("name"))?;
                names.insert(text("call_id")?, name);
                turns.push(DialogTurn::new(Speaker::Call(name), text("arguments")?));
            }
            "function_call_output" => {
                let unknown = RenderError::Unsupported("a result without a call");
                let name = names.get(text("call_id")?).copied().ok_or(unknown)?;
                turns.push(DialogTurn::new(Speaker::Tool(name), text("output")?));
            }
            "reasoning" => {
                let parts = list(item.get("content"));
                let texts = parts.iter().map(|part| part.get("text").and_then(Value::as_str));
                let texts: Option<Vec<&str>> = texts.collect();
                let texts = texts.ok_or(RenderError::Unsupported("reasoning is no text"))?;
                if !texts.is_empty() {
                    turns.push(DialogTurn::new(Speaker::Analysis, texts.join("\n")));
                }
            }
            _ => return Err(RenderError::Unsupported("an input item of this kind")),
        }
    }
    Ok(turns)
}

fn message(item: &Value) -> Result<Option<DialogTurn<'_>>, RenderError> {
    let content = item.get("content");
    let speaker = match role(item) {
        "system" | "developer" => {
            let text = flat_text(content).filter(|text| !text.is_empty());
            return Ok(text.map(|text| DialogTurn::new(Speaker::Developer, text)));
        }
        "user" => Speaker::User,
        "assistant" => Speaker::Final,
        _ => return Err(RenderError::Unsupported("the encoder has no such role")),
    };
    let text = parts_text(content)?;
    Ok(Some(DialogTurn::new(speaker, text)))
}
