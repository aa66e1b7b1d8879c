//! `tekken.json`, the vocabulary of Mistral's own tokenizer: special tokens first, and behind them
//! the ranks of a byte-level vocabulary.

use super::error::VocabularyError;
use super::file::{AddedToken, Pieces, TokenizerFile, TokenizerModel};
use super::pieces;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;

/// Special tokens of files that name none.
const OLD_TOKENS: [&str; 20] = [
    "<unk>",
    BOS,
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
/// Token before each prompt.
pub(super) const BOS: &str = "<s>";

#[derive(Deserialize)]
struct TekkenVocabulary {
    config: TekkenSizes,
    vocab: Vec<TekkenToken>,
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenSizes {
    default_vocab_size: u32,
    default_num_special_tokens: u32,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: u32,
    /// The bytes, in base64.
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: u32,
    token_str: String,
}

/// The contents of a file, in the forms of a `tokenizer.json`.
pub(super) struct TekkenContents {
    pub(super) arena: pieces::Arena,
    pub(super) file: TokenizerFile,
}

/// Reads the text of a `tekken.json`.
pub(super) fn read(text: &str) -> Result<TekkenContents, VocabularyError> {
    let tekken: TekkenVocabulary = serde_json::from_str(text)?;
    let special_count = tekken.config.default_num_special_tokens;
    let mut tokens = Vec::new();
    for token in &tekken.vocab {
        let id = special_count.saturating_add(token.rank);
        // The rest of the list is not used.
        if id < tekken.config.default_vocab_size {
            let fault = || VocabularyError::NotInvertible(format!("token {id} is not in base64"));
            pieces::place(&mut tokens, id, decoded(&token.token_bytes).ok_or_else(fault)?)?;
        }
    }
    let mut added = HashMap::new();
    match &tekken.special_tokens {
        Some(named) => {
            added.extend(named.iter().map(|token| (token.rank, token.token_str.clone())));
        }
        None => added.extend((0..).zip(OLD_TOKENS.map(str::to_owned))),
    }
    let name = |id: u32| added.get(&id).cloned().unwrap_or_else(|| format!("<SPECIAL_{id}>"));
    let token = |id| AddedToken { id, content: name(id), lstrip: false, rstrip: false };
    let added_tokens: Vec<AddedToken> = (0..special_count.min(SPECIAL_MAX)).map(token).collect();
    for token in &added_tokens {
        pieces::place(&mut tokens, token.id, token.content.clone().into_bytes())?;
    }
    let model = TokenizerModel {
        kind: None,
        vocab: Pieces::Scores(Vec::new()),
        byte_fallback: false,
        continuing_subword_prefix: None,
        end_of_word_suffix: None,
    };
    let file = TokenizerFile {
        added_tokens,
        normalizer: Value::Null,
        pre_tokenizer: Value::Null,
        post_processor: Value::Null,
        decoder: Value::Null,
        model,
    };
    Ok(TekkenContents { arena: pieces::Arena::try_new(&tokens)?, file })
}

/// Most special tokens; known files have 1,000.
const SPECIAL_MAX: u32 = 1 << 16;

/// Bytes of a text in base64 with padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let byte_count = group.len().checked_sub(1).filter(|count| *count > 0)?;
        let mut bits = 0_u32;
        for byte in group {
            bits = bits << 6 | u32::from(sextet(*byte)?);
        }
        let [_, one, two, three] = (bits << (6 * (4 - group.len()))).to_be_bytes();
        bytes.extend([one, two, three].into_iter().take(byte_count));
    }
    Some(bytes)
}

fn sextet(character: u8) -> Option<u8> {
    Some(match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::Vocabulary;

    const FILE: &str = r#"{
        "config": { "default_vocab_size": 1004, "default_num_special_tokens": 1000 },
        "vocab": [
            { "rank": 0, "token_bytes": "YQ==", "token_str": "a" },
            { "rank": 1, "token_bytes": "/+8=", "token_str": null },
            { "rank": 2, "token_bytes": "IGJj", "token_str": " bc" },
            { "rank": 3, "token_bytes": "4pagIA==", "token_str": "x" },
            { "rank": 4, "token_bytes": "YQ==", "token_str": "not used" }
        ] }"#;

    #[test]
    fn ids_are_special_tokens_and_then_ranks() {
        let vocabulary = Vocabulary::from_tekken_json(FILE).unwrap();
        for (id, bytes) in [
            (1, &b"<s>"[..]),
            (4, b"[/INST]"),
            (20, b"<SPECIAL_20>"),
            (999, b"<SPECIAL_999>"),
            (1000, b"a"),
            (1001, b"\xff\xef"),
            (1002, b" bc"),
            (1003, "\u{25a0} ".as_bytes()),
        ] {
            assert_eq!(vocabulary.bytes(id), Some(bytes), "{id}");
        }
        assert_eq!(vocabulary.token_count(), 1004);
        assert_eq!(vocabulary.completion_prefix(), b"<s>");
        assert!(vocabulary.spells_token(b"a [INST] b") && !vocabulary.spells_token(b"a [b] <c>"));
        assert!(vocabulary.has_media(&[10]) && !vocabulary.has_media(&[1, 1000]));
    }

    #[test]
    fn named_special_tokens_win_and_odd_files_are_refused() {
        let named = FILE.replace(
            "\"vocab\"",
            "\"special_tokens\": [{ \"rank\": 3, \"token_str\": \"[THINK]\" }], \"vocab\"",
        );
        let vocabulary = Vocabulary::from_tekken_json(&named).unwrap();
        assert_eq!(vocabulary.bytes(3), Some(&b"[THINK]"[..]));
        assert_eq!(vocabulary.bytes(4), Some(&b"<SPECIAL_4>"[..]));
        for odd in ["{", "{}", &FILE.replace("YQ==", "Y!=="), &FILE.replace("/+8=", "A")] {
            assert!(Vocabulary::from_tekken_json(odd).is_err(), "{odd}");
        }
        let large = FILE.replace("\"rank\": 3", "\"rank\": 4294967295");
        assert!(Vocabulary::from_tekken_json(&large).is_ok(), "behind the size: not used");
    }
}
