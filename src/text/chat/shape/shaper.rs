//! Types that the files of this folder share: rules, variables of the template, marks in texts.

use crate::chat::frontends::rust_traits::RustTraits;
use crate::chat::rules::{ContentFormat, EngineRules};
use serde_json::{Map, Value};

/// Start of a line that Claude Code puts before its instructions. The line changes with every
/// request, so vLLM removes it from system messages (`renderers/chat_utils` of vLLM 0.33).
pub(in crate::chat) const BILLING_LINE: &str = "x-anthropic-billing-header";

/// Mark that transformers puts behind a message to continue, to find its end in the rendered text.
pub(in crate::chat) const CONTINUE_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Rules for converting bodies, fixed for a template.
#[derive(Clone, Copy, Debug)]
pub(in crate::chat) struct Shaper {
    pub(in crate::chat) rules: EngineRules,
    /// Form of contents that the template expects.
    pub(in crate::chat) format: ContentFormat,
    /// True when the template supports the role `developer`, which otherwise becomes `system`.
    pub(in crate::chat) knows_developer: bool,
    /// `/v1/messages`: system messages go to the front.
    pub(in crate::chat) merges_systems: bool,
    /// `/v1/messages`: the reasoning effort of requests that disable thinking.
    pub(in crate::chat) disabled_effort: &'static str,
    /// Findings of SGLang's Rust server about the template.
    pub(in crate::chat) traits: RustTraits,
}

/// Input of the template.
#[derive(Debug)]
pub(in crate::chat) struct Conversation {
    /// All variables but the special tokens.
    pub(in crate::chat) variables: Map<String, Value>,
    /// End of the prompt with `continue_final_message`.
    pub(in crate::chat) ends_with: Option<PromptEnding>,
    /// Other form of `tools` that the engine tries when the template fails.
    pub(in crate::chat) other_tools: Option<Value>,
}

/// End of a prompt that continues its last message.
#[derive(Debug)]
pub(in crate::chat) enum PromptEnding {
    /// Cut the rendered text at [`CONTINUE_MARK`] behind this text (vLLM, through transformers).
    CutAtMark(String),
    /// Append this text; the message was removed before (SGLang).
    Append(String),
}
