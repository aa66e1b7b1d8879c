//! Neighbors of the same role become a single message.

use super::message::{ContentPart, MessageContent, MistralMessage, MistralRole, NO_CONTENT};
use super::version::MistralVersion;
use crate::chat::error::RenderError;
use crate::chat::steps::{count_read, count_written};
use std::borrow::Cow;
use std::collections::HashMap;
use std::slice;

/// Text between messages that become a single message.
const JOINT: &str = "\n\n";

/// Messages in the form of the prompt.
pub(super) struct PromptMessages<'a> {
    /// Text of all system messages, where the prompt has no system messages of its own.
    pub(super) system: Option<String>,
    pub(super) messages: Vec<MistralMessage<'a>>,
}

/// Gathers the messages of a request.
pub(super) fn gather<'a>(
    version: MistralVersion,
    messages: &[MistralMessage<'a>],
) -> Result<PromptMessages<'a>, RenderError> {
    let keeps_systems = version >= MistralVersion::V7;
    let mut gathered: Vec<MistralMessage<'a>> = Vec::with_capacity(messages.len());
    let mut systems = Vec::new();
    // Ids of the calls since the last results.
    let mut call_ids: Vec<&str> = Vec::new();
    for group in messages.chunk_by(|one, next| one.role == next.role) {
        let Some(first) = group.first() else { continue };
        match first.role {
            MistralRole::System if keeps_systems => {
                gathered
                    .extend(group.iter().map(|message| joined(version, slice::from_ref(message))));
            }
            MistralRole::System => {
                let said = group.iter().filter(|message| !message.content.is_none());
                for message in said {
                    systems.push(text_of(joined(version, slice::from_ref(message)).content)?);
                }
            }
            MistralRole::User => gathered.push(joined(version, group)),
            MistralRole::Assistant => {
                let joined = joined(version, group);
                call_ids.extend(joined.calls.iter().map(|call| call.id));
                gathered.push(joined);
            }
            MistralRole::Tool => {
                let results = group.iter().map(|message| joined(version, slice::from_ref(message)));
                let mut results: Vec<MistralMessage<'a>> = results.collect();
                if version >= MistralVersion::V11 {
                    let places = call_ids.iter().enumerate().map(|(place, id)| (*id, place));
                    let places: HashMap<&str, usize> = places.collect();
                    let place = |id: &str| places.get(id).copied().unwrap_or(usize::MAX);
                    results.sort_by_key(|result| {
                        count_read(1);
                        place(result.call_id)
                    });
                }
                call_ids.clear();
                gathered.append(&mut results);
            }
        }
    }
    let starts_with_user = gathered.first().is_some_and(|first| first.role == MistralRole::User);
    if gathered.is_empty() || !keeps_systems && !starts_with_user {
        gathered.insert(0, MistralMessage::plain(MistralRole::User, Cow::Borrowed("")));
    }
    let system = (!systems.is_empty()).then(|| systems.join(JOINT));
    Ok(PromptMessages { system, messages: gathered })
}

fn text_of(content: MessageContent<'_>) -> Result<String, RenderError> {
    match content {
        MessageContent::Text(text) => Ok(text.into_owned()),
        MessageContent::Chunks(_) => {
            Err(RenderError::Unsupported("a system message with reasoning"))
        }
    }
}

/// A single message from messages of the same role.
fn joined<'a>(version: MistralVersion, group: &[MistralMessage<'a>]) -> MistralMessage<'a> {
    let mut joined = match group {
        [only] => only.clone(),
        _ => MistralMessage::plain(
            group.first().map_or(MistralRole::User, |first| first.role),
            "".into(),
        ),
    };
    if let [MistralMessage { content: MessageContent::Text(_), .. }] = group {
        return joined;
    }
    joined.content = joined_content(version, group);
    joined.calls = group.iter().flat_map(|message| message.calls.iter().cloned()).collect();
    joined.is_continued = group.iter().any(|message| message.is_continued);
    joined
}

/// Joins texts up to the next reasoning. Empty texts do not count.
fn joined_content<'a>(version: MistralVersion, group: &[MistralMessage<'a>]) -> MessageContent<'a> {
    let part_joint = if version >= MistralVersion::V15 { "" } else { JOINT };
    let mut chunks: Vec<ContentPart<'a>> = Vec::new();
    let mut text: Option<String> = None;
    let add = |part: &str, joint: &str, text: &mut Option<String>| {
        count_written(part.len() + joint.len());
        match text {
            Some(text) => {
                text.push_str(joint);
                text.push_str(part);
            }
            None => *text = Some(part.to_owned()),
        }
    };
    for message in group {
        match &message.content {
            MessageContent::Text(part) if part.is_empty() => {}
            MessageContent::Text(part) => add(part, JOINT, &mut text),
            MessageContent::Chunks(parts) => {
                let mut is_new_message = text.is_some();
                for part in parts {
                    match part {
                        ContentPart::Text(part) if part.is_empty() => {}
                        ContentPart::Text(part) => {
                            let joint = if is_new_message { JOINT } else { part_joint };
                            add(part, joint, &mut text);
                            is_new_message = false;
                        }
                        think @ ContentPart::Think(..) => {
                            chunks.extend(text.take().map(|text| ContentPart::Text(text.into())));
                            chunks.push(think.clone());
                        }
                    }
                }
            }
        }
    }
    if chunks.is_empty() {
        return text.map_or(NO_CONTENT, |text| MessageContent::Text(text.into()));
    }
    chunks.extend(text.map(|text| ContentPart::Text(text.into())));
    MessageContent::Chunks(chunks)
}
