//! Chat messages as spans into the request body: what the JSON scan found, without copying text.

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
