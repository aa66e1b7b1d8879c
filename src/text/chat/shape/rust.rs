//! Converts a chat body into the variables of the template for a Rust frontend. The Rust frontends
//! serve no other API, and leave variables undefined that Python's set to none.

use super::shaper::{Conversation, PromptEnding, Shaper};
use super::{messages, sglang, sglang_rust, vllm_rust};
use crate::chat::error::RenderError;
use crate::chat::rules::EngineRules;
use serde_json::{Map, Value, json};

impl Shaper {
    pub(super) fn shape_for_rust(
        &self,
        mut body: Map<String, Value>,
    ) -> Result<Conversation, RenderError> {
        if body.contains_key("system") {
            return Err(RenderError::Unsupported("the engine has no API of this form"));
        }
        let Some(Value::Array(sent)) = body.remove("messages") else {
            return Err(RenderError::NoMessages);
        };
        match self.rules {
            EngineRules::SglangRust => self.shape_for_sglang_rust(sent, body),
            _ => self.shape_for_vllm_rust(sent, body),
        }
    }

    fn shape_for_vllm_rust(
        &self,
        sent: Vec<Value>,
        mut body: Map<String, Value>,
    ) -> Result<Conversation, RenderError> {
        let generates = body.get("add_generation_prompt").and_then(Value::as_bool);
        let continues = body.get("continue_final_message") == Some(&Value::Bool(true));
        let shaped: Result<Vec<Value>, _> =
            sent.into_iter().map(|message| vllm_rust::message(message, self.format)).collect();
        let mut messages = shaped?;
        let mut tools = self.tools(&body);
        for declared in messages.iter().filter_map(|message| message.get("tools")) {
            let declared = declared.as_array().cloned().unwrap_or_default();
            match &mut tools {
                Value::Array(tools) => tools.extend(declared),
                tools => *tools = Value::Array(declared),
            }
        }
        let ends_with = if continues {
            let last = messages.last_mut();
            let last = last.filter(|it| it.get("role").is_some_and(|role| role == "assistant"));
            let text = last.filter(|_| generates != Some(true)).and_then(messages::mark_end);
            Some(text.ok_or(RenderError::Unsupported("nothing that can be continued"))?)
        } else {
            None
        };
        let mut arguments = template_arguments(&mut body)?;
        let own = body.remove("chat_template").filter(|own| !own.is_null());
        if own.is_some() || arguments.contains_key("messages") {
            return Err(RenderError::Unsupported("the request brings its own chat template"));
        }
        if let Some(effort) = body.remove("reasoning_effort").filter(|effort| !effort.is_null()) {
            let thinks = Value::Bool(effort != "none");
            arguments.entry("enable_thinking").or_insert(thinks);
            arguments.insert("reasoning_effort".into(), effort);
        }
        let mut variables = Map::new();
        variables.insert("messages".into(), Value::Array(messages));
        let generates = generates != Some(false) && !continues;
        variables.insert("add_generation_prompt".into(), Value::Bool(generates));
        variables.insert("continue_final_message".into(), Value::Bool(continues));
        for (name, value) in [("tools", Some(tools)), ("documents", body.remove("documents"))] {
            let value = value.filter(|value| !value.is_null());
            variables.extend(value.map(|value| (name.to_owned(), value)));
        }
        variables.extend(arguments);
        let ends_with = ends_with.map(PromptEnding::CutAtMark);
        Ok(Conversation { variables, ends_with, other_tools: None })
    }

    fn shape_for_sglang_rust(
        &self,
        sent: Vec<Value>,
        mut body: Map<String, Value>,
    ) -> Result<Conversation, RenderError> {
        let continues = body.get("continue_final_message") == Some(&Value::Bool(true));
        let tools = self.tools(&body);
        let (messages, continued) =
            sglang_rust::messages(sent, continues, tools.is_array(), &self.traits)?;
        let mut variables = template_arguments(&mut body)?;
        let (effort, thinks) = sglang::effort(&mut body);
        sglang::insert_effort(&mut variables, effort, thinks);
        variables.insert("messages".into(), Value::Array(messages));
        variables.insert("tools".into(), tools);
        variables.insert("add_generation_prompt".into(), Value::Bool(true));
        let ends_with = continued.map(PromptEnding::Append);
        Ok(Conversation { variables, ends_with, other_tools: None })
    }

    /// Converts messages of a role and a string.
    pub(super) fn plain_for_rust<'a>(
        &self,
        sent: impl Iterator<Item = (&'a str, &'a str)>,
        add_generation_prompt: bool,
    ) -> Result<Conversation, RenderError> {
        let sent: Vec<Value> =
            sent.map(|(role, content)| json!({ "role": role, "content": content })).collect();
        let mut body = Map::new();
        body.insert("messages".into(), Value::Array(sent));
        body.insert("add_generation_prompt".into(), Value::Bool(add_generation_prompt));
        self.shape_for_rust(body)
    }
}

/// Takes the request's arguments of the template, `chat_template_kwargs`.
fn template_arguments(body: &mut Map<String, Value>) -> Result<Map<String, Value>, RenderError> {
    match body.remove("chat_template_kwargs") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(arguments)) if !arguments.contains_key("chat_template") => Ok(arguments),
        Some(_) => Err(RenderError::Unsupported("arguments of the template")),
    }
}
