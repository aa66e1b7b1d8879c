//! Messages as `mistral_common` reads them, and the order that it asks for.

use super::calls::{Call, read_calls, short_id};
use crate::chat::error::RenderError;
use serde_json::Value;
use std::borrow::Cow;

/// Author of a message. Developers are systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MistralRole {
    System,
    User,
    Assistant,
    Tool,
}

/// A part of a content.
#[derive(Clone, Debug)]
pub(super) enum ContentPart<'a> {
    Text(Cow<'a, str>),
    /// Reasoning, and whether it has ended.
    Think(Cow<'a, str>, bool),
}

/// MessageContent of a message.
#[derive(Clone, Debug)]
pub(super) enum MessageContent<'a> {
    Text(Cow<'a, str>),
    Chunks(Vec<ContentPart<'a>>),
}

/// The content of a message that has none.
pub(super) const NO_CONTENT: MessageContent<'static> = MessageContent::Text(Cow::Borrowed(""));

impl MessageContent<'_> {
    /// An empty list and an empty string are no content, but a list of empty texts is content.
    pub(super) fn is_none(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Chunks(chunks) => chunks.is_empty(),
        }
    }
}

/// A message of the request.
#[derive(Clone, Debug)]
pub(super) struct MistralMessage<'a> {
    pub(super) role: MistralRole,
    pub(super) content: MessageContent<'a>,
    pub(super) calls: Vec<Call<'a>>,
    /// Id of the call that a tool answers.
    pub(super) call_id: &'a str,
    /// The answer goes on where this message ends.
    pub(super) is_continued: bool,
}

impl<'a> MistralMessage<'a> {
    pub(super) fn plain(role: MistralRole, text: Cow<'a, str>) -> Self {
        let content = MessageContent::Text(text);
        Self { role, content, calls: Vec::new(), call_id: "", is_continued: false }
    }
}

/// Reads a message of a chat.
pub(super) fn read(message: &Value) -> Result<MistralMessage<'_>, RenderError> {
    let role = match message.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => MistralRole::System,
        Some("user") => MistralRole::User,
        Some("assistant") => MistralRole::Assistant,
        Some("tool") => MistralRole::Tool,
        _ => return Err(RenderError::Unsupported("the encoder has no such role")),
    };
    let content = match message.get("content") {
        None | Some(Value::Null) if role == MistralRole::Assistant => NO_CONTENT,
        Some(Value::String(text)) => MessageContent::Text(Cow::Borrowed(text)),
        Some(Value::Array(parts)) => {
            let chunks: Option<Vec<_>> = parts.iter().map(chunk).collect();
            let refused = RenderError::Unsupported("a part is neither text nor reasoning");
            MessageContent::Chunks(chunks.ok_or(refused)?)
        }
        _ => return Err(RenderError::Unsupported("a message has no content")),
    };
    let mut read = MistralMessage::plain(role, Cow::Borrowed(""));
    read.content = content;
    match role {
        MistralRole::Assistant => {
            read.calls = read_calls(message.get("tool_calls"))?;
            add_reasoning(message, &mut read.content)?;
        }
        MistralRole::Tool => {
            let id = message.get("tool_call_id").and_then(Value::as_str);
            let id = id.ok_or(RenderError::Unsupported("a result has no id"))?;
            read.call_id = short_id(id);
        }
        MistralRole::System | MistralRole::User => {}
    }
    Ok(read)
}

fn chunk(part: &Value) -> Option<ContentPart<'_>> {
    let text = |key: &str| Some(Cow::Borrowed(part.get(key)?.as_str()?));
    match part.get("type")?.as_str()? {
        "text" => Some(ContentPart::Text(text("text")?)),
        "thinking" => {
            let is_closed = part.get("closed").is_none_or(|closed| closed != &Value::Bool(false));
            Some(ContentPart::Think(text("thinking")?, is_closed))
        }
        _ => None,
    }
}

fn add_reasoning<'a>(
    message: &'a Value,
    content: &mut MessageContent<'a>,
) -> Result<(), RenderError> {
    let set = |key: &str| message.get(key).filter(|value| !value.is_null());
    let Some(reasoning) = set("reasoning").or_else(|| set("reasoning_content")) else {
        return Ok(());
    };
    let reasoning = reasoning.as_str().ok_or(RenderError::Unsupported("reasoning is no text"))?;
    let has_content = !matches!(message.get("content"), None | Some(Value::Null));
    let mut chunks = vec![ContentPart::Think(Cow::Borrowed(reasoning), true)];
    match std::mem::replace(content, NO_CONTENT) {
        MessageContent::Text(text) => chunks.extend(has_content.then_some(ContentPart::Text(text))),
        MessageContent::Chunks(parts) => {
            if parts.iter().any(|part| matches!(part, ContentPart::Think(..))) {
                return Err(RenderError::Unsupported("reasoning stands in two places"));
            }
            chunks.extend(parts);
        }
    }
    *content = MessageContent::Chunks(chunks);
    Ok(())
}

/// Refuses conversations that the engine refuses: roles in another order, an answer at the end.
pub(super) fn check_order(messages: &[MistralMessage<'_>]) -> Result<(), RenderError> {
    let refused = Err(RenderError::Unsupported("the engine refuses this order of messages"));
    let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return refused };
    let is_lone =
        messages.len() == 1 && !matches!(first.role, MistralRole::User | MistralRole::System);
    if is_lone || last.role == MistralRole::Assistant && !last.is_continued {
        return refused;
    }
    let mut open_calls = 0_usize;
    let mut previous: Option<&MistralMessage<'_>> = None;
    for message in messages {
        let follows = previous.is_none_or(|previous| may_follow(previous.role, message.role));
        // The first message counts for nothing here.
        match message.role {
            _ if previous.is_none() => {}
            MistralRole::Tool => match open_calls.checked_sub(1) {
                Some(left) => open_calls = left,
                None => return refused,
            },
            MistralRole::Assistant if open_calls > 0 => return refused,
            MistralRole::Assistant => open_calls = message.calls.len(),
            MistralRole::System | MistralRole::User => {}
        }
        if !follows {
            return refused;
        }
        previous = Some(message);
    }
    Ok(())
}

fn may_follow(previous: MistralRole, role: MistralRole) -> bool {
    match previous {
        MistralRole::System | MistralRole::User => role != MistralRole::Tool,
        MistralRole::Assistant | MistralRole::Tool => role != MistralRole::System,
    }
}
