//! Chat messages as spans of the request body, from the JSON scan, without a copy of the text.

use forebay_json::unescape_into;
use std::ops::Range;

/// API that a body was sent to. It decides what the parts of a body mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatApi {
    /// A body of `/v1/chat/completions`.
    Chat,
    /// A body of Anthropic's `/v1/messages`.
    Messages,
    /// A body of `/v1/responses`.
    Responses,
}

/// Author of a plain message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChatRole {
    System,
    User,
    Assistant,
}

impl ChatRole {
    /// The name of the role on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A message with only a role and a string as content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSpan {
    pub role: ChatRole,
    /// Bytes between the quotes of the content string, still JSON-escaped.
    pub content: Range<u32>,
    /// True when the span has a backslash.
    pub escaped: bool,
}

impl MessageSpan {
    /// The content as text; `None` when the span is not UTF-8 of this body.
    pub(super) fn text(&self, body: &[u8]) -> Option<String> {
        let raw = self.raw(body)?;
        let mut text = Vec::with_capacity(raw.len());
        unescape_into(raw, &mut text);
        String::from_utf8(text).ok()
    }

    /// The bytes of the span, still escaped.
    pub(super) fn raw<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.content.start;
        let end = self.content.end;
        body.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}
