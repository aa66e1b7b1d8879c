//! Tools as the template gets them: engines read them into typed objects and write those out again, so keys come in
//! the order of their classes, missing ones as null.

use super::{EngineRules, Shaper};
use serde_json::{Map, Value};

impl Shaper {
    /// The `tools` variable; null when there are none.
    pub(super) fn tools(&self, body: &mut Map<String, Value>) -> Value {
        let choice = body.get("tool_choice");
        let Some(Value::Array(mut tools)) = body.get("tools").cloned() else {
            return Value::Null;
        };
        if self.rules == EngineRules::Sglang {
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

    fn tool(&self, tool: Value) -> Value {
        let Value::Object(mut tool) = tool else { return tool };
        let Some(Value::Object(mut function)) = tool.remove("function") else {
            return Value::Object(tool);
        };
        let mut shaped = Map::new();
        let mut ordered = Map::new();
        let (always, if_set): (&[&str], &[&str]) = match self.rules {
            EngineRules::Vllm => {
                (&["name", "description", "parameters"], &["strict", "defer_loading"])
            }
            EngineRules::Sglang => (&["description", "name", "parameters"], &[]),
        };
        for key in always {
            ordered.insert((*key).to_owned(), function.remove(*key).unwrap_or_default());
        }
        for key in if_set {
            let value = function.remove(*key).filter(|value| !value.is_null());
            ordered.extend(value.map(|value| ((*key).to_owned(), value)));
        }
        if self.rules == EngineRules::Sglang {
            let strict = function.remove("strict").unwrap_or(Value::Bool(false));
            ordered.insert("strict".into(), strict);
        }
        shaped.insert("type".into(), tool.remove("type").unwrap_or_else(|| "function".into()));
        shaped.insert("function".into(), Value::Object(ordered));
        Value::Object(shaped)
    }
}
