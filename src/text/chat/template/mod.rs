//! A compiled chat template.

use super::environment::TemplateClock;
use super::error::{RenderError, TemplateError};
use super::message::{ChatApi, MessageSpan};
use super::plan::Plan;
use super::printing::numbers::{NumberDialect, respelled};
use super::renderer::Renderer;
use super::rules::EngineRules;
use super::shape::media;
use super::special::SpecialTokens;
use forebay_base::limits::JSON_DEPTH_MAX;
use memchr::memchr2;
use serde_json::{Map, Value};

/// A compiled chat template with its plan.
#[derive(Debug)]
pub struct ChatTemplate {
    renderer: Renderer,
    plan: Option<Plan>,
    /// Renders requests with tools, for models with a separate template for tools.
    tool_use: Option<Renderer>,
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

    /// The same, for the rules of an engine.
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
        let shaper = &mut self.renderer.shaper;
        let mut tool_use = Renderer::try_new(source, special, shaper.rules, TemplateClock::System)?;
        // The engine tries both for system messages, and the first for efforts.
        shaper.merges_systems |= tool_use.shaper.merges_systems;
        tool_use.shaper.merges_systems = shaper.merges_systems;
        tool_use.shaper.disabled_effort = shaper.disabled_effort;
        self.tool_use = Some(tool_use);
        Ok(self)
    }

    /// Appends the prompt of plain messages if the plan covers them; otherwise returns false and
    /// appends nothing. Allocates only when `out` must grow.
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

    /// Appends the prompt of plain messages that the plan does not cover, with the template. On an
    /// error nothing is appended.
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
        let conversation = self.renderer.plain(messages, add_generation_prompt)?;
        self.renderer.render(conversation, out)
    }

    /// Appends the prompt of a whole body: chat, Anthropic messages or responses. On an error
    /// nothing is appended.
    ///
    /// # Errors
    /// [`RenderError`] when the body has no messages or the template refuses them.
    pub fn render_full(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
        let body = parse_for(self.renderer.shaper.rules, body)?;
        let api = if is_anthropic(&body) { ChatApi::Messages } else { ChatApi::Chat };
        self.render_body(body, api, out)
    }

    /// The same up to the first image, sound or other content that is not text, because the prompt
    /// cannot be compared as text from there on. True if there was such content. With `names`,
    /// images with a name do not end the text: the template prints a placeholder for each image,
    /// and the names are appended in order. `api` decides what parts mean. On an error nothing is
    /// appended.
    ///
    /// # Errors
    /// [`RenderError`] as above, and when the template leaves text parts out.
    pub fn render_text(
        &self,
        body: &[u8],
        api: ChatApi,
        names: Option<&mut Vec<String>>,
        out: &mut Vec<u8>,
    ) -> Result<bool, RenderError> {
        let mut body = parse_for(self.renderer.shaper.rules, body)?;
        let mut api = api;
        let shaper = &self.renderer.shaper;
        // An image of a result moves to a message of its own, so conversion comes first.
        if api == ChatApi::Messages && !shaper.rules.is_rust() {
            shaper.anthropic().to_chat(&mut body)?;
            api = ChatApi::Chat;
        }
        let is_marked = media::mark(&mut body, self.renderer.shaper.format, names);
        let start = out.len();
        self.render_body(body, api, out)?;
        if is_marked && !media::cut(out, start) {
            out.truncate(start);
            return Err(RenderError::Unsupported("the template does not print all text parts"));
        }
        Ok(is_marked)
    }

    fn render_body(
        &self,
        body: Map<String, Value>,
        api: ChatApi,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let offers_tools = || self.renderer.shaper.tools(&body).is_array();
        let for_tools = self.tool_use.as_ref().filter(|_| offers_tools());
        let renderer = for_tools.unwrap_or(&self.renderer);
        renderer.render(renderer.shaper.shape(body, api)?, out)
    }

    /// True if the plan covers some kind of plain conversation.
    #[must_use]
    pub fn has_plan(&self) -> bool {
        self.plan.is_some()
    }

    /// The conversations that the plan covers, in a line for the log.
    #[must_use]
    pub fn plan_summary(&self) -> String {
        self.plan.as_ref().map_or_else(|| "none".to_owned(), Plan::summary)
    }
}

/// Is it a body of `/v1/messages`, by its keys and blocks?
fn is_anthropic(body: &Map<String, Value>) -> bool {
    let kinds = ["tool_use", "tool_result", "thinking", "redacted_thinking", "tool_reference"];
    let is_own = |block: &Value| {
        let kind = block.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| kinds.contains(&kind))
    };
    let messages = body.get("messages").and_then(Value::as_array);
    let contents = messages.into_iter().flatten().filter_map(|message| message.get("content"));
    let mut blocks = contents.filter_map(Value::as_array).flatten();
    body.contains_key("system") || blocks.any(is_own)
}

/// The body with its numbers as a frontend reads them.
fn parse_for(rules: EngineRules, body: &[u8]) -> Result<Map<String, Value>, RenderError> {
    let reader = match rules {
        EngineRules::Vllm | EngineRules::Sglang => return parse(body),
        EngineRules::VllmRust => NumberDialect::QuickFloats,
        EngineRules::SglangRust => NumberDialect::ExactFloats,
    };
    let text = std::str::from_utf8(body).map_err(|_| RenderError::Body)?;
    let respelled = respelled(text, reader).map_err(|_| RenderError::Body)?;
    parse(respelled.as_bytes())
}

/// The body as an object with its keys in the client's order.
pub(super) fn parse(body: &[u8]) -> Result<Map<String, Value>, RenderError> {
    if depth(body) > JSON_DEPTH_MAX {
        return Err(RenderError::Body);
    }
    let mut copy = body.to_vec();
    match simd_json::serde::from_slice(&mut copy) {
        Ok(Value::Object(fields)) => Ok(fields),
        _ => Err(RenderError::Body),
    }
}

/// Deepest nesting of brackets outside of strings. The scan of the body checks the depth too, but
/// this check bounds the recursion below for every caller.
fn depth(body: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
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

/// The text behind the closing quote of the string around the start of `text`.
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
mod frontend_tests;
#[cfg(test)]
mod tests;
