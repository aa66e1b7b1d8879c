//! The special tokens that a template can name.

/// Variables such as `bos_token` and `eos_token`, with their text. Absent ones stay undefined in
/// the template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    named: Vec<(String, String)>,
}

impl SpecialTokens {
    /// No token at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one token, for example `bos_token`; the last one set under a name wins.
    #[must_use]
    pub fn with(mut self, name: &str, text: &str) -> Self {
        self.named.retain(|(known, _)| known != name);
        self.named.push((name.to_owned(), text.to_owned()));
        self
    }

    /// The text of one token.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.iter().find_map(|(known, text)| (known == name).then_some(text))
    }

    /// All of them, as name and text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }
}
