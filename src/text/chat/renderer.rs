//! The template engine with a template and the rules of an inference engine.

use super::environment::{self, TEMPLATE, TemplateClock};
use super::error::RenderError;
use super::frontends::rust_environment;
use super::frontends::rust_source;
use super::frontends::rust_traits::{RustTraits, SGLANG_TOKENS};
use super::message::{ChatApi, ChatRole};
use super::printing::python::is_space;
use super::rules::{ContentFormat, EngineRules};
use super::shape::{CONTINUE_MARK, Conversation, PromptEnding, Shaper};
use super::source::{content_format, has_generation_blocks};
use super::special::SpecialTokens;
use super::values::from_json;
use minijinja::Environment;
use serde_json::{Map, Value, json};

/// A template with its environment and rules.
#[derive(Debug)]
pub(super) struct Renderer {
    environment: Environment<'static>,
    pub(super) shaper: Shaper,
    special: Map<String, Value>,
}

impl Renderer {
    pub(super) fn try_new(
        source: &str,
        special: &SpecialTokens,
        rules: EngineRules,
        clock: TemplateClock,
    ) -> Result<Self, minijinja::Error> {
        let environment = match rules.is_rust() {
            true => rust_environment::build(rust_source::prepare(source, rules), clock, rules)?,
            false => environment::build(source, clock)?,
        };
        let traits = match rules {
            EngineRules::SglangRust => RustTraits::probe(&environment, source, special),
            _ => RustTraits::default(),
        };
        let format = match rules {
            EngineRules::VllmRust => rust_source::vllm_format(source),
            EngineRules::SglangRust if traits.needs_parts => ContentFormat::Parts,
            EngineRules::SglangRust => ContentFormat::Text,
            EngineRules::Vllm | EngineRules::Sglang => content_format(source, rules),
        };
        let knows_developer = source.contains("'developer'") || source.contains("\"developer\"");
        let merges_systems = rules == EngineRules::Vllm && refuses_late_systems(source);
        let shaper = Shaper {
            rules,
            format,
            knows_developer,
            merges_systems,
            disabled_effort: "none",
            traits,
        };
        let mut renderer = Self { environment, shaper, special: variables_of(special, rules) };
        if rules == EngineRules::Vllm {
            renderer.shaper.disabled_effort = renderer.disabled_effort();
        }
        Ok(renderer)
    }

    /// The effort that vLLM finds by the same trials for requests that disable thinking: `low`
    /// where the template refuses `none`, or takes it for another effort.
    fn disabled_effort(&self) -> &'static str {
        let prompt = |effort: &str| {
            let body = json!({ "messages": [{ "role": "user", "content": "Hi" }],
                "reasoning_effort": effort });
            let Value::Object(body) = body else { return None };
            let conversation = self.shaper.shape(body, ChatApi::Chat).ok()?;
            let mut out = Vec::new();
            self.render(conversation, &mut out).ok().map(|()| out)
        };
        let Some(none) = prompt("none") else { return "low" };
        let is_same = |effort: &&str| prompt(effort).is_some_and(|prompt| prompt == none);
        if EFFORTS.iter().any(is_same) { "low" } else { "none" }
    }

    /// Renders plain messages as [`super::ChatTemplate::render_full`] would.
    pub(super) fn render_plain(
        &self,
        messages: &[(ChatRole, &str)],
        add_generation_prompt: bool,
    ) -> Option<String> {
        let conversation = self.plain(messages.iter().copied(), add_generation_prompt).ok()?;
        let mut out = Vec::new();
        self.render(conversation, &mut out).ok()?;
        String::from_utf8(out).ok()
    }

    pub(super) fn plain<'a>(
        &self,
        messages: impl Iterator<Item = (ChatRole, &'a str)>,
        add_generation_prompt: bool,
    ) -> Result<Conversation, RenderError> {
        let messages = messages.map(|(role, content)| (role.name(), content));
        self.shaper.plain(messages, add_generation_prompt)
    }

    pub(super) fn render(
        &self,
        conversation: Conversation,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let Conversation { mut variables, ends_with, other_tools } = conversation;
        // Only SGLang's Rust server lets its own tokens win over arguments of the request.
        let wins = self.shaper.rules == EngineRules::SglangRust;
        for (name, text) in &self.special {
            if wins || !variables.contains_key(name) {
                variables.insert(name.clone(), text.clone());
            }
        }
        let text = match (self.run(&variables), other_tools) {
            (Err(_), Some(tools)) => {
                variables.insert("tools".into(), tools);
                self.run(&variables)?
            }
            (text, _) => text?,
        };
        match ends_with {
            None => out.extend_from_slice(text.as_bytes()),
            Some(PromptEnding::Append(ending)) => {
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(ending.as_bytes());
            }
            Some(PromptEnding::CutAtMark(last)) => {
                let cut = cut_at_mark(&text, &last).ok_or(RenderError::Unsupported(
                    "the template does not print the message to be continued",
                ))?;
                out.extend_from_slice(cut.as_bytes());
            }
        }
        Ok(())
    }

    fn run(&self, variables: &Map<String, Value>) -> Result<String, minijinja::Error> {
        let value = |json: &Value| match self.shaper.rules.is_rust() {
            true => minijinja::Value::from_serialize(json),
            false => from_json(json),
        };
        let variables: minijinja::Value =
            variables.iter().map(|(name, json)| (name.as_str(), value(json))).collect();
        self.environment.get_template(TEMPLATE)?.render(variables)
    }
}

/// Efforts of Anthropic's API.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Does vLLM find that the template refuses late system messages? vLLM tries the template in an
/// environment without the functions and blocks of transformers, and takes each failure for a
/// refusal.
fn refuses_late_systems(source: &str) -> bool {
    if has_generation_blocks(source) {
        return true;
    }
    let Ok(mut environment) = environment::build(source, TemplateClock::System) else {
        return true;
    };
    environment.remove_global("raise_exception");
    environment.remove_global("strftime_now");
    let message = |role: &str| json!({ "role": role, "content": "t" });
    let messages = ["system", "user", "system", "user"].map(message);
    let variables = json!({ "messages": messages, "add_generation_prompt": false });
    let variables = variables.as_object().into_iter().flatten();
    let variables: minijinja::Value =
        variables.map(|(name, json)| (name.as_str(), from_json(json))).collect();
    let rendered = environment.get_template(TEMPLATE).and_then(|it| it.render(variables));
    rendered.is_err()
}

/// Special tokens as variables. The Rust frontends know few of them, and SGLang's sets absent
/// tokens to none.
fn variables_of(special: &SpecialTokens, rules: EngineRules) -> Map<String, Value> {
    let all = || special.iter().map(|(name, text)| (name.to_owned(), Value::from(text)));
    match rules {
        EngineRules::Vllm | EngineRules::Sglang => all().collect(),
        EngineRules::VllmRust => {
            all().filter(|(name, _)| VLLM_RUST_TOKENS.contains(&name.as_str())).collect()
        }
        EngineRules::SglangRust => {
            let token = |name: &&str| ((*name).to_owned(), special.text(name).into());
            SGLANG_TOKENS.iter().map(token).collect()
        }
    }
}

/// Special tokens that `vllm-rs` gives to templates.
const VLLM_RUST_TOKENS: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

/// `text` up to the mark behind the last message. If the template trims messages (the space at the
/// end of the mark is gone), whitespace before the mark goes too.
fn cut_at_mark<'a>(text: &'a str, last: &str) -> Option<&'a str> {
    let at = text.rfind(CONTINUE_MARK.trim_end())?;
    let (before, from_mark) = text.split_at_checked(at)?;
    if !text.contains(last.trim_matches(is_space)) {
        return None;
    }
    let is_untrimmed = from_mark.starts_with(CONTINUE_MARK);
    Some(if is_untrimmed { before } else { before.trim_end_matches(is_space) })
}
