//! Chat messages as spans into the request body: what the JSON scan found, without copying text.

use super::unescape::unescape_into;
use std::ops::Range;

/// Author of a plain message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChatRole {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl ChatRole {
    /// The word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message that has a role, one string as content, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSpan {
    /// Author.
    pub role: ChatRole,
    /// Bytes between the quotes of the content string, still JSON-escaped.
    pub content: Range<u32>,
    /// True when the span holds at least one backslash.
    pub escaped: bool,
}

impl MessageSpan {
    /// The content as text; `None` when the span is not UTF-8 of this body.
    pub(super) fn text(&self, body: &[u8]) -> Option<String> {
        let sent = self.sent(body)?;
        let mut text = Vec::with_capacity(sent.len());
        unescape_into(sent, &mut text);
        String::from_utf8(text).ok()
    }

    /// The bytes of the span, still escaped.
    pub(super) fn sent<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.content.start;
        let end = self.content.end;
        body.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}
