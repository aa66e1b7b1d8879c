//! A request body turned into the variables of the template, as the engine's own front end does it.
//!
//! Bodies of `/v1/chat/completions` come first; those of `/v1/messages` and `/v1/responses` are brought into that
//! form (`foreign`). Which API a body belongs to shows in its keys: `system` or Anthropic's blocks, `input`.

mod foreign;
mod messages;
mod tools;

use super::rules::{ContentFormat, EngineRules};
use super::template::RenderError;
use serde_json::{Map, Value};

pub(super) use messages::plain_message;

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
        let tools = self.tools(&mut body);
        let mut variables = Map::new();
        let continues = body.get("continue_final_message") == Some(&Value::Bool(true));
        let generates = body.get("add_generation_prompt") != Some(&Value::Bool(false));
        let mut ends_with = None;
        if continues {
            ends_with = self.ending(&mut messages);
        }
        let sglang_drops = self.rules == EngineRules::Sglang && continues && ends_with.is_none();
        variables.insert("add_generation_prompt".into(), Value::Bool(generates && !sglang_drops));
        variables.insert("documents".into(), body.remove("documents").unwrap_or_default());
        self.insert_arguments(&mut body, &mut variables);
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

    /// `chat_template_kwargs` and the request fields that become template variables.
    fn insert_arguments(&self, body: &mut Map<String, Value>, variables: &mut Map<String, Value>) {
        if let Some(effort) = body.remove("reasoning_effort").filter(|effort| !effort.is_null()) {
            if self.rules == EngineRules::Vllm {
                variables.insert("enable_thinking".into(), Value::Bool(effort != "none"));
            }
            variables.insert("reasoning_effort".into(), effort);
        }
        if let Some(Value::Object(arguments)) = body.remove("chat_template_kwargs") {
            variables.extend(arguments);
        }
    }
}
