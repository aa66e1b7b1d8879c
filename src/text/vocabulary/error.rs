//! Why a tokenizer file cannot be used, and the limit of its ids.

/// Largest token id plus 1; the largest vocabularies of 2026 have about 260,000 tokens.
pub(super) const TOKEN_IDS_MAX: u32 = 1 << 22;

/// Why a tokenizer file cannot be used to match prompts by their bytes.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// Not the JSON that Hugging Face `tokenizers` or `mistral_common` write.
    #[error("not the JSON of a tokenizer: {0}")]
    Json(#[from] serde_json::Error),
    /// Tokens do not decode to the text they came from, for example after lower-casing.
    #[error("tokens cannot be turned back into the text they came from: {0}")]
    NotInvertible(String),
    /// An id beyond the limit of 4,194,304, or more text than 32-bit offsets address.
    #[error("token id {0} is too large")]
    TooLarge(u32),
}
