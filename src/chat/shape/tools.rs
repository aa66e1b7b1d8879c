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
        let (order, keeps_others): (&[(&str, Value)], bool) = match self.rules {
            EngineRules::Vllm => (
                &[("name", Value::Null), ("description", Value::Null), ("parameters", Value::Null)],
                true,
            ),
            EngineRules::Sglang => (
                &[
                    ("description", Value::Null),
                    ("name", Value::Null),
                    ("parameters", Value::Null),
                    ("strict", Value::Bool(false)),
                ],
                false,
            ),
        };
        let mut ordered = Map::new();
        for (key, default) in order {
            let value = function.shift_remove(*key).unwrap_or_else(|| default.clone());
            ordered.insert((*key).to_owned(), value);
        }
        let mut shaped = Map::new();
        let kind = tool.shift_remove("type").unwrap_or_else(|| "function".into());
        if keeps_others {
            ordered.extend(function);
        }
        shaped.insert("type".into(), kind);
        shaped.insert("function".into(), Value::Object(ordered));
        if keeps_others {
            shaped.extend(tool);
        }
        Value::Object(shaped)
    }
}
