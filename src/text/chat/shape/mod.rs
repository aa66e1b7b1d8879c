//! Converts a request body into the variables of the template, as the engine's front end does.
//!
//! Bodies of `/v1/messages` and `/v1/responses` are converted to bodies of `/v1/chat/completions`
//! first (`anthropic`, `foreign`).

mod anthropic;
mod foreign;
pub(super) mod media;
mod messages;
mod parts;
mod rust;
mod sglang;
mod sglang_rust;
mod shaper;
mod tools;
mod vllm_rust;

pub(super) use anthropic::AnthropicRules;
pub(super) use shaper::{BILLING_LINE, CONTINUE_MARK, Conversation, PromptEnding, Shaper};

use super::error::RenderError;
use super::message::ChatApi;
use super::rules::EngineRules;
use serde_json::{Map, Value};

impl Shaper {
    /// Converts a body into variables.
    pub(super) fn shape(
        &self,
        mut body: Map<String, Value>,
        api: ChatApi,
    ) -> Result<Conversation, RenderError> {
        if self.rules.is_rust() {
            return self.shape_for_rust(body);
        }
        foreign::to_chat(&mut body, api, self.anthropic())?;
        if anthropic::names_tools(&body) {
            return Err(RenderError::Unsupported("tools that a result names"));
        }
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
        let tools = self.tools(&body);
        let continues = body.get("continue_final_message") == Some(&Value::Bool(true));
        let ends_with = self.ending(&mut messages, continues)?;
        let mut variables = self.arguments(&mut body)?;
        variables.insert("messages".into(), Value::Array(messages));
        let other_tools = self.other_tools(&tools);
        variables.insert("tools".into(), tools);
        Ok(Conversation { variables, ends_with, other_tools })
    }

    /// Converts messages of a role and a string.
    pub(super) fn plain<'a>(
        &self,
        sent: impl Iterator<Item = (&'a str, &'a str)>,
        add_generation_prompt: bool,
    ) -> Result<Conversation, RenderError> {
        if self.rules.is_rust() {
            return self.plain_for_rust(sent, add_generation_prompt);
        }
        let plain = |(role, content)| messages::plain_message(self, role, content);
        let mut messages: Vec<Value> = sent.map(plain).collect();
        let ends_with = self.ending(&mut messages, false)?;
        let generates = add_generation_prompt || self.rules == EngineRules::Sglang;
        let mut variables = Map::new();
        variables.insert("messages".into(), Value::Array(messages));
        variables.insert("tools".into(), Value::Null);
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), Value::Bool(generates));
        Ok(Conversation { variables, ends_with, other_tools: None })
    }

    fn ending(
        &self,
        messages: &mut Vec<Value>,
        continues: bool,
    ) -> Result<Option<PromptEnding>, RenderError> {
        if self.rules == EngineRules::Sglang {
            let text = sglang::take_last_answer(messages, continues);
            if text.is_some() {
                messages.pop();
            }
            return Ok(text.map(PromptEnding::Append));
        }
        if !continues {
            return Ok(None);
        }
        let last = messages.last_mut().and_then(messages::mark_end);
        let last = last.ok_or(RenderError::Unsupported("nothing that can be continued"))?;
        Ok(Some(PromptEnding::CutAtMark(last)))
    }

    /// Takes `chat_template_kwargs` and the request fields that become variables.
    fn arguments(&self, body: &mut Map<String, Value>) -> Result<Map<String, Value>, RenderError> {
        let mut variables = match body.remove("chat_template_kwargs") {
            Some(Value::Object(arguments)) => arguments,
            _ => Map::new(),
        };
        let own = body.remove("chat_template").filter(|_| self.rules == EngineRules::Vllm);
        if own.is_some_and(|own| !own.is_null()) || variables.contains_key("chat_template") {
            return Err(RenderError::Unsupported("the request brings its own chat template"));
        }
        let generates = match self.rules.is_sglang() {
            false => {
                let effort = body.remove("reasoning_effort").filter(|effort| !effort.is_null());
                if let Some(effort) = effort {
                    let thinks = variables.entry("enable_thinking");
                    thinks.or_insert(Value::Bool(effort != "none"));
                    variables.insert("reasoning_effort".into(), effort);
                }
                body.get("add_generation_prompt") != Some(&Value::Bool(false))
            }
            true => {
                let (effort, thinks) = sglang::effort(body);
                sglang::insert_effort(&mut variables, effort, thinks);
                // SGLang's chat requests have no field `add_generation_prompt`.
                true
            }
        };
        variables.insert("add_generation_prompt".into(), Value::Bool(generates));
        let documents = body.remove("documents").filter(|_| self.rules == EngineRules::Vllm);
        match documents.filter(|documents| !documents.is_null()) {
            Some(documents) => {
                variables.insert("documents".into(), documents);
            }
            None => {
                variables.entry("documents").or_insert(Value::Null);
            }
        }
        Ok(variables)
    }
}
