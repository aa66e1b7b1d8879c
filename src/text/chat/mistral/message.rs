//! Messages as `mistral_common` reads them, and the order that it asks for.

use super::NO_CONTENT;
use super::calls::{Call, read_calls};
use crate::chat::error::RenderError;
use serde_json::Value;
use std::borrow::Cow;

/// Author of a message. Developers are systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// A part of a content.
#[derive(Clone, Debug)]
pub(super) enum Chunk<'a> {
    Text(Cow<'a, str>),
    /// Reasoning, and whether it has ended.
    Think(Cow<'a, str>, bool),
}

/// Content of a message.
#[derive(Clone, Debug)]
pub(super) enum Content<'a> {
    Text(Cow<'a, str>),
    Chunks(Vec<Chunk<'a>>),
}

impl Content<'_> {
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
pub(super) struct Message<'a> {
    pub(super) role: Role,
    pub(super) content: Content<'a>,
    pub(super) calls: Vec<Call<'a>>,
    /// Id of the call that a tool answers.
    pub(super) call_id: &'a str,
    /// The answer goes on where this message ends.
    pub(super) is_continued: bool,
}

impl<'a> Message<'a> {
    pub(super) fn plain(role: Role, text: Cow<'a, str>) -> Self {
        let content = Content::Text(text);
        Self { role, content, calls: Vec::new(), call_id: "", is_continued: false }
    }
}

/// Reads a message of a chat.
pub(super) fn read(message: &Value) -> Result<Message<'_>, RenderError> {
    let role = match message.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        _ => return Err(RenderError::Unsupported("the encoder has no such role")),
    };
    let content = match message.get("content") {
        None | Some(Value::Null) if role == Role::Assistant => NO_CONTENT,
        Some(Value::String(text)) => Content::Text(Cow::Borrowed(text)),
        Some(Value::Array(parts)) => {
            let chunks: Option<Vec<_>> = parts.iter().map(chunk).collect();
            let refused = RenderError::Unsupported("a part is neither text nor reasoning");
            Content::Chunks(chunks.ok_or(refused)?)
        }
        _ => return Err(RenderError::Unsupported("a message has no content")),
    };
    let mut read = Message::plain(role, Cow::Borrowed(""));
    read.content = content;
    match role {
        Role::Assistant => {
            read.calls = read_calls(message.get("tool_calls"))?;
            add_reasoning(message, &mut read.content)?;
        }
        Role::Tool => {
            let id = message.get("tool_call_id").and_then(Value::as_str);
            let id = id.ok_or(RenderError::Unsupported("a result has no id"))?;
            read.call_id = short_id(id);
        }
        Role::System | Role::User => {}
    }
    Ok(read)
}

fn chunk(part: &Value) -> Option<Chunk<'_>> {
    let text = |key: &str| Some(Cow::Borrowed(part.get(key)?.as_str()?));
    match part.get("type")?.as_str()? {
        "text" => Some(Chunk::Text(text("text")?)),
        "thinking" => {
            let is_closed = part.get("closed").is_none_or(|closed| closed != &Value::Bool(false));
            Some(Chunk::Think(text("thinking")?, is_closed))
        }
        _ => None,
    }
}

fn add_reasoning<'a>(message: &'a Value, content: &mut Content<'a>) -> Result<(), RenderError> {
    let set = |key: &str| message.get(key).filter(|value| !value.is_null());
    let Some(reasoning) = set("reasoning").or_else(|| set("reasoning_content")) else {
        return Ok(());
    };
    let reasoning = reasoning.as_str().ok_or(RenderError::Unsupported("reasoning is no text"))?;
    let has_content = !matches!(message.get("content"), None | Some(Value::Null));
    let mut chunks = vec![Chunk::Think(Cow::Borrowed(reasoning), true)];
    match std::mem::replace(content, NO_CONTENT) {
        Content::Text(text) => chunks.extend(has_content.then_some(Chunk::Text(text))),
        Content::Chunks(parts) => {
            if parts.iter().any(|part| matches!(part, Chunk::Think(..))) {
                return Err(RenderError::Unsupported("reasoning stands in two places"));
            }
            chunks.extend(parts);
        }
    }
    *content = Content::Chunks(chunks);
    Ok(())
}

/// Characters of an id that the engine keeps: the last ones.
const ID_CHARACTERS: usize = 9;

/// The end of an id.
pub(super) fn short_id(id: &str) -> &str {
    let at = id.char_indices().rev().nth(ID_CHARACTERS - 1).map_or(0, |(at, _)| at);
    id.get(at..).unwrap_or(id)
}

/// Refuses conversations that the engine refuses: roles in another order, an answer at the end.
pub(super) fn check_order(messages: &[Message<'_>]) -> Result<(), RenderError> {
    let refused = Err(RenderError::Unsupported("the engine refuses this order of messages"));
    let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return refused };
    let is_lone = messages.len() == 1 && !matches!(first.role, Role::User | Role::System);
    if is_lone || last.role == Role::Assistant && !last.is_continued {
        return refused;
    }
    let mut open_calls = 0_usize;
    let mut previous: Option<&Message<'_>> = None;
    for message in messages {
        let follows = previous.is_none_or(|previous| may_follow(previous.role, message.role));
        // The first message counts for nothing here.
        match message.role {
            _ if previous.is_none() => {}
            Role::Tool => match open_calls.checked_sub(1) {
                Some(left) => open_calls = left,
                None => return refused,
            },
            Role::Assistant if open_calls > 0 => return refused,
            Role::Assistant => open_calls = message.calls.len(),
            Role::System | Role::User => {}
        }
        if !follows {
            return refused;
        }
        previous = Some(message);
    }
    Ok(())
}

fn may_follow(previous: Role, role: Role) -> bool {
    match previous {
        Role::System | Role::User => role != Role::Tool,
        Role::Assistant | Role::Tool => role != Role::System,
    }
}
