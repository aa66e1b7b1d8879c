//! Shape of a request, as far as it decides how an engine renders the prompt.

/// Shape of a request. Engines render each shape by code of its own, so a renderer that is wrong
/// for a shape may be right for another shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestShape {
    /// A chat of user and assistant messages with plain text.
    #[default]
    Chat,
    /// The same, with a system message.
    ChatSystem,
    /// A chat with a developer message.
    ChatDeveloper,
    /// A chat with tools, calls of tools or their results.
    ChatTools,
    /// A chat with content in parts.
    ChatParts,
    /// A chat with other arguments of the template.
    ChatOther,
    /// Body of `POST /v1/messages`, as Anthropic writes it.
    Messages,
    /// Body of `POST /v1/responses`, as OpenAI writes it.
    Responses,
    /// Text without a template.
    Text,
    /// Token ids without a text.
    TokenIds,
}

impl RequestShape {
    /// All shapes, in the order of declaration.
    pub const ALL: [Self; 10] = [
        Self::Chat,
        Self::ChatSystem,
        Self::ChatDeveloper,
        Self::ChatTools,
        Self::ChatParts,
        Self::ChatOther,
        Self::Messages,
        Self::Responses,
        Self::Text,
        Self::TokenIds,
    ];

    /// Position of the shape in [`RequestShape::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name of the shape in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::ChatSystem => "chat_system",
            Self::ChatDeveloper => "chat_developer",
            Self::ChatTools => "chat_tools",
            Self::ChatParts => "chat_parts",
            Self::ChatOther => "chat_other",
            Self::Messages => "messages",
            Self::Responses => "responses",
            Self::Text => "text",
            Self::TokenIds => "token_ids",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RequestShape;

    #[test]
    fn indices_are_positions() {
        for (position, shape) in RequestShape::ALL.into_iter().enumerate() {
            assert_eq!(shape.index(), position);
        }
    }
}
