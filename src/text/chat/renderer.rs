//! The template engine with a template and the rules of an inference engine.

use super::environment::{self, TEMPLATE, TemplateClock};
use super::error::RenderError;
use super::message::ChatRole;
use super::python::is_space;
use super::rules::EngineRules;
use super::shape::{CONTINUE_MARK, Conversation, PromptEnding, Shaper};
use super::source::content_format;
use super::special::SpecialTokens;
use super::values::from_json;
use minijinja::Environment;
use serde_json::{Map, Value};

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
        let environment = environment::build(source, clock)?;
        let shaper = Shaper {
            rules,
            format: content_format(source, rules),
            knows_developer: source.contains("'developer'") || source.contains("\"developer\""),
        };
        let special = special.iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
        Ok(Self { environment, shaper, special })
    }

    /// Renders plain messages as [`super::ChatTemplate::render_full`] would.
    pub(super) fn render_plain(
        &self,
        messages: &[(ChatRole, &str)],
        add_generation_prompt: bool,
    ) -> Option<String> {
        let conversation = self.plain(messages.iter().copied(), add_generation_prompt);
        let mut out = Vec::new();
        self.render(conversation, &mut out).ok()?;
        String::from_utf8(out).ok()
    }

    pub(super) fn plain<'a>(
        &self,
        messages: impl Iterator<Item = (ChatRole, &'a str)>,
        add_generation_prompt: bool,
    ) -> Conversation {
        let messages = messages.map(|(role, content)| (role.name(), content));
        self.shaper.plain(messages, add_generation_prompt)
    }

    pub(super) fn render(
        &self,
        conversation: Conversation,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let Conversation { mut variables, ends_with, other_tools } = conversation;
        for (name, text) in &self.special {
            variables.entry(name).or_insert_with(|| text.clone());
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
        let variables: minijinja::Value =
            variables.iter().map(|(name, value)| (name.as_str(), from_json(value))).collect();
        self.environment.get_template(TEMPLATE)?.render(variables)
    }
}

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
