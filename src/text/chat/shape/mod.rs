//! A request body turned into the variables of the template, as the engine's own front end does it.
//!
//! Bodies of `/v1/chat/completions` come first; those of `/v1/messages` and `/v1/responses` are
//! brought into that form (`foreign`). Which API a body belongs to shows in its keys: `system` or
//! Anthropic's blocks, `input`.

mod foreign;
pub(super) mod media;
mod messages;
mod sglang;
mod tools;

use super::rules::{ContentFormat, EngineRules};
use super::template::RenderError;
use serde_json::{Map, Value};

/// Start of a line that Claude Code puts before its instructions. It changes with every request, so
/// vLLM takes it out of system messages (`renderers/chat_utils` of vLLM 0.33).
pub(super) const BILLING_LINE: &str = "x-anthropic-billing-header";

/// What transformers puts behind a message that is to be continued, to find its end in the rendered
/// text.
pub(super) const CONTINUE_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

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
    pub(super) ends_with: Option<PromptEnding>,
    /// What the engine tries as `tools` when the template fails.
    pub(super) other_tools: Option<Value>,
}

/// How a prompt that continues its last message ends.
#[derive(Debug)]
pub(super) enum PromptEnding {
    /// Cut the rendered text at [`CONTINUE_MARK`], which stands behind this text (vLLM, by way of
    /// transformers).
    CutAtMark(String),
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
        let tools = self.tools(&body);
        let continues = body.get("continue_final_message") == Some(&Value::Bool(true));
        let ends_with = self.ending(&mut messages, continues)?;
        let mut variables = self.arguments(&mut body)?;
        variables.insert("messages".into(), Value::Array(messages));
        let other_tools = self.other_tools(&tools);
        variables.insert("tools".into(), tools);
        Ok(Conversation { variables, ends_with, other_tools })
    }

    /// Messages of a role and a string each.
    pub(super) fn plain<'a>(
        &self,
        sent: impl Iterator<Item = (&'a str, &'a str)>,
        add_generation_prompt: bool,
    ) -> Conversation {
        let plain = |(role, content)| messages::plain_message(self, role, content);
        let mut messages: Vec<Value> = sent.map(plain).collect();
        // Cannot fail: nothing is continued.
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

    /// `chat_template_kwargs`, and the request fields that become variables.
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
                // A field of the request that chats do not have here.
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
