//! The parts of `tokenizer.json` that decoding needs. Merges are skipped, because the router does
//! not tokenize.

use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;

/// The contents of a `tokenizer.json`.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizerFile {
    /// Special and other literal tokens, which the tokenizer finds in the text first.
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    /// Splits text into words.
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    /// Adds special tokens around a prompt.
    #[serde(default)]
    pub(super) post_processor: Value,
    /// Turns tokens into text.
    #[serde(default)]
    pub(super) decoder: Value,
    pub(super) model: TokenizerModel,
}

/// An entry of `added_tokens`.
#[derive(Debug, Deserialize)]
pub(super) struct AddedToken {
    /// Token id; wins over the model's vocabulary.
    pub(super) id: u32,
    pub(super) content: String,
    /// Swallows whitespace on its left.
    #[serde(default)]
    pub(super) lstrip: bool,
    /// Swallows whitespace on its right.
    #[serde(default)]
    pub(super) rstrip: bool,
}

/// The `model` object of the file.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizerModel {
    /// `BPE`, `Unigram`, `WordPiece`, `WordLevel`; absent in old files.
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    /// Token texts with their ids.
    pub(super) vocab: Pieces,
    /// True when bytes without a token of their own are written as `<0xHH>`.
    #[serde(default)]
    pub(super) byte_fallback: bool,
    /// Written before tokens inside a word (WordPiece style).
    #[serde(default)]
    pub(super) continuing_subword_prefix: Option<String>,
    /// Written after the last token of a word (CLIP style).
    #[serde(default)]
    pub(super) end_of_word_suffix: Option<String>,
}

/// The two forms of `vocab`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Pieces {
    /// BPE: text to id.
    Ids(HashMap<String, u32>),
    /// Unigram: text and score, the position is the id.
    Scores(Vec<(String, f64)>),
}

impl TokenizerFile {
    /// Ids that the post-processor puts before a single prompt.
    pub(super) fn leading_special_ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        for processor in steps(&self.post_processor, "processors") {
            match kind(processor) {
                "TemplateProcessing" => leading_of_template(processor, &mut ids),
                "BertProcessing" | "RobertaProcessing" => {
                    ids.extend(processor.pointer("/cls/1").and_then(id_of));
                }
                _ => {}
            }
        }
        ids
    }
}

fn leading_of_template(processor: &Value, ids: &mut Vec<u32>) {
    let pieces = processor.get("single").and_then(Value::as_array);
    for piece in pieces.into_iter().flatten() {
        let Some(name) = piece.pointer("/SpecialToken/id").and_then(Value::as_str) else {
            return;
        };
        let token = processor.get("special_tokens").and_then(|tokens| tokens.get(name));
        let token_ids = token.and_then(|token| token.get("ids")).and_then(Value::as_array);
        ids.extend(token_ids.into_iter().flatten().filter_map(id_of));
    }
}

fn id_of(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// The `type` of a step, empty if absent.
pub(super) fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The steps of a pipeline: itself, or the list of its `Sequence` under `key` (nested sequences are
/// flattened).
pub(super) fn steps<'a>(pipeline: &'a Value, key: &str) -> Vec<&'a Value> {
    let mut found = Vec::new();
    let mut open = vec![pipeline];
    while let Some(step) = open.pop() {
        match step.get(key).and_then(Value::as_array) {
            Some(inner) if kind(step) == "Sequence" => open.extend(inner.iter().rev()),
            _ if step.is_null() => {}
            _ => found.push(step),
        }
    }
    found
}
