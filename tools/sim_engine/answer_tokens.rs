//! The tokens of an answer so far, as ids and as text.

use super::tokenizer::Tokenizer;

/// Tokens of an answer that a rank has computed.
#[derive(Debug, Default)]
pub(super) struct AnswerTokens {
    pub(super) ids: Vec<u32>,
    pub(super) text: String,
    /// Prompt tokens that were found in a cache.
    pub(super) cached: usize,
}

impl AnswerTokens {
    /// Adds a token. The last value of `cached` counts.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, token_id: u32, cached: usize) {
        self.cached = cached;
        self.ids.push(token_id);
        self.text.push_str(tokenizer.word(token_id));
    }
}
