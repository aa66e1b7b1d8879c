//! Checks that the tokens of a tokenizer decode to the text they came from, and detects the
//! spelling of its tokens.

use super::error::VocabularyError;
use super::file::{TokenizerFile, kind, steps};
use serde_json::Value;

/// Spelling of bytes in the model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// A printable character for each byte (GPT-2's table).
    ByteLevel,
    /// Plain text with `▁` for a space (SentencePiece).
    Spaced,
    Plain,
}

/// Refuses a tokenizer that loses text; else returns its spelling.
pub(super) fn check(file: &TokenizerFile) -> Result<Spelling, VocabularyError> {
    check_model(file)?;
    let mut spelling = Spelling::Plain;
    for step in steps(&file.normalizer, "normalizers") {
        spelling = spelling.or(check_normalizer(step)?);
    }
    for step in steps(&file.pre_tokenizer, "pretokenizers") {
        spelling = spelling.or(check_pre_tokenizer(step)?);
    }
    for step in steps(&file.decoder, "decoders") {
        spelling = spelling.or(check_decoder(step)?);
    }
    Ok(spelling)
}

impl Spelling {
    /// The first step that names a spelling decides.
    fn or(self, found: Self) -> Self {
        if self == Self::Plain { found } else { self }
    }
}

fn lossy(part: &str, step: &Value) -> VocabularyError {
    VocabularyError::NotInvertible(format!("its {part} `{}` loses text", kind(step)))
}

fn check_model(file: &TokenizerFile) -> Result<(), VocabularyError> {
    let model = &file.model;
    let name = model.kind.as_deref().unwrap_or("BPE");
    if !matches!(name, "BPE" | "Unigram") {
        return Err(VocabularyError::NotInvertible(format!("its model is of type `{name}`")));
    }
    for mark in [&model.continuing_subword_prefix, &model.end_of_word_suffix] {
        if mark.as_deref().is_some_and(|mark| !mark.is_empty()) {
            return Err(VocabularyError::NotInvertible("its model marks word borders".into()));
        }
    }
    Ok(())
}

fn check_normalizer(step: &Value) -> Result<Spelling, VocabularyError> {
    let content = step.get("content").and_then(Value::as_str);
    let pattern = step.pointer("/pattern/String").and_then(Value::as_str);
    match kind(step) {
        "NFC" => Ok(Spelling::Plain),
        "ByteLevel" => Ok(Spelling::ByteLevel),
        "Prepend" if step.get("prepend").and_then(Value::as_str) == Some(SPACE_MARK) => {
            Ok(Spelling::Spaced)
        }
        "Replace" if pattern == Some(" ") && content == Some(SPACE_MARK) => Ok(Spelling::Spaced),
        _ => Err(lossy("normalizer", step)),
    }
}

fn check_pre_tokenizer(step: &Value) -> Result<Spelling, VocabularyError> {
    let removes = step.get("behavior").and_then(Value::as_str) == Some("Removed");
    let inverted = step.get("invert").and_then(Value::as_bool) == Some(true);
    match kind(step) {
        "ByteLevel" => Ok(Spelling::ByteLevel),
        "Metaspace" if step.get("replacement").and_then(Value::as_str) == Some(SPACE_MARK) => {
            Ok(Spelling::Spaced)
        }
        // The inverted form keeps matches, and such patterns (cl100k) match all text.
        "Split" if !removes || inverted => Ok(Spelling::Plain),
        "Punctuation" if !removes => Ok(Spelling::Plain),
        "Digits" | "UnicodeScripts" | "FixedLength" => Ok(Spelling::Plain),
        _ => Err(lossy("pre-tokenizer", step)),
    }
}

fn check_decoder(step: &Value) -> Result<Spelling, VocabularyError> {
    let mark = step.pointer("/pattern/String").and_then(Value::as_str) == Some(SPACE_MARK);
    match kind(step) {
        "ByteLevel" => Ok(Spelling::ByteLevel),
        "Metaspace" => Ok(Spelling::Spaced),
        "Replace" if mark => Ok(Spelling::Spaced),
        "WordPiece" | "BPEDecoder" | "CTC" => Err(lossy("decoder", step)),
        _ => Ok(Spelling::Plain),
    }
}

/// SentencePiece's mark for a space, U+2581.
pub(super) const SPACE_MARK: &str = "\u{2581}";
