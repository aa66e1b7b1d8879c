//! Findings of SGLang's Rust server about a template at its load: the server renders short
//! conversations, and looks at what fails and what is printed.

use crate::chat::environment::TEMPLATE;
use crate::chat::special::SpecialTokens;
use minijinja::Environment;
use serde_json::{Map, Value, json};

/// Names of special tokens that SGLang's renderer sets, to none when the model has no such token.
pub(crate) const SGLANG_TOKENS: [&str; 3] = ["bos_token", "eos_token", "unk_token"];

/// Properties of a template for requests with tools, or for requests without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TemplateTraits {
    /// The template refuses a system message that is not first: such messages become user messages.
    pub(crate) refuses_late_system: bool,
    /// The template refuses neighboring user messages: they are merged.
    pub(crate) refuses_user_runs: bool,
    /// The template prints arguments of tool calls that are strings, so they stay the client's.
    pub(crate) takes_text_arguments: bool,
}

/// Properties of a template that are the same with and without tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RustTraits {
    /// With requests that offer no tool.
    plain: TemplateTraits,
    /// With requests that offer tools.
    with_tools: TemplateTraits,
    /// The template prints only contents that are lists.
    pub(crate) needs_parts: bool,
    /// The template reads `reasoning_content`; else the text goes into the content.
    pub(crate) reads_reasoning: bool,
    /// SGLang rewrites the template's printing of reasoning (Gemma 4), which is not followed.
    pub(crate) is_rewritten: bool,
}

impl RustTraits {
    /// Renders probes. `source` is the template as prepared.
    pub(crate) fn probe(
        environment: &Environment<'_>,
        source: &str,
        special: &SpecialTokens,
    ) -> Self {
        let of = |tools: Value| TemplateProbe { environment, source, special, tools }.traits();
        let parameters = json!({ "type": "object", "properties": {} });
        let tool = json!([{ "type": "function", "function": {
            "name": "probe", "description": "", "parameters": parameters,
        }}]);
        let reads_reasoning = source.contains("reasoning_content");
        let is_rewritten = !reads_reasoning
            && source.contains("<|channel>thought")
            && source.contains("<|tool_call>call:")
            && ["message.get('reasoning')", "message.get(\"reasoning\")"]
                .iter()
                .any(|part| source.contains(part));
        Self {
            plain: of(Value::Null),
            with_tools: of(tool),
            needs_parts: needs_parts(environment),
            reads_reasoning,
            is_rewritten,
        }
    }

    /// The properties for a request.
    pub(crate) fn of(&self, has_tools: bool) -> &TemplateTraits {
        if has_tools { &self.with_tools } else { &self.plain }
    }
}

struct TemplateProbe<'a> {
    environment: &'a Environment<'a>,
    source: &'a str,
    special: &'a SpecialTokens,
    tools: Value,
}

impl TemplateProbe<'_> {
    fn traits(&self) -> TemplateTraits {
        let takes_text_arguments = self.takes_text_arguments();
        let says = |role: &str, text: &str| json!({ "role": role, "content": text });
        let system = |text: &str| says("system", text);
        let user = |text: &str| says("user", text);
        if self.refuses(json!([system("s"), user("u")])) {
            return TemplateTraits { takes_text_arguments, ..TemplateTraits::default() };
        }
        let late = json!([system("s0"), user("u"), system("s1")]);
        let answer = says("assistant", "a");
        let later = json!([system("s0"), user("u"), answer, system("s1"), user("u2")]);
        TemplateTraits {
            refuses_late_system: self.refuses(late) || self.refuses(later),
            refuses_user_runs: self.refuses(json!([system("s"), user("u0"), user("u1")])),
            takes_text_arguments,
        }
    }

    fn refuses(&self, messages: Value) -> bool {
        self.render(messages, false).is_none()
    }

    fn takes_text_arguments(&self) -> bool {
        let arguments = r#"{"probe": "value"}"#;
        if !self.source.contains("arguments is string") {
            return false;
        }
        let messages = json!([
            { "role": "user", "content": "u" },
            { "role": "assistant", "content": "", "tool_calls": [{
                "id": "call_probe", "type": "function",
                "function": { "name": "probe", "arguments": arguments },
            }]},
            { "role": "tool", "tool_call_id": "call_probe", "content": "r" },
        ]);
        self.render(messages, true).is_some_and(|text| text.contains(arguments))
    }

    fn render(&self, messages: Value, generates: bool) -> Option<String> {
        let mut variables = Map::new();
        variables.insert("messages".into(), messages);
        variables.insert("add_generation_prompt".into(), generates.into());
        variables.insert("tools".into(), self.tools.clone());
        for name in SGLANG_TOKENS {
            variables.insert(name.to_owned(), self.special.text(name).into());
        }
        self.environment.get_template(TEMPLATE).ok()?.render(variables).ok()
    }
}

/// True if the template prints a list's text, and not a string.
fn needs_parts(environment: &Environment<'_>) -> bool {
    let prints = |content: Value| {
        let variables = json!({ "messages": [{ "role": "user", "content": content }],
            "add_generation_prompt": false });
        let template = environment.get_template(TEMPLATE);
        let text = template.and_then(|template| template.render(variables)).unwrap_or_default();
        text.contains("template_test")
    };
    prints(json!([{ "type": "text", "text": "template_test" }])) && !prints("template_test".into())
}
