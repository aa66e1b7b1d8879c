//! What the files of this folder share: the rules, what the template gets, marks in texts.

use crate::chat::rules::{ContentFormat, EngineRules};
use serde_json::{Map, Value};

/// Start of a line that Claude Code puts before its instructions. It changes with every request, so
/// vLLM takes it out of system messages (`renderers/chat_utils` of vLLM 0.33).
pub(in crate::chat) const BILLING_LINE: &str = "x-anthropic-billing-header";

/// What transformers puts behind a message that is to be continued, to find its end in the rendered
/// text.
pub(in crate::chat) const CONTINUE_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// How to shape: fixed for a template.
#[derive(Clone, Copy, Debug)]
pub(in crate::chat) struct Shaper {
    /// Whose rules.
    pub(in crate::chat) rules: EngineRules,
    /// What the template loops over.
    pub(in crate::chat) format: ContentFormat,
    /// True when the template knows the role `developer`; otherwise it becomes `system`.
    pub(in crate::chat) knows_developer: bool,
}

/// What the template gets.
#[derive(Debug)]
pub(in crate::chat) struct Conversation {
    /// All variables but the special tokens.
    pub(in crate::chat) variables: Map<String, Value>,
    /// With `continue_final_message`: the last message's text, behind which the prompt ends.
    pub(in crate::chat) ends_with: Option<PromptEnding>,
    /// What the engine tries as `tools` when the template fails.
    pub(in crate::chat) other_tools: Option<Value>,
}

/// How a prompt that continues its last message ends.
#[derive(Debug)]
pub(in crate::chat) enum PromptEnding {
    /// Cut the rendered text at [`CONTINUE_MARK`], which stands behind this text (vLLM, by way of
    /// transformers).
    CutAtMark(String),
    /// Append this; the message was taken out before (SGLang).
    Append(String),
}
