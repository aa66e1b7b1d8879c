//! One message as the template gets it.

use super::{ContentFormat, EngineRules, RenderError, Shaper};
use serde_json::{Map, Value, json};

/// A message with a role and a string, shaped.
pub(in crate::chat) fn plain_message(shaper: &Shaper, role: &str, content: &str) -> Value {
    let content = Value::String(content.to_owned());
    json!({ "role": role, "content": shaper.content(content) })
}

/// The text of a shaped content: the string, or the last part that has one.
pub(super) fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().rev().find_map(part_text).map(str::to_owned),
        _ => None,
    }
}

impl Shaper {
    pub(super) fn message(&self, message: Value) -> Result<Value, RenderError> {
        let Value::Object(mut sent) = message else {
            return Err(RenderError::Unsupported("a message is not an object"));
        };
        let Some(Value::String(role)) = sent.remove("role") else {
            return Err(RenderError::Unsupported("a message has no role"));
        };
        let role =
            if role == "developer" && !self.knows_developer { "system".into() } else { role };
        let content = self.content(sent.remove("content").unwrap_or_default());
        let mut shaped = Map::new();
        shaped.insert("role".into(), Value::String(role.clone()));
        shaped.insert("content".into(), content);
        let calls = sent.remove("tool_calls").and_then(parsed_calls);
        match self.rules {
            EngineRules::Sglang => {
                sent.retain(|_, value| !value.is_null());
                shaped.extend(sent);
                shaped.extend(calls.map(|calls| ("tool_calls".to_owned(), calls)));
            }
            EngineRules::Vllm => {
                let keys: &[&str] = match role.as_str() {
                    "assistant" => {
                        shaped.extend(calls.map(|calls| ("tool_calls".to_owned(), calls)));
                        insert_reasoning(&mut sent, &mut shaped);
                        &["name"]
                    }
                    "tool" => &["tool_call_id", "name"],
                    "developer" => &["tools", "name"],
                    _ => &["name"],
                };
                for key in keys {
                    if let Some(value) = sent.remove(*key).filter(|value| !value.is_null()) {
                        shaped.insert((*key).to_owned(), value);
                    }
                }
            }
        }
        Ok(Value::Object(shaped))
    }

    /// Strings and lists of parts, brought to what the template loops over.
    fn content(&self, content: Value) -> Value {
        let wraps = self.rules == EngineRules::Vllm && self.format == ContentFormat::Parts;
        match (content, self.format) {
            (Value::Array(parts), ContentFormat::Parts) => {
                parts.into_iter().map(shaped_part).collect()
            }
            (Value::Array(parts), ContentFormat::Text) => {
                let texts: Vec<&str> = parts.iter().filter_map(part_text).collect();
                let joint = if self.rules == EngineRules::Vllm { "\n" } else { " " };
                Value::String(texts.join(joint))
            }
            (Value::String(text), _) if wraps => json!([{ "type": "text", "text": text }]),
            (Value::Null, _) if wraps => Value::Array(Vec::new()),
            (Value::Null, _) => Value::String(String::new()),
            (other, _) => other,
        }
    }
}

fn insert_reasoning(sent: &mut Map<String, Value>, shaped: &mut Map<String, Value>) {
    let given = sent.remove("reasoning").filter(|value| !value.is_null());
    let given = given.or_else(|| sent.remove("reasoning_content").filter(|value| !value.is_null()));
    if let Some(reasoning) = given {
        shaped.insert("reasoning".into(), reasoning.clone());
        shaped.insert("reasoning_content".into(), reasoning);
    }
}

/// Arguments of tool calls come as JSON text; templates get the object. `None` for an empty list.
fn parsed_calls(calls: Value) -> Option<Value> {
    let Value::Array(mut calls) = calls else { return None };
    for call in &mut calls {
        let Some(Value::Object(function)) = call.get_mut("function") else { continue };
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => json!({}),
            Some(Value::String(text)) if text.is_empty() => json!({}),
            Some(Value::String(text)) => {
                serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
            }
            Some(other) => other.clone(),
        };
        function.insert("arguments".into(), arguments);
    }
    (!calls.is_empty()).then_some(Value::Array(calls))
}

fn part_text(part: &Value) -> Option<&str> {
    match part {
        Value::String(text) => Some(text),
        Value::Object(fields) => ["text", "refusal", "thinking"]
            .into_iter()
            .find_map(|key| fields.get(key).and_then(Value::as_str)),
        _ => None,
    }
}

/// Texts of every kind become `text` parts; images and the like are known by their kind alone.
fn shaped_part(part: Value) -> Value {
    if let Some(text) = part_text(&part) {
        return json!({ "type": "text", "text": text });
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let kind = match kind {
        "image_url" | "input_image" | "image_pil" | "image_embeds" => "image",
        "video_url" => "video",
        "audio_url" | "input_audio" => "audio",
        _ => return part,
    };
    json!({ "type": kind })
}
