//! A request body turned into the variables of the template, as the engine's own front end does it.
//!
//! Bodies of `/v1/chat/completions` come first; those of `/v1/messages` and `/v1/responses` are brought into that
//! form (`foreign`). Which API a body belongs to shows in its keys: `system` or Anthropic's blocks, `input`.

mod foreign;
pub(super) mod media;
mod messages;
mod tools;

use super::rules::{ContentFormat, EngineRules};
use super::template::RenderError;
use serde_json::{Map, Value};

pub(super) use messages::plain_message;

/// Start of a line that Claude Code puts before its instructions. It changes with every request, so vLLM takes it out of
/// system messages (`renderers/chat_utils` of vLLM 0.33).
pub(super) const BILLING_LINE: &str = "x-anthropic-billing-header";

/// How to shape: fixed for a template.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shaper {
    /// Whose rules.
    pub(super) rules: EngineRules,
    /// What the template loops over.
    pub(super) format: ContentFormat,
    /// True when the template knows the role `developer`; otherwise it becomes `system`.
    pub(super) knows_developer: bool,
}

/// What the template gets.
#[derive(Debug)]
pub(super) struct Conversation {
    /// All variables but the special tokens.
    pub(super) variables: Map<String, Value>,
    /// With `continue_final_message`: the last message's text, behind which the prompt ends.
    pub(super) ends_with: Option<Ending>,
}

/// How a prompt that continues its last message ends.
#[derive(Debug)]
pub(super) enum Ending {
    /// Cut the rendered text behind the last occurrence of this (vLLM, by way of transformers).
    CutBehind(String),
    /// Append this; the message was taken out before (SGLang).
    Append(String),
}

impl Shaper {
    /// Shapes a body.
    pub(super) fn shape(&self, mut body: Map<String, Value>) -> Result<Conversation, RenderError> {
        foreign::to_chat(&mut body)?;
        let Some(Value::Array(sent)) = body.remove("messages") else {
            return Err(RenderError::NoMessages);
        };
        let mut messages = Vec::with_capacity(sent.len());
        for message in sent {
            messages.push(self.message(message)?);
        }
        if self.rules == EngineRules::Vllm {
            messages::settle_developers(self.knows_developer, &mut messages);
        }
        let tools = self.tools(&mut body);
        let continues = body.get("continue_final_message") == Some(&Value::Bool(true));
        let ends_with = if continues { self.ending(&mut messages) } else { None };
        let mut variables = self.arguments(&mut body);
        let drops_prompt = self.rules == EngineRules::Sglang && continues && ends_with.is_none();
        if drops_prompt {
            variables.insert("add_generation_prompt".into(), Value::Bool(false));
        }
        variables.insert("messages".into(), Value::Array(messages));
        variables.insert("tools".into(), tools);
        Ok(Conversation { variables, ends_with })
    }

    fn ending(&self, messages: &mut Vec<Value>) -> Option<Ending> {
        let last = messages.last()?;
        let text = messages::text_of(last.get("content")?)?;
        match self.rules {
            EngineRules::Vllm => Some(Ending::CutBehind(text)),
            EngineRules::Sglang => {
                if last.get("role").and_then(Value::as_str) != Some("assistant") {
                    return None;
                }
                messages.pop();
                Some(Ending::Append(text))
            }
        }
    }

    /// `chat_template_kwargs`, then the request fields that become variables, which win unless they are null.
    fn arguments(&self, body: &mut Map<String, Value>) -> Map<String, Value> {
        let mut variables = match body.remove("chat_template_kwargs") {
            Some(Value::Object(arguments)) => arguments,
            _ => Map::new(),
        };
        let generates = body.get("add_generation_prompt") != Some(&Value::Bool(false));
        variables.insert("add_generation_prompt".into(), Value::Bool(generates));
        if let Some(effort) = body.remove("reasoning_effort").filter(|effort| !effort.is_null()) {
            if self.rules == EngineRules::Vllm && !variables.contains_key("enable_thinking") {
                variables.insert("enable_thinking".into(), Value::Bool(effort != "none"));
            }
            variables.insert("reasoning_effort".into(), effort);
        }
        let documents = body.remove("documents").filter(|documents| !documents.is_null());
        match documents {
            Some(documents) => {
                variables.insert("documents".into(), documents);
            }
            None => {
                variables.entry("documents").or_insert(Value::Null);
            }
        }
        variables
    }
}
