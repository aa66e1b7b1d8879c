//! Converts a request body into the variables of the template, as the engine's front end does.
//!
//! Bodies of `/v1/messages` and `/v1/responses` are converted to bodies of `/v1/chat/completions`
//! first (`foreign`). The keys of a body identify its API: `system` or Anthropic's blocks, `input`.

mod foreign;
pub(super) mod media;
mod messages;
mod parts;
mod sglang;
mod shaper;
mod tools;

pub(super) use foreign::from_anthropic;
pub(super) use shaper::{BILLING_LINE, CONTINUE_MARK, Conversation, PromptEnding, Shaper};

use super::error::RenderError;
use super::rules::EngineRules;
use serde_json::{Map, Value};

impl Shaper {
    /// Converts a body into variables.
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
    ) -> Conversation {
        let plain = |(role, content)| messages::plain_message(self, role, content);
        let mut messages: Vec<Value> = sent.map(plain).collect();
        // Cannot fail, because no message is continued.
        let ends_with = self.ending(&mut messages, false).ok().flatten();
        let generates = add_generation_prompt || self.rules == EngineRules::Sglang;
        let mut variables = Map::new();
        variables.insert("messages".into(), Value::Array(messages));
        variables.insert("tools".into(), Value::Null);
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), Value::Bool(generates));
        Conversation { variables, ends_with, other_tools: None }
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
        let generates = match self.rules {
            EngineRules::Vllm => {
                let effort = body.remove("reasoning_effort").filter(|effort| !effort.is_null());
                if let Some(effort) = effort {
                    let thinks = variables.entry("enable_thinking");
                    thinks.or_insert(Value::Bool(effort != "none"));
                    variables.insert("reasoning_effort".into(), effort);
                }
                body.get("add_generation_prompt") != Some(&Value::Bool(false))
            }
            EngineRules::Sglang => {
                let (effort, thinks) = sglang::effort(body);
                for (name, thinks) in ["thinking", "enable_thinking"].into_iter().zip([thinks; 2]) {
                    if let Some(thinks) = thinks {
                        variables.entry(name).or_insert(Value::Bool(thinks));
                    }
                }
                if let Some(effort) = effort {
                    variables.entry("reasoning_effort").or_insert(effort);
                }
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
