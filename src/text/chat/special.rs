//! Special tokens as variables of a template.

/// Variables such as `bos_token` and `eos_token`, with their text. Absent variables stay undefined
/// in the template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    named: Vec<(String, String)>,
}

impl SpecialTokens {
    /// A set without special tokens.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a token, for example `bos_token`; the last text of a name wins.
    #[must_use]
    pub fn with(mut self, name: &str, text: &str) -> Self {
        self.named.retain(|(known, _)| known != name);
        self.named.push((name.to_owned(), text.to_owned()));
        self
    }

    /// The text of a token.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.iter().find_map(|(known, text)| (known == name).then_some(text))
    }

    /// All tokens, as name and text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }
}
