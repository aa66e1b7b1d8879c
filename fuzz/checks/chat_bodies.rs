//! Bodies of chats with everything that an encoder reads: tools with nested schemas, calls and
//! results, reasoning, parts, and fields beside the messages. The bytes of the fuzzer choose.

use forebay_text::chat::ChatApi;
use serde_json::{Map, Value, json};

/// Deepest schema and content.
const DEPTH_MAX: u8 = 12;
/// Most values of a body, which bounds its length.
const VALUES_MAX: usize = 600;

/// Choices from the bytes of the fuzzer; 0 at their end.
struct Choices<'a> {
    data: &'a [u8],
    values_left: usize,
}

impl<'a> Choices<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        *first
    }

    /// A number below `end`, 0 once the body has too many values.
    fn below(&mut self, end: u8) -> u8 {
        self.values_left = self.values_left.saturating_sub(1);
        if self.values_left == 0 { 0 } else { self.byte() % end.max(1) }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        let at = usize::from(self.below(u8::try_from(all.len()).unwrap_or(u8::MAX)));
        all.get(at).copied().expect("in range")
    }

    /// A text that may have bytes of the fuzzer in it.
    fn text(&mut self) -> String {
        match self.below(8) {
            0 => String::new(),
            1 => self.raw(),
            2 => "say \"it\" \\ \u{1}\n\tné 日本 😀 ".repeat(usize::from(self.below(6))),
            3 => " null | null".repeat(usize::from(self.below(9))),
            4 => self.one_of(&["<|end|>", "[INST]", "</s>", "{}", "NaN", "\\ud83d", " "]).into(),
            5 => self.value(3).to_string(),
            _ => self.one_of(&["a", "one two", "c00000001", "high", "f"]).into(),
        }
    }

    fn raw(&mut self) -> String {
        let most = usize::from(self.byte() % 64).min(self.data.len());
        let taken = self.data.get(..most).unwrap_or_default();
        self.data = self.data.get(most..).unwrap_or_default();
        String::from_utf8_lossy(taken).into_owned()
    }

    /// Any JSON.
    fn value(&mut self, depth: u8) -> Value {
        let kinds = if depth == 0 { 7 } else { 9 };
        match self.below(kinds) {
            0 => Value::Null,
            1 => json!(self.byte().is_multiple_of(2)),
            2 => json!(i64::from(self.byte()) - 100),
            3 => json!(f64::from(self.byte()) * 1e-7),
            4 => {
                let digits = ["2.50", "1e16", "-0.0", "12345678901234567890123"];
                serde_json::from_str(self.one_of(&digits)).expect("a number")
            }
            5 | 6 => json!(self.one_of(&["x", "", "null", "日本"])),
            7 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => self.object(depth),
        }
    }

    fn object(&mut self, depth: u8) -> Value {
        let mut fields = Map::new();
        for _ in 0..self.below(4) {
            let name = self.one_of(&["a", "b", "type", "", "ключ", "null"]);
            fields.insert(name.to_owned(), self.value(depth - 1));
        }
        Value::Object(fields)
    }

    /// A schema of a tool's parameters.
    fn schema(&mut self, depth: u8) -> Value {
        let mut schema = Map::new();
        let kind = self.below(if depth == 0 { 4 } else { 8 });
        match kind {
            0 => drop(schema.insert("type".into(), self.value(2))),
            1 => drop(schema.insert("type".into(), json!("number"))),
            2 | 3 => {
                schema.insert("type".into(), json!("string"));
                if kind == 3 {
                    let values = (0..self.below(5)).map(|_| json!(self.text())).collect();
                    schema.insert("enum".into(), values);
                }
            }
            4 => {
                schema.insert("type".into(), json!("array"));
                schema.insert("items".into(), self.schema(depth - 1));
            }
            5 => {
                let variants = (0..self.below(4)).map(|_| self.schema(depth - 1)).collect();
                schema.insert("oneOf".into(), variants);
            }
            _ => {
                schema.insert("type".into(), json!("object"));
                schema.insert("properties".into(), self.properties(depth));
                let names = (0..self.below(4)).map(|_| json!(self.one_of(&["a", "b", "z"])));
                schema.insert("required".into(), names.collect());
            }
        }
        self.annotate(&mut schema);
        Value::Object(schema)
    }

    fn properties(&mut self, depth: u8) -> Value {
        let mut properties = Map::new();
        for _ in 0..self.below(5) {
            let name = self.one_of(&["a", "b", "c", "long name", "ключ"]);
            properties.insert(name.to_owned(), self.schema(depth - 1));
        }
        Value::Object(properties)
    }

    fn annotate(&mut self, schema: &mut Map<String, Value>) {
        let marks = self.byte();
        if marks & 1 != 0 {
            schema.insert("description".into(), json!(self.text()));
        }
        if marks & 2 != 0 {
            schema.insert("default".into(), self.value(2));
        }
        if marks & 4 != 0 {
            schema.insert("nullable".into(), json!(true));
        }
        if marks & 8 != 0 {
            schema.insert("title".into(), json!(self.text()));
        }
        if marks & 16 != 0 {
            let examples = (0..self.below(6)).map(|_| json!(self.text())).collect();
            schema.insert("examples".into(), examples);
        }
    }

    fn function(&mut self) -> Value {
        let mut function = Map::new();
        function
            .insert("name".into(), json!(self.one_of(&["f", "g", "f", "g", "f", "<|call|>", ""])));
        if self.below(3) > 0 {
            function.insert("description".into(), json!(self.text()));
        }
        if self.below(5) < 4 {
            function.insert("parameters".into(), self.schema(DEPTH_MAX));
        }
        Value::Object(function)
    }

    fn tools(&mut self, api: ChatApi) -> Value {
        let count = self.below(4);
        let tool = |choices: &mut Self| match api {
            ChatApi::Chat => json!({ "type": "function", "function": choices.function() }),
            ChatApi::Messages => {
                let schema = choices.schema(DEPTH_MAX);
                json!({ "name": "f", "description": choices.text(), "input_schema": schema })
            }
            ChatApi::Responses => {
                let mut function = choices.function();
                function["type"] = json!("function");
                function
            }
        };
        (0..count).map(|_| tool(self)).collect()
    }

    /// A text or a list of parts.
    fn content(&mut self, api: ChatApi) -> Value {
        match self.below(4) {
            0 => Value::Null,
            1 => json!(self.text()),
            _ => (0..self.below(5)).map(|_| self.part(api)).collect(),
        }
    }

    fn part(&mut self, api: ChatApi) -> Value {
        match self.below(7) {
            0 => {
                let is_closed = self.byte().is_multiple_of(2);
                json!({ "type": "thinking", "thinking": self.text(), "closed": is_closed })
            }
            1 => json!({ "type": "refusal", "refusal": self.text() }),
            2 if api == ChatApi::Messages => used(self.id(), &self.object(3)),
            3 if api == ChatApi::Messages => {
                let content = if self.below(2) == 0 { json!(self.text()) } else { json!([]) };
                json!({ "type": "tool_result", "tool_use_id": self.id(), "content": content })
            }
            4 if api == ChatApi::Responses => json!({ "type": "input_text", "text": self.text() }),
            _ => json!({ "type": "text", "text": self.text() }),
        }
    }

    fn id(&mut self) -> &'static str {
        self.one_of(&["c00000001", "c00000002", "call_3", "", "null"])
    }

    fn calls(&mut self) -> Value {
        let call = |choices: &mut Self| {
            let arguments = match choices.below(4) {
                0 => choices.text(),
                _ => choices.object(4).to_string(),
            };
            let function = json!({ "name": choices.one_of(&["f", "g"]), "arguments": arguments });
            json!({ "id": choices.id(), "type": "function", "function": function })
        };
        (0..self.below(4)).map(|_| call(self)).collect()
    }

    fn message(&mut self, api: ChatApi) -> Value {
        let roles = ["user", "assistant", "tool", "assistant", "system", "developer", "ipython"];
        let role = self.one_of(&roles);
        let mut message = json!({ "role": role, "content": self.content(api) });
        if role == "assistant" {
            if self.below(2) > 0 {
                message["tool_calls"] = self.calls();
            }
            if self.below(3) > 1 {
                message["reasoning_content"] = json!(self.text());
            }
        }
        if role == "tool" {
            message["tool_call_id"] = json!(self.id());
        }
        message
    }

    /// An item of `/v1/responses`.
    fn item(&mut self) -> Value {
        match self.below(5) {
            0 => {
                let arguments = self.object(4).to_string();
                called(self.id(), &arguments)
            }
            1 => {
                let id = self.id();
                json!({ "type": "function_call_output", "call_id": id, "output": self.text() })
            }
            2 => json!({ "type": "reasoning", "content": [{ "text": self.text() }] }),
            _ => self.message(ChatApi::Responses),
        }
    }
}

/// Conversations that engines take: mostly each call has its result, and roles alternate.
impl Choices<'_> {
    fn conversation(&mut self, api: ChatApi, turns: u8) -> Vec<Value> {
        let mut messages = Vec::new();
        if api != ChatApi::Messages && self.below(2) == 0 {
            messages.push(json!({ "role": "system", "content": self.plain(api) }));
        }
        for turn in 0..=turns {
            if turn > 0 {
                messages.push(json!({ "role": "assistant", "content": self.answer(api) }));
            }
            messages.push(json!({ "role": "user", "content": self.plain(api) }));
            for _ in 0..self.below(3) {
                self.calls_with_results(api, &mut messages);
            }
        }
        messages
    }

    /// A text, or parts of text.
    fn plain(&mut self, api: ChatApi) -> Value {
        let kind = if api == ChatApi::Responses { "input_text" } else { "text" };
        match self.below(3) {
            0 => {
                (0..=self.below(3)).map(|_| json!({ "type": kind, "text": self.text() })).collect()
            }
            _ => json!(self.text()),
        }
    }

    fn answer(&mut self, api: ChatApi) -> Value {
        match self.below(4) {
            0 if api == ChatApi::Chat => json!([
                { "type": "thinking", "thinking": self.text() },
                { "type": "text", "text": self.text() },
            ]),
            _ => json!(self.text()),
        }
    }

    fn calls_with_results(&mut self, api: ChatApi, messages: &mut Vec<Value>) {
        let count = usize::from(self.below(3)) + 1;
        let ids = ["c00000001", "c00000002", "c00000003"];
        let ids = ids.get(..count).expect("at most three");
        let inputs: Vec<Value> = ids.iter().map(|_| self.object(4)).collect();
        let results: Vec<String> = ids.iter().map(|_| self.text()).collect();
        let calls = ids.iter().zip(&inputs);
        let results = ids.iter().zip(&results);
        match api {
            ChatApi::Chat => {
                let calls = calls.map(|(id, input)| {
                    let function = json!({ "name": "f", "arguments": input.to_string() });
                    json!({ "id": id, "type": "function", "function": function })
                });
                let calls: Value = calls.collect();
                let mut message =
                    json!({ "role": "assistant", "content": null, "tool_calls": calls });
                if self.below(3) == 0 {
                    message["reasoning_content"] = json!(self.text());
                }
                messages.push(message);
                messages.extend(results.map(
                    |(id, text)| json!({ "role": "tool", "tool_call_id": id, "content": text }),
                ));
            }
            ChatApi::Messages => {
                let calls: Value = calls.map(|(id, input)| used(id, input)).collect();
                let results: Value = results.map(|(id, text)| returned(id, text)).collect();
                messages.push(json!({ "role": "assistant", "content": calls }));
                messages.push(json!({ "role": "user", "content": results }));
            }
            ChatApi::Responses => {
                messages.push(json!({ "type": "reasoning", "content": [{ "text": self.text() }] }));
                messages.extend(calls.map(|(id, input)| {
                    let arguments = input.to_string();
                    called(id, &arguments)
                }));
                messages.extend(results.map(|(id, text)| {
                    json!({ "type": "function_call_output", "call_id": id, "output": text })
                }));
            }
        }
    }
}

fn called(id: &str, arguments: &str) -> Value {
    json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": arguments })
}

fn used(id: &str, input: &Value) -> Value {
    json!({ "type": "tool_use", "id": id, "name": "f", "input": input })
}

fn returned(id: &str, text: &str) -> Value {
    json!({ "type": "tool_result", "tool_use_id": id, "content": text })
}

/// The body that the bytes choose.
pub(crate) fn body(api: ChatApi, data: &[u8]) -> Vec<u8> {
    let mut choices = Choices { data, values_left: VALUES_MAX };
    let count = choices.below(12);
    let is_sound = choices.below(4) > 0;
    let messages: Vec<Value> = match api {
        _ if is_sound => choices.conversation(api, count / 2),
        ChatApi::Responses => (0..=count).map(|_| choices.item()).collect(),
        _ => (0..=count).map(|_| choices.message(api)).collect(),
    };
    let key = if api == ChatApi::Responses { "input" } else { "messages" };
    let mut body = json!({ key: messages });
    if choices.below(3) > 0 {
        body["tools"] = choices.tools(api);
    }
    match choices.below(6) {
        0 if !is_sound => {
            body["reasoning_effort"] = json!(choices.one_of(&["low", "high", "none", "max"]));
        }
        1 => body["system"] = json!(choices.text()),
        2 => body["instructions"] = json!(choices.text()),
        3 => body["thinking"] = json!({ "type": choices.one_of(&["disabled", "enabled"]) }),
        _ => {}
    }
    body.to_string().into_bytes()
}
