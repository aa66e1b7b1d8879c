//! A compiled chat template.

use super::environment::{self, TEMPLATE, TemplateClock};
use super::message::{ChatRole, MessageSpan};
use super::plan::Plan;
use super::python::is_space;
use super::rules::EngineRules;
use super::shape::{CONTINUE_MARK, Conversation, PromptEnding, Shaper, media};
use super::source::content_format;
use super::special::SpecialTokens;
use super::values::from_json;
use forebay_base::limits::JSON_DEPTH_MAX;
use memchr::memchr2;
use minijinja::Environment;
use serde_json::{Map, Value};

/// A compiled chat template with what was learnt of it.
#[derive(Debug)]
pub struct ChatTemplate {
    renderer: Renderer,
    plan: Option<Plan>,
    /// Renders requests with tools, for models with a template of their own for these.
    tool_use: Option<Renderer>,
}

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the chat template does not compile: {0}")]
pub struct TemplateError(#[from] minijinja::Error);

/// Why a body was not rendered. The request is still served, only without a match by prefix.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// Not a JSON object, or nested deeper than `JSON_DEPTH_MAX`.
    #[error("the body is not a JSON object that can be read")]
    Body,
    /// No list of messages and nothing that can be made one.
    #[error("the body has no messages")]
    NoMessages,
    /// A shape that is not followed.
    #[error("not rendered: {0}")]
    Unsupported(&'static str),
    /// The template refused the messages or failed.
    #[error("the chat template failed: {0}")]
    Template(#[from] minijinja::Error),
}

impl RenderError {
    /// Did the template take more than `TEMPLATE_STEPS_MAX` steps?
    #[must_use]
    pub fn is_out_of_steps(&self) -> bool {
        let Self::Template(error) = self else { return false };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = cause {
            let engine = error.downcast_ref::<minijinja::Error>();
            if engine.is_some_and(|error| error.kind() == minijinja::ErrorKind::OutOfFuel) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

impl ChatTemplate {
    /// Compiles a template under vLLM's rules and learns its plan (some hundred renderings,
    /// milliseconds).
    ///
    /// # Errors
    /// [`TemplateError`] when the source is no template.
    pub fn compile(source: &str, special: &SpecialTokens) -> Result<Self, TemplateError> {
        Self::compile_for(source, special, EngineRules::default())
    }

    /// The same under the rules of one engine.
    ///
    /// # Errors
    /// [`TemplateError`] when the source is no template.
    pub fn compile_for(
        source: &str,
        special: &SpecialTokens,
        rules: EngineRules,
    ) -> Result<Self, TemplateError> {
        let probe = Renderer::try_new(source, special, rules, TemplateClock::Marks)?;
        let plan = Plan::learn(source, &probe);
        let renderer = Renderer::try_new(source, special, rules, TemplateClock::System)?;
        Ok(Self { renderer, plan, tool_use: None })
    }

    /// The same with another template for requests that offer tools.
    ///
    /// # Errors
    /// [`TemplateError`] when the source is no template.
    pub fn with_tool_use(
        mut self,
        source: &str,
        special: &SpecialTokens,
    ) -> Result<Self, TemplateError> {
        let rules = self.renderer.shaper.rules;
        self.tool_use = Some(Renderer::try_new(source, special, rules, TemplateClock::System)?);
        Ok(self)
    }

    /// Appends the prompt of plain messages if the plan covers them; otherwise returns false and
    /// appends nothing. Allocates only when `out` has to grow.
    pub fn render_plain(
        &self,
        messages: &[MessageSpan],
        body: &[u8],
        add_generation_prompt: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let plan = self.plan.as_ref();
        plan.is_some_and(|plan| plan.write(messages, body, add_generation_prompt, out))
    }

    /// Appends the prompt of plain messages by way of the template, for those that the plan does
    /// not cover. On an error nothing is appended.
    ///
    /// # Errors
    /// [`RenderError`] when the template refuses the messages or a span is not UTF-8 text of the
    /// body.
    pub fn render_messages(
        &self,
        messages: &[MessageSpan],
        body: &[u8],
        add_generation_prompt: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let mut contents = Vec::with_capacity(messages.len());
        for message in messages {
            let content = message.text(body).ok_or(RenderError::Body)?;
            contents.push((message.role, content));
        }
        let messages = contents.iter().map(|(role, content)| (*role, content.as_str()));
        let conversation = self.renderer.plain(messages, add_generation_prompt);
        self.renderer.render(conversation, out)
    }

    /// Appends the prompt of a whole body: chat, Anthropic messages or responses. On an error
    /// nothing is appended.
    ///
    /// # Errors
    /// [`RenderError`] when the body has no messages or the template refuses them.
    pub fn render_full(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
        self.render_body(parse(body)?, out)
    }

    /// The same up to the first image, sound or other thing that is not text: what the engine makes
    /// of these, and so all that follows, cannot be compared as text. True if there was such a
    /// thing. On an error nothing is appended.
    ///
    /// # Errors
    /// [`RenderError`] as above, and when the template leaves text parts out.
    pub fn render_text(&self, body: &[u8], out: &mut Vec<u8>) -> Result<bool, RenderError> {
        let mut body = parse(body)?;
        let is_marked = media::mark(&mut body, self.renderer.shaper.format);
        let start = out.len();
        self.render_body(body, out)?;
        if is_marked && !media::cut(out, start) {
            out.truncate(start);
            return Err(RenderError::Unsupported("the template does not print all text parts"));
        }
        Ok(is_marked)
    }

    fn render_body(&self, body: Map<String, Value>, out: &mut Vec<u8>) -> Result<(), RenderError> {
        let offers_tools = || self.renderer.shaper.tools(&body).is_array();
        let for_tools = self.tool_use.as_ref().filter(|_| offers_tools());
        let renderer = for_tools.unwrap_or(&self.renderer);
        renderer.render(renderer.shaper.shape(body)?, out)
    }

    /// True when plain conversations of at least one kind take the fast way.
    #[must_use]
    pub fn has_plan(&self) -> bool {
        self.plan.is_some()
    }

    /// The plan in one line for the log: which conversations it covers.
    #[must_use]
    pub fn plan_summary(&self) -> String {
        self.plan.as_ref().map_or_else(|| "none".to_owned(), Plan::summary)
    }
}

/// The template engine with one template and its rules.
#[derive(Debug)]
pub(super) struct Renderer {
    environment: Environment<'static>,
    shaper: Shaper,
    special: Map<String, Value>,
}

impl Renderer {
    fn try_new(
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

    /// Renders plain messages as [`ChatTemplate::render_full`] would.
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

    fn plain<'a>(
        &self,
        messages: impl Iterator<Item = (ChatRole, &'a str)>,
        add_generation_prompt: bool,
    ) -> Conversation {
        let messages = messages.map(|(role, content)| (role.name(), content));
        self.shaper.plain(messages, add_generation_prompt)
    }

    fn render(&self, conversation: Conversation, out: &mut Vec<u8>) -> Result<(), RenderError> {
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

/// `text` up to the mark behind the last message, without whitespace before it if the template
/// trims messages: then the space that ends the mark is gone too.
fn cut_at_mark<'a>(text: &'a str, last: &str) -> Option<&'a str> {
    let at = text.rfind(CONTINUE_MARK.trim_end())?;
    let (before, from_mark) = text.split_at_checked(at)?;
    if !text.contains(last.trim_matches(is_space)) {
        return None;
    }
    let kept = from_mark.starts_with(CONTINUE_MARK);
    Some(if kept { before } else { before.trim_end_matches(is_space) })
}

/// The body as an object with its keys in the client's order.
fn parse(body: &[u8]) -> Result<Map<String, Value>, RenderError> {
    if depth(body) > JSON_DEPTH_MAX {
        return Err(RenderError::Body);
    }
    let mut copy = body.to_vec();
    match simd_json::serde::from_slice(&mut copy) {
        Ok(Value::Object(fields)) => Ok(fields),
        _ => Err(RenderError::Body),
    }
}

/// Deepest nesting of brackets outside of strings. The scan of the body checks it too; this keeps
/// the recursion below bounded for every caller.
fn depth(body: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut rest = body;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'"' => rest = after_string(tail),
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// What follows the closing quote of the string that `text` stands in.
fn after_string(text: &[u8]) -> &[u8] {
    let mut rest = text;
    while let Some(at) = memchr2(b'"', b'\\', rest) {
        let escape = rest.get(at) == Some(&b'\\');
        rest = rest.get(at + 1 + usize::from(escape)..).unwrap_or_default();
        if !escape {
            return rest;
        }
    }
    &[]
}

#[cfg(test)]
mod tests;
