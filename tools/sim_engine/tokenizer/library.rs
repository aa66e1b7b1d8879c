//! Any `tokenizer.json`, by the library `tokenizers`.

use super::error::TokenizerError;
use tokenizers::Tokenizer;

#[derive(Debug)]
pub(super) struct LibraryTokenizer(Tokenizer);

impl LibraryTokenizer {
    pub(super) fn from_json(text: &str) -> Result<Self, TokenizerError> {
        let mut inner: Tokenizer =
            text.parse().map_err(|error| TokenizerError::Library(format!("{error}")))?;
        // Padding and truncation are the training pipeline's; servers use neither.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| TokenizerError::Library(error.to_string()))?;
        Ok(Self(inner))
    }

    pub(super) fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.0.encode_fast(text, special);
        let encoding = encoding.map_err(|error| TokenizerError::Library(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.0.decode(ids, false).unwrap_or_default()
    }

    pub(super) fn spelling(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    pub(super) fn vocabulary_size(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    /// Added tokens that the library cuts out before anything else looks at the text.
    pub(super) fn splitters(&self) -> Vec<(String, u32)> {
        let added = self.0.get_added_tokens_decoder();
        if added.values().any(|token| token.lstrip || token.rstrip || token.single_word) {
            return Vec::new();
        }
        let raw = added.into_iter().filter(|(_, token)| !token.normalized);
        raw.map(|(id, token)| (token.content, id)).collect()
    }
}
