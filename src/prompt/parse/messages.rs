//! Chat messages: spans if all messages are plain, otherwise only [`MessageList::Rich`].

use forebay_json::{Cursor, JsonError, Text};
use forebay_text::chat::{ChatRole, MessageSpan};

/// Kind of a list of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MessageList {
    /// Absent, null, empty, no list, or longer than [`MESSAGES_MAX`].
    #[default]
    None,
    /// All plain; the spans are in the vector.
    Plain,
    /// A list with other keys, roles or contents.
    Rich,
}

/// Reads the value at the cursor, a member of the top object. `typed`: a message may contain
/// `"type":"message"`, as items of `/v1/responses` do.
pub(super) fn message_list(
    cursor: &mut Cursor<'_>,
    typed: bool,
    out: &mut Vec<MessageSpan>,
) -> Result<MessageList, JsonError> {
    out.clear();
    if cursor.peek() != Some(b'[') {
        cursor.skip_value(1)?;
        return Ok(MessageList::None);
    }
    cursor.open();
    let mut first = true;
    let mut plain = true;
    let mut count = 0_usize;
    while cursor.next_element(&mut first)? {
        count += 1;
        plain = plain && count <= MESSAGES_MAX;
        if !plain {
            cursor.skip_value(2)?;
        } else if let Some(message) = plain_message(cursor, typed)? {
            out.push(message);
        } else {
            plain = false;
        }
    }
    if !plain {
        out.clear();
    }
    Ok(match (count, plain) {
        (0, _) => MessageList::None,
        (_, true) => MessageList::Plain,
        (1..=MESSAGES_MAX, false) => MessageList::Rich,
        (_, false) => MessageList::None,
    })
}

/// Reads a message; `None` when the message is not plain. The whole value is consumed either way.
fn plain_message(cursor: &mut Cursor<'_>, typed: bool) -> Result<Option<MessageSpan>, JsonError> {
    if cursor.peek() != Some(b'{') {
        cursor.skip_value(2)?;
        return Ok(None);
    }
    cursor.open();
    let mut first = true;
    let mut plain = true;
    let mut role = None;
    let mut content = None;
    while let Some(key) = cursor.next_key(&mut first)? {
        let is_text = cursor.peek() == Some(b'"');
        match cursor.slice(&key.span) {
            "role" if is_text => role = chat_role(cursor)?,
            "content" if is_text => content = Some(cursor.string()?),
            "type" if typed && is_text => {
                let kind = cursor.string()?;
                plain &= cursor.slice(&kind.span) == "message";
            }
            _ => {
                plain = false;
                cursor.skip_value(3)?;
            }
        }
    }
    Ok(match (role, content) {
        (Some(role), Some(content)) if plain => message_span(role, &content),
        _ => None,
    })
}

fn chat_role(cursor: &mut Cursor<'_>) -> Result<Option<ChatRole>, JsonError> {
    let role = cursor.string()?;
    Ok(match cursor.slice(&role.span) {
        "system" => Some(ChatRole::System),
        "user" => Some(ChatRole::User),
        "assistant" => Some(ChatRole::Assistant),
        _ => None,
    })
}

/// A message from a string of the body.
pub(super) fn message_span(role: ChatRole, content: &Text) -> Option<MessageSpan> {
    let start = u32::try_from(content.span.start).ok()?;
    let end = u32::try_from(content.span.end).ok()?;
    Some(MessageSpan { role, content: start..end, escaped: content.escaped })
}

/// Most messages that are matched; longer conversations are routed without a prompt.
pub const MESSAGES_MAX: usize = 8_192;
