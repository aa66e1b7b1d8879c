//! Neighbors of the same role become a single message.

use super::message::{Chunk, Content, Message, Role};
use super::{MistralVersion, NO_CONTENT};
use crate::chat::error::RenderError;
use std::borrow::Cow;
use std::slice;

/// Text between messages that become a single message.
const JOINT: &str = "\n\n";

/// Messages in the form of the prompt.
pub(super) struct Gathered<'a> {
    /// Text of all system messages, where the prompt has no system messages of its own.
    pub(super) system: Option<String>,
    pub(super) messages: Vec<Message<'a>>,
}

/// Gathers the messages of a request.
pub(super) fn gather<'a>(
    version: MistralVersion,
    messages: &[Message<'a>],
) -> Result<Gathered<'a>, RenderError> {
    let keeps_systems = version >= MistralVersion::V7;
    let mut gathered: Vec<Message<'a>> = Vec::with_capacity(messages.len());
    let mut systems = Vec::new();
    // Ids of the calls since the last results.
    let mut call_ids: Vec<&str> = Vec::new();
    for group in messages.chunk_by(|one, next| one.role == next.role) {
        let Some(first) = group.first() else { continue };
        match first.role {
            Role::System if keeps_systems => {
                gathered
                    .extend(group.iter().map(|message| joined(version, slice::from_ref(message))));
            }
            Role::System => {
                let said = group.iter().filter(|message| !message.content.is_none());
                for message in said {
                    systems.push(text_of(joined(version, slice::from_ref(message)).content)?);
                }
            }
            Role::User => gathered.push(joined(version, group)),
            Role::Assistant => {
                let joined = joined(version, group);
                call_ids.extend(joined.calls.iter().map(|call| call.id));
                gathered.push(joined);
            }
            Role::Tool => {
                let results = group.iter().map(|message| joined(version, slice::from_ref(message)));
                let mut results: Vec<Message<'a>> = results.collect();
                if version >= MistralVersion::V11 {
                    let place = |id: &str| call_ids.iter().rposition(|known| *known == id);
                    results.sort_by_key(|result| place(result.call_id).unwrap_or(usize::MAX));
                }
                call_ids.clear();
                gathered.append(&mut results);
            }
        }
    }
    let starts_with_user = gathered.first().is_some_and(|first| first.role == Role::User);
    if gathered.is_empty() || !keeps_systems && !starts_with_user {
        gathered.insert(0, Message::plain(Role::User, Cow::Borrowed("")));
    }
    let system = (!systems.is_empty()).then(|| systems.join(JOINT));
    Ok(Gathered { system, messages: gathered })
}

fn text_of(content: Content<'_>) -> Result<String, RenderError> {
    match content {
        Content::Text(text) => Ok(text.into_owned()),
        Content::Chunks(_) => Err(RenderError::Unsupported("a system message with reasoning")),
    }
}

/// A single message from messages of the same role.
fn joined<'a>(version: MistralVersion, group: &[Message<'a>]) -> Message<'a> {
    let mut joined = match group {
        [only] => only.clone(),
        _ => Message::plain(group.first().map_or(Role::User, |first| first.role), "".into()),
    };
    if let [Message { content: Content::Text(_), .. }] = group {
        return joined;
    }
    joined.content = joined_content(version, group);
    joined.calls = group.iter().flat_map(|message| message.calls.iter().cloned()).collect();
    joined.is_continued = group.iter().any(|message| message.is_continued);
    joined
}

/// Joins texts up to the next reasoning. Empty texts do not count.
fn joined_content<'a>(version: MistralVersion, group: &[Message<'a>]) -> Content<'a> {
    let part_joint = if version >= MistralVersion::V15 { "" } else { JOINT };
    let mut chunks: Vec<Chunk<'a>> = Vec::new();
    let mut text: Option<String> = None;
    let add = |part: &str, joint: &str, text: &mut Option<String>| match text {
        Some(text) => {
            text.push_str(joint);
            text.push_str(part);
        }
        None => *text = Some(part.to_owned()),
    };
    for message in group {
        match &message.content {
            Content::Text(part) if part.is_empty() => {}
            Content::Text(part) => add(part, JOINT, &mut text),
            Content::Chunks(parts) => {
                let mut is_new_message = text.is_some();
                for part in parts {
                    match part {
                        Chunk::Text(part) if part.is_empty() => {}
                        Chunk::Text(part) => {
                            let joint = if is_new_message { JOINT } else { part_joint };
                            add(part, joint, &mut text);
                            is_new_message = false;
                        }
                        think @ Chunk::Think(..) => {
                            chunks.extend(text.take().map(|text| Chunk::Text(text.into())));
                            chunks.push(think.clone());
                        }
                    }
                }
            }
        }
    }
    if chunks.is_empty() {
        return text.map_or(NO_CONTENT, |text| Content::Text(text.into()));
    }
    chunks.extend(text.map(|text| Chunk::Text(text.into())));
    Content::Chunks(chunks)
}
