//! A prompt that an encoder writes: the encoder's own special tokens, and ordinary text between.

use super::error::RenderError;
use super::steps::{count_read, count_written};
use crate::Vocabulary;

/// A prompt in the making. Engines read the texts of a request without special tokens, so a text
/// that spells a special token has the bytes of the token, but other tokens.
pub(super) struct EncodedPrompt<'a> {
    out: &'a mut Vec<u8>,
    vocabulary: &'a Vocabulary,
    /// Start of the ordinary text at the end of `out`.
    ordinary_at: usize,
    spells_token: bool,
}

impl<'a> EncodedPrompt<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, vocabulary: &'a Vocabulary) -> Self {
        let ordinary_at = out.len();
        Self { out, vocabulary, ordinary_at, spells_token: false }
    }

    /// Appends a text of the encoder that starts and ends with a special token.
    pub(super) fn push_mark(&mut self, mark: &str) {
        self.check_ordinary();
        count_written(mark.len());
        self.out.extend_from_slice(mark.as_bytes());
        self.ordinary_at = self.out.len();
    }

    /// Appends ordinary text of a request.
    pub(super) fn push(&mut self, text: &str) {
        count_written(text.len());
        self.out.extend_from_slice(text.as_bytes());
    }

    /// The bytes, to append ordinary text.
    pub(super) fn ordinary(&mut self) -> &mut Vec<u8> {
        self.out
    }

    fn check_ordinary(&mut self) {
        let ordinary = self.out.get(self.ordinary_at..).unwrap_or_default();
        count_read(ordinary.len());
        self.spells_token |= self.vocabulary.spells_token(ordinary);
    }

    /// Ends the prompt.
    ///
    /// # Errors
    /// [`RenderError::Unsupported`] where ordinary text spells a special token.
    pub(super) fn finish(mut self) -> Result<(), RenderError> {
        self.check_ordinary();
        let spelled = RenderError::Unsupported("a text spells a special token");
        (!self.spells_token).then_some(()).ok_or(spelled)
    }
}
