//! Tools in the form for the template. Engines read tools into typed objects and write these, so
//! keys are in the order of the classes, and absent keys are null.

use super::sglang;
use super::shaper::Shaper;
use crate::chat::rules::EngineRules;
use serde_json::{Map, Value, json};

impl Shaper {
    /// The `tools` variable; null without tools.
    pub(in crate::chat) fn tools(&self, body: &Map<String, Value>) -> Value {
        let choice = body.get("tool_choice");
        let Some(Value::Array(mut tools)) = body.get("tools").cloned() else {
            return Value::Null;
        };
        if self.rules.is_sglang() {
            if choice.and_then(Value::as_str) == Some("none") {
                return Value::Null;
            }
            if let Some(chosen) = choice.and_then(|choice| choice.pointer("/function/name")) {
                tools.retain(|tool| tool.pointer("/function/name") == Some(chosen));
            }
        }
        if tools.is_empty() {
            return Value::Null;
        }
        tools.into_iter().map(|tool| self.tool(tool)).collect()
    }

    /// The form that the engine tries when the template fails on `tools`: the functions without
    /// their outer objects.
    pub(in crate::chat) fn other_tools(&self, tools: &Value) -> Option<Value> {
        let tools = tools.as_array().filter(|_| self.rules == EngineRules::Sglang)?;
        Some(tools.iter().map(|tool| tool.get("function").unwrap_or(tool).clone()).collect())
    }

    fn tool(&self, tool: Value) -> Value {
        let Value::Object(mut tool) = tool else { return tool };
        let Some(Value::Object(function)) = tool.remove("function") else {
            return Value::Object(tool);
        };
        if self.rules.is_sglang() {
            return sglang::tool(tool, function);
        }
        if self.rules == EngineRules::VllmRust {
            return of_vllm_rust(tool, function);
        }
        let outer = tool.remove("defer_loading").filter(|value| !value.is_null());
        let function = ordered(function, outer.clone());
        let mut shaped = Map::new();
        shaped.insert("type".into(), tool.remove("type").unwrap_or_else(|| "function".into()));
        shaped.insert("function".into(), Value::Object(function));
        shaped.extend(outer.map(|outer| ("defer_loading".to_owned(), outer)));
        Value::Object(shaped)
    }
}

/// The form of a tool in `vllm-rs`, also for tools of a developer message.
pub(super) fn function_tool(tool: Value) -> Value {
    let Value::Object(mut tool) = tool else { return tool };
    match tool.remove("function") {
        Some(Value::Object(function)) => of_vllm_rust(tool, function),
        _ => Value::Object(tool),
    }
}

fn of_vllm_rust(mut tool: Map<String, Value>, function: Map<String, Value>) -> Value {
    let outer = tool.remove("defer_loading").filter(|value| !value.is_null());
    json!({ "type": "function", "function": ordered(function, outer) })
}

/// A function's keys in the order of vLLM's class; `loading` is the default of `defer_loading`.
fn ordered(mut function: Map<String, Value>, loading: Option<Value>) -> Map<String, Value> {
    let mut ordered = Map::new();
    for key in ["name", "description", "parameters"] {
        ordered.insert(key.to_owned(), function.remove(key).unwrap_or_default());
    }
    for (key, default) in [("strict", None), ("defer_loading", loading)] {
        let value = function.remove(key).filter(|value| !value.is_null()).or(default);
        ordered.extend(value.map(|value| (key.to_owned(), value)));
    }
    ordered
}
