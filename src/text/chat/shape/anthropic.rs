//! Converts bodies of `/v1/messages` (Anthropic) into bodies of `/v1/chat/completions`, as vLLM's
//! and SGLang's Python frontends do. What SGLang writes by its parsers of reasoning has no text.

use super::shaper::{BILLING_LINE, Shaper};
use crate::chat::error::RenderError;
use serde_json::{Map, Value, json};

/// What an engine does with bodies of `/v1/messages`, for a template or an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::chat) struct AnthropicRules {
    pub(in crate::chat) is_sglang: bool,
    /// System messages go to the front, as a single text.
    pub(in crate::chat) merges_systems: bool,
    /// The reasoning effort of requests that disable thinking.
    pub(in crate::chat) disabled_effort: &'static str,
}

impl Shaper {
    pub(in crate::chat) fn anthropic(&self) -> AnthropicRules {
        AnthropicRules {
            is_sglang: self.rules.is_sglang(),
            merges_systems: self.merges_systems,
            disabled_effort: self.disabled_effort,
        }
    }
}

/// Members of a body that count for its prompt.
const KEYS: [&str; 6] =
    ["messages", "system", "tools", "tool_choice", "reasoning_effort", "chat_template_kwargs"];

/// Kinds of blocks that neither engine's text is known for.
const UNKNOWN_KINDS: [&str; 3] = ["tool_addition", "tool_removal", "search_result"];
/// The same for SGLang.
const UNKNOWN_TO_SGLANG: [&str; 3] = ["thinking", "redacted_thinking", "tool_reference"];

impl AnthropicRules {
    /// Converts a body.
    ///
    /// # Errors
    /// [`RenderError::Unsupported`] for bodies that the engine refuses, or with a text that is not
    /// known.
    pub(in crate::chat) fn to_chat(self, body: &mut Map<String, Value>) -> Result<(), RenderError> {
        self.set_effort(body)?;
        // Members of chats that this API has not.
        body.retain(|key, _| KEYS.contains(&key.as_str()));
        self.convert_choice(body);
        let mut systems = Vec::new();
        match body.remove("system") {
            Some(Value::String(text)) => systems.push(text),
            Some(Value::Array(blocks)) => {
                systems.extend(self.system_texts(&blocks).into_iter().map(str::to_owned));
            }
            _ => {}
        }
        let Some(Value::Array(sent)) = body.remove("messages") else {
            return Err(RenderError::NoMessages);
        };
        if self.merges_systems {
            for message in sent.iter().filter(|message| is_of(message, "system")) {
                systems.extend(self.system_text(message)?);
            }
        }
        let mut messages = Vec::with_capacity(sent.len() + 1);
        systems.retain(|text| !text.is_empty());
        if !systems.is_empty() {
            let text = systems.join(if self.is_sglang { "\n" } else { "" });
            messages.push(json!({ "role": "system", "content": text }));
        }
        for message in sent {
            if !is_of(&message, "system") {
                self.convert(message, &mut messages)?;
            } else if !self.merges_systems {
                let text = self.system_text(&message)?;
                let text = text.map(|text| json!({ "role": "system", "content": text }));
                messages.extend(text);
            }
        }
        body.insert("messages".into(), Value::Array(messages));
        self.convert_tools(body);
        Ok(())
    }

    fn set_effort(self, body: &mut Map<String, Value>) -> Result<(), RenderError> {
        let effort = body.get("output_config").and_then(|config| config.get("effort")).cloned();
        let effort = effort.filter(|effort| !effort.is_null());
        let thinking = body.get("thinking").filter(|thinking| !thinking.is_null());
        if self.is_sglang && (thinking.is_some() || effort.is_some()) {
            return Err(RenderError::Unsupported("thinking by the parser of the engine"));
        }
        let is_disabled = thinking.is_some_and(|thinking| kind(thinking) == "disabled");
        body.remove("reasoning_effort");
        let effort = if is_disabled { Some(self.disabled_effort.into()) } else { effort };
        body.extend(effort.map(|effort| ("reasoning_effort".to_owned(), effort)));
        Ok(())
    }

    /// The text of a system message; `None` for a message that the engine leaves out.
    fn system_text(self, message: &Value) -> Result<Option<String>, RenderError> {
        if self.is_sglang {
            return Err(RenderError::Unsupported("a late system message"));
        }
        let text = match message.get("content") {
            Some(Value::String(text)) if text.starts_with(BILLING_LINE) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(blocks)) => {
                check_kinds(blocks, &UNKNOWN_KINDS)?;
                self.system_texts(blocks).concat()
            }
            _ => return Err(RenderError::Unsupported("a message has no content")),
        };
        Ok((!text.is_empty()).then_some(text))
    }

    /// Texts of blocks. vLLM skips blocks with Claude Code's changing line.
    fn system_texts(self, blocks: &[Value]) -> Vec<&str> {
        let is_kept = |text: &&str| self.is_sglang || !text.starts_with(BILLING_LINE);
        blocks.iter().filter_map(text_of).filter(is_kept).collect()
    }

    fn convert(self, message: Value, messages: &mut Vec<Value>) -> Result<(), RenderError> {
        let Some(blocks) = message.get("content").and_then(Value::as_array) else {
            messages.push(message);
            return Ok(());
        };
        check_kinds(blocks, &UNKNOWN_KINDS)?;
        if self.is_sglang {
            check_kinds(blocks, &UNKNOWN_TO_SGLANG)?;
        }
        let is_user = is_of(&message, "user");
        let mut converted = ConvertedMessage::default();
        for block in blocks {
            match kind(block) {
                "tool_result" if is_user => self.add_result(block, &mut converted, messages)?,
                _ => converted.add(block, self.is_sglang)?,
            }
        }
        messages.extend(converted.finish(&message, is_user, self.is_sglang));
        Ok(())
    }

    /// A result of a tool becomes a message before that of its user.
    fn add_result(
        self,
        block: &Value,
        converted: &mut ConvertedMessage,
        messages: &mut Vec<Value>,
    ) -> Result<(), RenderError> {
        let id = block.get("tool_use_id").filter(|id| !id.is_null()).cloned();
        let id = id.unwrap_or_else(|| "".into());
        let result =
            |content: Value| json!({ "role": "tool", "tool_call_id": id, "content": content });
        let items = match block.get("content") {
            Some(Value::Array(items)) => items.as_slice(),
            Some(Value::String(text)) => {
                converted.flush_for_sglang(self.is_sglang, messages);
                messages.push(result(text.as_str().into()));
                return Ok(());
            }
            _ => &[],
        };
        if self.is_sglang {
            check_kinds(items, &UNKNOWN_TO_SGLANG)?;
            check_kinds(items, &UNKNOWN_KINDS)?;
            converted.flush_for_sglang(true, messages);
            let parts: Vec<Value> = items.iter().filter_map(part_of).collect();
            messages.push(result(single_text(parts).unwrap_or_else(|| "".into())));
            return Ok(());
        }
        let texts = items.iter().filter(|item| kind(item) == "text");
        let texts = texts.map(|item| item.get("text").map_or(Some(""), Value::as_str));
        let texts: Option<Vec<&str>> = texts.collect();
        let texts = texts.ok_or(RenderError::Unsupported("a result is no text"))?;
        messages.push(result(texts.join("\n").into()));
        let images = items.iter().filter(|item| kind(item) == "image");
        let images: Vec<Value> = images.map(|_| json!({ "type": "image_url" })).collect();
        if !images.is_empty() {
            messages.push(json!({ "role": "user", "content": images }));
        }
        let references: Vec<Value> = items.iter().filter_map(reference).collect();
        if !references.is_empty() {
            messages.push(result(Value::Array(references)));
        }
        Ok(())
    }

    fn convert_choice(self, body: &mut Map<String, Value>) {
        let Some(choice) = body.remove("tool_choice") else { return };
        let choice = match kind(&choice) {
            "none" => Value::from("none"),
            "tool" => json!({ "type": "function", "function": { "name": choice.get("name") } }),
            _ => return,
        };
        body.insert("tool_choice".into(), choice);
    }

    fn convert_tools(self, body: &mut Map<String, Value>) {
        let Some(Value::Array(tools)) = body.get_mut("tools") else { return };
        for tool in tools.iter_mut().filter(|tool| tool.get("input_schema").is_some()) {
            *tool = self.converted_tool(tool);
        }
        if tools.is_empty() {
            body.remove("tools");
        }
    }

    fn converted_tool(self, tool: &mut Value) -> Value {
        if let Some(Value::Object(schema)) = tool.get_mut("input_schema") {
            schema.entry("type").or_insert_with(|| "object".into());
        }
        let name = tool.get("name");
        let schema = tool.get("input_schema");
        let description = tool.get("description").filter(|text| !text.is_null());
        let loading = tool.get("defer_loading");
        if self.is_sglang {
            let description = description.and_then(Value::as_str).unwrap_or_default();
            let function =
                json!({ "name": name, "description": description, "parameters": schema });
            return json!({ "type": "function", "defer_loading": loading, "function": function });
        }
        json!({ "type": "function", "function": {
            "name": name, "description": description, "parameters": schema,
            "strict": tool.get("strict"), "defer_loading": loading,
        }})
    }
}

/// A message of a user or an assistant, from its blocks.
#[derive(Default)]
struct ConvertedMessage {
    parts: Vec<Value>,
    calls: Vec<Value>,
    reasoning: Option<String>,
}

impl ConvertedMessage {
    fn add(&mut self, block: &Value, is_sglang: bool) -> Result<(), RenderError> {
        match kind(block) {
            "text" if is_sglang => {
                let text = block.get("text").and_then(Value::as_str);
                self.parts.extend(text.map(|text| json!({ "type": "text", "text": text })));
            }
            "text" | "image" => self.parts.extend(part_of(block)),
            "thinking" => {
                if let Some(text) = block.get("thinking").and_then(Value::as_str) {
                    self.reasoning.get_or_insert_default().push_str(text);
                }
            }
            "tool_use" => {
                let set = |key: &str| block.get(key).filter(|value| !value.is_null()).cloned();
                let id = set("id").ok_or(RenderError::Unsupported("a call without an id"))?;
                let name = set("name").unwrap_or_else(|| "".into());
                let input = set("input").unwrap_or_else(|| json!({}));
                self.calls.push(json!({ "id": id, "type": "function",
                    "function": { "name": name, "arguments": input } }));
            }
            // The result stands in an answer, where both engines print it as text.
            "tool_result" => {
                let text = match block.get("content") {
                    None | Some(Value::Null) => "",
                    Some(Value::String(text)) => text,
                    Some(_) => return Err(RenderError::Unsupported("a printed list")),
                };
                let text = format!("Tool result: {text}");
                self.parts.push(json!({ "type": "text", "text": text }));
            }
            "redacted_thinking" | "tool_reference" => {}
            _ => return Err(RenderError::Unsupported("the engine refuses a block of this kind")),
        }
        Ok(())
    }

    /// SGLang keeps the order of texts and results.
    fn flush_for_sglang(&mut self, is_sglang: bool, messages: &mut Vec<Value>) {
        let content = if is_sglang { single_text(std::mem::take(&mut self.parts)) } else { None };
        messages.extend(content.map(|content| json!({ "role": "user", "content": content })));
    }

    fn finish(self, message: &Value, is_user: bool, is_sglang: bool) -> Option<Value> {
        let content = single_text(self.parts);
        if content.is_none() && is_user && (!is_sglang || self.calls.is_empty()) {
            return None;
        }
        let is_silent = content.is_none() && self.calls.is_empty();
        let content = content.or_else(|| (is_silent && is_sglang).then(|| "".into()));
        let mut converted = Map::new();
        converted.insert("role".into(), message.get("role").cloned().unwrap_or_default());
        converted.insert("content".into(), content.unwrap_or_default());
        if let Some(reasoning) = self.reasoning {
            converted.insert("reasoning".into(), Value::String(reasoning));
        }
        if !self.calls.is_empty() {
            converted.insert("tool_calls".into(), Value::Array(self.calls));
        }
        Some(Value::Object(converted))
    }
}

/// A content from parts: a lone text is a string.
fn single_text(mut parts: Vec<Value>) -> Option<Value> {
    match parts.as_mut_slice() {
        [] => None,
        [only] if kind(only) == "text" => Some(only.get_mut("text").map(Value::take)?),
        _ => Some(Value::Array(parts)),
    }
}

/// A block as a part of a chat; `None` for blocks that are left out.
fn part_of(block: &Value) -> Option<Value> {
    match kind(block) {
        "text" => Some(json!({ "type": "text", "text": text_of(block)? })),
        "image" => block.get("source")?.as_object().map(|_| json!({ "type": "image_url" })),
        _ => None,
    }
}

/// Do results name tools, which a template may print?
pub(super) fn names_tools(body: &Map<String, Value>) -> bool {
    let messages = body.get("messages").and_then(Value::as_array);
    let contents = messages.into_iter().flatten().filter_map(|message| message.get("content"));
    let mut parts = contents.filter_map(Value::as_array).flatten();
    parts.any(|part| kind(part) == "tool_reference")
}

fn reference(item: &Value) -> Option<Value> {
    let is_named = |key: &str| {
        let name = item.get(key).and_then(Value::as_str);
        name.is_some_and(|name| !name.is_empty())
    };
    let is_reference =
        kind(item) == "tool_reference" && (is_named("tool_name") || is_named("name"));
    is_reference.then(|| json!({ "type": "tool_reference" }))
}

/// The text of a block of text, unless the text is empty.
fn text_of(block: &Value) -> Option<&str> {
    let text = block.get("text").filter(|_| kind(block) == "text")?.as_str()?;
    (!text.is_empty()).then_some(text)
}

fn check_kinds(blocks: &[Value], unknown: &[&str]) -> Result<(), RenderError> {
    let is_unknown = |block: &Value| unknown.contains(&kind(block));
    let fault = RenderError::Unsupported("a block of a kind with a text that is not known");
    (!blocks.iter().any(is_unknown)).then_some(()).ok_or(fault)
}

fn is_of(message: &Value, role: &str) -> bool {
    message.get("role").and_then(Value::as_str) == Some(role)
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or_default()
}
