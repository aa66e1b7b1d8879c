//! Chat messages: spans if all messages are plain, otherwise only [`MessageList::Rich`].

use forebay_fleet::trust::RequestShape;
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
    /// A list with other keys, roles or contents: the shape by the first such message.
    Rich(RequestShape),
}

impl MessageList {
    /// Shape of a chat that needs the full template.
    pub(super) const fn rich_shape(self, has_tools: bool) -> RequestShape {
        match self {
            _ if has_tools => RequestShape::ChatTools,
            Self::Rich(shape) => shape,
            Self::None | Self::Plain => RequestShape::ChatOther,
        }
    }
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
    let mut rich = RequestShape::ChatOther;
    while cursor.next_element(&mut first)? {
        count += 1;
        plain = plain && count <= MESSAGES_MAX;
        if !plain {
            cursor.skip_value(2)?;
            continue;
        }
        match plain_message(cursor, typed)? {
            Ok(message) => out.push(message),
            Err(shape) => {
                rich = shape;
                plain = false;
            }
        }
    }
    if !plain {
        out.clear();
    }
    Ok(match (count, plain) {
        (0, _) => MessageList::None,
        (_, true) => MessageList::Plain,
        (1..=MESSAGES_MAX, false) => MessageList::Rich(rich),
        (_, false) => MessageList::None,
    })
}

/// A plain message, or the shape of a chat with this message.
type MessageRead = Result<MessageSpan, RequestShape>;

/// Reads a message. The whole value is consumed either way.
fn plain_message(cursor: &mut Cursor<'_>, typed: bool) -> Result<MessageRead, JsonError> {
    let mut shape = RequestShape::ChatOther;
    if cursor.peek() != Some(b'{') {
        cursor.skip_value(2)?;
        return Ok(Err(shape));
    }
    cursor.open();
    let mut first = true;
    let mut plain = true;
    let mut role = None;
    let mut content = None;
    while let Some(key) = cursor.next_key(&mut first)? {
        let is_text = cursor.peek() == Some(b'"');
        match cursor.slice(&key.span) {
            "role" if is_text => {
                let read = chat_role(cursor)?;
                shape = read.err().unwrap_or(shape);
                role = read.ok();
            }
            "content" if is_text => content = Some(cursor.string()?),
            "type" if typed && is_text => {
                let kind = cursor.string()?;
                plain &= cursor.slice(&kind.span) == "message";
            }
            name => {
                plain = false;
                shape = match name {
                    "content" if cursor.peek() == Some(b'[') => RequestShape::ChatParts,
                    "tool_calls" | "tool_call_id" | "function_call" => RequestShape::ChatTools,
                    _ => shape,
                };
                cursor.skip_value(3)?;
            }
        }
    }
    Ok(match (role, content) {
        (Some(role), Some(content)) if plain => message_span(role, &content).ok_or(shape),
        _ => Err(shape),
    })
}

/// The role, or the shape of a chat with another role.
fn chat_role(cursor: &mut Cursor<'_>) -> Result<Result<ChatRole, RequestShape>, JsonError> {
    let role = cursor.string()?;
    Ok(match cursor.slice(&role.span) {
        "system" => Ok(ChatRole::System),
        "user" => Ok(ChatRole::User),
        "assistant" => Ok(ChatRole::Assistant),
        "developer" => Err(RequestShape::ChatDeveloper),
        "tool" | "function" => Err(RequestShape::ChatTools),
        _ => Err(RequestShape::ChatOther),
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
