//! Token ids to bytes, and the tokenizer's normalization of text. Built by the control plane from
//! `tokenizer.json`, then immutable and shared by every shard.
//!
//! Only tokenizers that keep every byte are accepted: byte-level BPE and SentencePiece models.
//! Normalizers to NFC (Qwen) are supported: `align` composes the prompt's text. With a
//! SentencePiece model without byte fallback, text is matched up to the first character that the
//! model lacks, which only costs a hit.
//!
//! # Spaces that the tokenizer adds or removes
//! Decoded blocks contain the text after normalization, so the prompt's text is normalized too
//! ([`Vocabulary::align`]), and the blocks never change. SentencePiece models put a space before
//! the text (or before each run of text between special tokens): `align` inserts it. Special tokens
//! marked `lstrip` or `rstrip` strip the whitespace beside them (Phi): `align` removes it. For most
//! byte-level models both are absent, and `align` does nothing.
//!
//! Limits: `TOKEN_IDS_MAX` ids; 2 GiB of token text. Must never allocate after it is built.

mod composed;
mod error;
mod file;
mod images;
mod lossless;
mod media;
mod pieces;
mod reading;
mod tekken;

pub use error::VocabularyError;

use file::TokenizerFile;
use lossless::Spelling;
use media::MediaTokens;
use pieces::Arena;
use reading::TextReading;
use std::hash::Hasher;
use twox_hash::XxHash3_64;

/// The bytes of each token id of a tokenizer.
#[derive(Debug)]
pub struct Vocabulary {
    arena: Arena,
    reading: TextReading,
    completion_prefix: Box<[u8]>,
    media: MediaTokens,
}

impl Vocabulary {
    /// Reads a `tokenizer.json` as Hugging Face `tokenizers` 0.13 to 0.23 write it.
    ///
    /// # Errors
    /// [`VocabularyError`], with the unsupported part of the file.
    pub fn from_tokenizer_json(text: &str) -> Result<Self, VocabularyError> {
        let file: TokenizerFile = serde_json::from_str(text)?;
        let style = lossless::check(&file)?;
        let arena = pieces::build(&file, style)?;
        let reading = TextReading::new(&file, style);
        let media = MediaTokens::new(&file);
        let mut vocabulary = Self { arena, reading, completion_prefix: Box::default(), media };
        vocabulary.completion_prefix = vocabulary.prefix_of(&file);
        Ok(vocabulary)
    }

    /// Reads a `tekken.json` of Mistral's own tokenizer.
    ///
    /// # Errors
    /// [`VocabularyError`], with the unsupported part of the file.
    pub fn from_tekken_json(text: &str) -> Result<Self, VocabularyError> {
        let tekken::TekkenContents { arena, file } = tekken::read(text)?;
        let reading = TextReading::new(&file, Spelling::ByteLevel);
        let media = MediaTokens::new(&file);
        Ok(Self { arena, reading, completion_prefix: tekken::BOS.as_bytes().into(), media })
    }

    /// The same with other bytes before completion prompts, for configurations that override the
    /// bytes of the file.
    #[must_use]
    pub fn with_completion_prefix(mut self, prefix: &[u8]) -> Self {
        self.completion_prefix = prefix.into();
        self
    }

    /// The same with images matched by their names: `image` is their placeholder, and `marks`
    /// around it count as text. Unchanged if the placeholder has no bytes.
    #[must_use]
    pub fn with_images(mut self, image: u32, marks: &[u32]) -> Self {
        if self.bytes(image).is_some_and(|bytes| !bytes.is_empty()) {
            self.media.follow_images(image, marks);
        }
        self
    }

    /// The bytes of a token. `None` for an id that is not in the vocabulary.
    #[must_use]
    pub fn bytes(&self, token_id: u32) -> Option<&[u8]> {
        self.arena.bytes(token_id)
    }

    /// Appends the bytes of all `ids`. False, without a change of `out`, for an unknown id.
    pub fn decode_into(&self, ids: &[u32], out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for id in ids {
            let Some(bytes) = self.arena.bytes(*id) else {
                out.truncate(start);
                return false;
            };
            out.extend_from_slice(bytes);
        }
        true
    }

    /// True if an id is a placeholder for an image, sound or the like, judged by its name.
    #[must_use]
    pub fn has_media(&self, ids: &[u32]) -> bool {
        self.media.has_any(ids)
    }

    /// Bytes that the engine puts before the prompt of `/v1/completions` (the BOS token of the
    /// post-processor), or none. Chat templates write their own BOS token.
    #[must_use]
    pub fn completion_prefix(&self) -> &[u8] {
        &self.completion_prefix
    }

    /// Changes `text[from..]` to the text that its tokens will decode to (see the module on
    /// spaces). Allocates only when `text` must grow. False when the text now ends early, at a
    /// character with too many marks.
    pub fn align(&self, text: &mut Vec<u8>, from: usize) -> bool {
        self.reading.align(text, from)
    }

    /// True if [`Vocabulary::align`] must compose this text, which takes some 20 ns a byte.
    #[must_use]
    pub fn would_compose(&self, text: &[u8]) -> bool {
        self.reading.would_compose(text)
    }

    /// True if the text holds the text of a special or another literal token.
    #[must_use]
    pub fn spells_token(&self, text: &[u8]) -> bool {
        self.reading.spells_token(text)
    }

    /// A hash of the bytes of every id: equal hashes mean equal decoding. Takes some milliseconds.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = XxHash3_64::new();
        for id in 0..u32::try_from(self.token_count()).unwrap_or(u32::MAX) {
            let bytes = self.bytes(id);
            let length = bytes.map_or(u64::MAX, |bytes| bytes.len() as u64);
            hasher.write(&length.to_le_bytes());
            hasher.write(bytes.unwrap_or_default());
        }
        hasher.finish()
    }

    /// The highest token id plus 1.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.arena.token_count()
    }

    fn prefix_of(&self, file: &TokenizerFile) -> Box<[u8]> {
        let mut prefix = Vec::new();
        for id in file.leading_special_ids() {
            prefix.extend_from_slice(self.bytes(id).unwrap_or_default());
        }
        prefix.into_boxed_slice()
    }
}

#[cfg(test)]
mod tests;
