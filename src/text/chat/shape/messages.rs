//! A message in the form for the template.

use super::parts::{part_text, shaped_part};
use super::sglang;
use super::shaper::{BILLING_LINE, CONTINUE_MARK, Shaper};
use crate::chat::error::RenderError;
use crate::chat::printing::numbers::{self, NumberDialect};
use crate::chat::rules::{ContentFormat, EngineRules};
use serde_json::{Map, Value, json};

/// Shapes a message with a role and a string.
pub(super) fn plain_message(shaper: &Shaper, role: &str, content: &str) -> Value {
    let content = Value::String(content.to_owned());
    let content = match shaper.rules {
        EngineRules::Sglang => content,
        _ => shaper.content(role, content),
    };
    json!({ "role": role, "content": content })
}

/// Puts [`CONTINUE_MARK`] behind the text of a shaped message, the string or the last part with a
/// text, and returns the text.
pub(super) fn mark_end(message: &mut Value) -> Option<String> {
    let text = match message.get_mut("content")? {
        Value::String(text) => text,
        Value::Array(parts) => {
            parts.iter_mut().rev().find_map(|part| match part.get_mut("text") {
                Some(Value::String(text)) => Some(text),
                _ => None,
            })?
        }
        _ => return None,
    };
    let before = text.clone();
    text.push_str(CONTINUE_MARK);
    Some(before)
}

impl Shaper {
    pub(super) fn message(&self, message: Value) -> Result<Value, RenderError> {
        let Value::Object(mut sent) = message else {
            return Err(RenderError::Unsupported("a message is not an object"));
        };
        let Some(Value::String(role)) = sent.remove("role") else {
            return Err(RenderError::Unsupported("a message has no role"));
        };
        if self.rules == EngineRules::Sglang {
            return sglang::message(&role, sent, self.format);
        }
        let content = self.content(&role, sent.remove("content").unwrap_or_default());
        let mut shaped = Map::new();
        shaped.insert("role".into(), Value::String(role.clone()));
        shaped.insert("content".into(), content);
        let keys: &[&str] = match role.as_str() {
            "assistant" => {
                let calls = sent.remove("tool_calls").map(parsed_calls).transpose()?.flatten();
                shaped.extend(calls.map(|calls| ("tool_calls".to_owned(), calls)));
                insert_reasoning(&mut sent, &mut shaped);
                &["name", "task"]
            }
            "tool" => &["tool_call_id", "name", "task"],
            _ => &["name", "task"],
        };
        for key in keys {
            if let Some(value) = sent.remove(*key).filter(|value| !value.is_null()) {
                shaped.insert((*key).to_owned(), value);
            }
        }
        if role == "developer" {
            shaped.insert("tools".into(), sent.remove("tools").unwrap_or_default());
        }
        Ok(Value::Object(shaped))
    }

    /// Converts strings and lists of parts to the form that the template loops over, as vLLM does.
    fn content(&self, role: &str, content: Value) -> Value {
        let content = if role == "system" { without_billing(content) } else { content };
        // Results of tools are strings for every template.
        let is_text = role == "tool" || self.format == ContentFormat::Text;
        match content {
            Value::Array(parts) if is_text => {
                let texts = parts.iter().filter_map(part_text);
                // Joining skips empty parts, but a list of parts keeps them.
                let keeps_empty = self.format == ContentFormat::Parts;
                let texts: Vec<&str> =
                    texts.filter(|text| keeps_empty || !text.is_empty()).collect();
                Value::String(texts.join("\n"))
            }
            Value::Array(parts) => parts.into_iter().map(shaped_part).collect(),
            Value::Null if is_text => Value::String(String::new()),
            Value::Null => Value::Array(Vec::new()),
            Value::String(text) if !is_text => json!([{ "type": "text", "text": text }]),
            other => other,
        }
    }
}

/// Removes the first line of texts that start with [`BILLING_LINE`], and texts of only that line.
fn without_billing(content: Value) -> Value {
    let rest = |text: &str| -> Option<String> {
        let stripped = text.starts_with(BILLING_LINE);
        stripped.then(|| text.split_once('\n').map_or("", |(_, rest)| rest).to_owned())
    };
    match content {
        Value::String(text) => Value::String(rest(&text).unwrap_or(text)),
        Value::Array(mut parts) => {
            for part in &mut parts {
                if let Some(rest) = part_text(part).and_then(rest) {
                    *part = json!({ "type": "text", "text": rest });
                }
            }
            Value::Array(parts)
        }
        other => other,
    }
}

/// As vLLM does for a template without the role `developer`: turns developer messages into system
/// messages, and then merges all system messages at the front.
pub(super) fn settle_developers(knows_developer: bool, messages: &mut Vec<Value>) {
    let role_of = |message: &Value| -> Option<String> {
        message.get("role").and_then(Value::as_str).map(str::to_owned)
    };
    let is_developer = |message: &Value| role_of(message).as_deref() == Some("developer");
    if knows_developer || !messages.iter().any(is_developer) {
        return;
    }
    for message in messages.iter_mut().filter(|message| is_developer(message)) {
        if let Some(fields) = message.as_object_mut() {
            fields.insert("role".into(), "system".into());
            fields.shift_remove("tools");
        }
    }
    let is_system = |message: &Value| role_of(message).as_deref() == Some("system");
    if !messages.iter().skip(1).any(is_system) {
        return;
    }
    let (system, mut others): (Vec<Value>, Vec<Value>) = messages.drain(..).partition(is_system);
    let texts = system.iter().filter_map(|message| all_text(message.get("content")?));
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    messages.push(json!({ "role": "system", "content": texts.join("\n\n") }));
    messages.append(&mut others);
}

fn all_text(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            Some(parts.iter().filter_map(part_text).collect::<Vec<_>>().join("\n"))
        }
        _ => None,
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

/// Parses JSON as Python does: integers of any size.
fn parsed_as_python(text: &str) -> Result<Option<Value>, RenderError> {
    let parsed = numbers::parse(text, NumberDialect::Python);
    parsed.map_err(|_| RenderError::Unsupported("an integer of many digits"))
}

/// Parses the arguments of tool calls, which are JSON text, because templates get objects; invalid
/// arguments become an empty object. Calls have the keys of vLLM's class in the order of the class.
/// `None` for an empty list.
fn parsed_calls(calls: Value) -> Result<Option<Value>, RenderError> {
    let Value::Array(mut calls) = calls else { return Ok(None) };
    for call in &mut calls {
        let Some(Value::Object(mut sent)) = call.get_mut("function").map(Value::take) else {
            continue;
        };
        let arguments = match sent.remove("arguments") {
            Some(Value::String(text)) => parsed_as_python(&text)?.unwrap_or_default(),
            other => other.unwrap_or_default(),
        };
        let arguments = if arguments.is_object() { arguments } else { json!({}) };
        let mut function = Map::new();
        function.insert("arguments".into(), arguments);
        function.extend(sent.remove("name").map(|name| ("name".to_owned(), name)));
        let mut shaped = Map::new();
        for (key, value) in [
            ("id", call.get_mut("id").map(Value::take)),
            ("function", Some(Value::Object(function))),
            ("type", call.get_mut("type").map(Value::take)),
        ] {
            shaped.extend(value.map(|value| (key.to_owned(), value)));
        }
        *call = Value::Object(shaped);
    }
    Ok((!calls.is_empty()).then_some(Value::Array(calls)))
}
