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
        if let Some(shape) = plain_message(cursor, typed, out)? {
            rich = shape;
            plain = false;
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

/// What was read of a message.
struct MessageMembers {
    /// All that was read is of a plain message.
    plain: bool,
    /// Shape of a chat with this message, if the message is not plain.
    shape: RequestShape,
    role: Option<ChatRole>,
    content: Option<Text>,
}

impl MessageMembers {
    /// Reads the members up to the end of the message. `first`: none was read.
    #[inline(never)]
    fn members(
        &mut self,
        mut first: bool,
        typed: bool,
        cursor: &mut Cursor<'_>,
    ) -> Result<(), JsonError> {
        while let Some(key) = cursor.next_key(&mut first)? {
            self.member(cursor.slice(&key.span), typed, cursor)?;
        }
        Ok(())
    }

    /// Reads a member, with the cursor on its value.
    #[inline(always)]
    fn member(
        &mut self,
        name: &str,
        typed: bool,
        cursor: &mut Cursor<'_>,
    ) -> Result<(), JsonError> {
        let is_text = cursor.peek() == Some(b'"');
        match name {
            "role" if is_text => {
                let read = chat_role(cursor)?;
                self.shape = read.err().unwrap_or(self.shape);
                self.role = read.ok();
            }
            "content" if is_text => self.content = Some(cursor.string()?),
            "type" if typed && is_text => {
                let kind = cursor.string()?;
                self.plain &= cursor.slice(&kind.span) == "message";
            }
            _ => {
                self.plain = false;
                self.shape = match name {
                    "content" if cursor.peek() == Some(b'[') => RequestShape::ChatParts,
                    "tool_calls" | "tool_call_id" | "function_call" => RequestShape::ChatTools,
                    _ => self.shape,
                };
                cursor.skip_value(3)?;
            }
        }
        Ok(())
    }

    fn span(&self) -> Option<MessageSpan> {
        message_span(self.role.filter(|_| self.plain)?, self.content.as_ref()?)
    }
}

/// Reads a message into `out`, or returns the shape of a chat with this message if it is not plain.
/// The whole value is consumed either way.
fn plain_message(
    cursor: &mut Cursor<'_>,
    typed: bool,
    out: &mut Vec<MessageSpan>,
) -> Result<Option<RequestShape>, JsonError> {
    let shape = RequestShape::ChatOther;
    if cursor.peek() != Some(b'{') {
        cursor.skip_value(2)?;
        return Ok(Some(shape));
    }
    let mut read = MessageMembers { plain: true, shape, role: None, content: None };
    // Most clients write the role first, then the content, and nothing else.
    if cursor.pass_key(b"{\"role\":")? {
        read.member("role", typed, cursor)?;
        if cursor.pass_key(b",\"content\":")? || cursor.pass_key(b", \"content\":")? {
            read.member("content", typed, cursor)?;
        }
        if !cursor.pass(b"}") {
            read.members(false, typed, cursor)?;
        }
    } else {
        cursor.open();
        read.members(true, typed, cursor)?;
    }
    let span = read.span();
    let shape = span.is_none().then_some(read.shape);
    out.extend(span);
    Ok(shape)
}

/// The role, or the shape of a chat with another role.
#[inline(always)]
fn chat_role(cursor: &mut Cursor<'_>) -> Result<Result<ChatRole, RequestShape>, JsonError> {
    match () {
        () if cursor.pass(b"\"user\"") => Ok(Ok(ChatRole::User)),
        () if cursor.pass(b"\"assistant\"") => Ok(Ok(ChatRole::Assistant)),
        () if cursor.pass(b"\"system\"") => Ok(Ok(ChatRole::System)),
        () => other_role(cursor).map(Err),
    }
}

/// The shape of a chat with another role.
#[inline(never)]
fn other_role(cursor: &mut Cursor<'_>) -> Result<RequestShape, JsonError> {
    let role = cursor.string()?;
    Ok(match cursor.slice(&role.span) {
        "developer" => RequestShape::ChatDeveloper,
        "tool" | "function" => RequestShape::ChatTools,
        _ => RequestShape::ChatOther,
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

#[cfg(test)]
mod tests {
    use super::{MessageList, message_list};
    use forebay_fleet::trust::RequestShape;
    use forebay_json::{Cursor, JsonError};
    use forebay_text::chat::ChatRole;

    type Read = (MessageList, Vec<(ChatRole, String, bool)>);
    /// Members, and the role if the message is plain.
    type MessageCase<'a> = (&'a [(&'a str, &'a str)], Option<ChatRole>);

    fn read(body: &str) -> Result<Read, JsonError> {
        let mut cursor = Cursor::new(body.as_bytes())?;
        let mut spans = Vec::new();
        let list = message_list(&mut cursor, false, &mut spans)?;
        cursor.end()?;
        let text =
            |span: &std::ops::Range<u32>| body[span.start as usize..span.end as usize].into();
        let messages = spans.iter().map(|span| (span.role, text(&span.content), span.escaped));
        Ok((list, messages.collect()))
    }

    /// The form that most clients write takes a shorter way through the scan.
    #[test]
    fn a_message_is_the_same_however_it_is_written() {
        let user = ("role", "\"user\"");
        let content = ("content", r#""a \n b""#);
        let cases: [MessageCase<'_>; 13] = [
            (&[user, content], Some(ChatRole::User)),
            (&[("role", "\"assistant\""), content], Some(ChatRole::Assistant)),
            (&[("role", "\"system\""), content], Some(ChatRole::System)),
            (&[user, user, content], Some(ChatRole::User)),
            (&[user, content, ("role", "\"system\"")], Some(ChatRole::System)),
            (&[user, ("content", "\"old\""), content], Some(ChatRole::User)),
            (&[("role", "\"tool\""), content, user], Some(ChatRole::User)),
            (&[("role", "\"tool\""), content], None),
            (&[("role", "\"user \""), content], None),
            (&[("role", "null"), content], None),
            (&[user, ("content", "null")], None),
            (&[user, content, ("name", "\"n\"")], None),
            (&[user], None),
        ];
        for (members, role) in cases {
            let mut kinds = Vec::new();
            for [open, comma, colon, close] in
                [["{", ",", ":", "}"], ["{", ", ", ": ", "}"], ["{ ", "\n, ", " :\t", " }"]]
            {
                let members =
                    members.iter().map(|(name, value)| format!("\"{name}\"{colon}{value}"));
                let message = [open, &members.collect::<Vec<_>>().join(comma), close].concat();
                let (list, read) = read(&format!("[{message},{message}]")).unwrap();
                kinds.push(list);
                let wanted = role.map(|role| (role, r"a \n b".to_owned(), true));
                assert_eq!(
                    read,
                    [&wanted, &wanted].into_iter().flatten().cloned().collect::<Vec<_>>()
                );
                for cut in 1..message.len() {
                    let cut = &message[..cut];
                    assert!(super::tests::read(&format!("[{cut}]")).is_err(), "{cut}");
                }
            }
            assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{kinds:?}");
            assert_eq!(kinds[0] == MessageList::Plain, role.is_some());
        }
        let tool = read(r#"[{"role":"tool","content":"a"}]"#).unwrap().0;
        assert_eq!(tool, MessageList::Rich(RequestShape::ChatTools));
    }
}
