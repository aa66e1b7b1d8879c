//! Decoding against the `tokenizers` crate and by hand.

use super::{Vocabulary, VocabularyError};
use proptest::prelude::{ProptestConfig, Strategy, prop, prop_assert_eq, proptest};
use serde_json::{Value, json};
use std::str::FromStr;
use tokenizers::Tokenizer;

const OWN: &str = include_str!("../../../tests/data/tokenizer/tokenizer.json");

/// A SentencePiece-like file: all bytes, some letters and words, two special tokens of which one
/// swallows whitespace.
fn spaced(normalizer: &Value, pre_tokenizer: &Value, strips: bool) -> String {
    let mut vocab = serde_json::Map::new();
    let mut pieces: Vec<String> = ["<unk>", "<s>", "<|end|>"].map(String::from).to_vec();
    pieces.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    pieces.extend("▁ e t a o h l\u{e9} H".split(' ').map(String::from));
    pieces.extend(["▁▁", "▁t", "he"].map(String::from));
    for (id, piece) in pieces.iter().enumerate() {
        vocab.insert(piece.clone(), json!(id));
    }
    let added = |id: u32, content: &str, strips: bool| json!({ "id": id, "content": content, "single_word": false, "lstrip": strips, "rstrip": strips, "normalized": false, "special": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>", false), added(1, "<s>", false),
            added(2, "<|end|>", strips)],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": { "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}} },
        "decoder": { "type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}] },
        "model": { "type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocab, "merges": ["▁ ▁", "▁ t", "h e"] },
    })
    .to_string()
}

fn legacy_normalizer() -> Value {
    json!({ "type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}] })
}

fn metaspace(scheme: &str) -> Value {
    json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false })
}

/// Every way of reading text that is supported.
fn all_files() -> Vec<String> {
    let mut files = vec![OWN.to_owned()];
    for strips in [false, true] {
        files.push(spaced(&legacy_normalizer(), &Value::Null, strips));
        for scheme in ["first", "always", "never"] {
            files.push(spaced(&Value::Null, &metaspace(scheme), strips));
        }
    }
    let mut prefixed: Value = serde_json::from_str(OWN).unwrap();
    prefixed["pre_tokenizer"]["add_prefix_space"] = json!(true);
    prefixed["added_tokens"][1]["rstrip"] = json!(true);
    prefixed["added_tokens"][2]["lstrip"] = json!(true);
    files.push(prefixed.to_string());
    let mut composing: Value = serde_json::from_str(OWN).unwrap();
    composing["normalizer"] = json!({ "type": "NFC" });
    files.push(composing.to_string());
    files
}

fn text() -> impl Strategy<Value = String> {
    let atom = prop::sample::select(vec![
        " ",
        "  ",
        "\n",
        "\t\n ",
        "the",
        "He",
        "lé",
        "日本",
        "😀",
        "<s>",
        "<|end|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<",
        "<|im",
        "\u{a0}",
        "\u{3000}",
        "\u{0}",
        "don't",
        "42",
        "▁",
        ".",
        "user\n",
        "\r\n",
        "e\u{301}",
        "\u{323}\u{307}",
        "\u{1112}\u{1161}\u{11ab}",
        "\u{338}",
    ]);
    prop::collection::vec(atom, 0..12).prop_map(|atoms| atoms.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// What the engine's tokenizer makes of a text decodes to the aligned text, byte for byte.
    #[test]
    fn decoded_tokens_are_the_aligned_text(text in text(), wild in ".{0,20}") {
        thread_local! {
            static ALL: Vec<(Tokenizer, Vocabulary)> = all_files()
                .iter()
                .map(|file| {
                    let vocabulary = Vocabulary::from_tokenizer_json(file).unwrap();
                    (Tokenizer::from_str(file).unwrap(), vocabulary)
                })
                .collect();
        }
        ALL.with(|all| {
            for text in [text.clone(), format!("{wild}{text}")] {
                for (tokenizer, vocabulary) in all {
                    let encoded = tokenizer.encode(text.as_str(), false).unwrap();
                    let mut decoded = Vec::new();
                    assert!(vocabulary.decode_into(encoded.get_ids(), &mut decoded));
                    let mut aligned = b"kept".to_vec();
                    aligned.extend_from_slice(text.as_bytes());
                    vocabulary.align(&mut aligned, 4);
                    assert_eq!(&aligned[..4], b"kept");
                    prop_assert_eq!(
                        String::from_utf8_lossy(&aligned[4..]),
                        String::from_utf8_lossy(&decoded)
                    );
                }
            }
            Ok(())
        })?;
    }
}

#[test]
fn byte_level_tokens_are_their_bytes() {
    let vocabulary = Vocabulary::from_tokenizer_json(OWN).unwrap();
    let tokenizer = Tokenizer::from_str(OWN).unwrap();
    for (token, bytes) in
        [("Ġthe", " the"), ("Ċ", "\n"), ("ł", "\u{a0}"), ("<|im_start|>", "<|im_start|>")]
    {
        let id = tokenizer.token_to_id(token).unwrap();
        let last = &bytes.as_bytes()[bytes.len() - 1..];
        let expected = if token == "ł" { last } else { bytes.as_bytes() };
        assert_eq!(vocabulary.bytes(id), Some(expected), "{token}");
    }
    assert_eq!(vocabulary.token_count(), tokenizer.get_vocab_size(true));
    assert_eq!(vocabulary.completion_prefix(), b"");
}

#[test]
fn unknown_ids_decode_to_nothing() {
    let vocabulary = Vocabulary::from_tokenizer_json(OWN).unwrap();
    let mut out = b"before".to_vec();
    assert!(!vocabulary.decode_into(&[0, 1, 1_000_000], &mut out));
    assert_eq!(out, b"before");
    assert_eq!(vocabulary.bytes(u32::MAX), None);
    let sparse = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 5}, "merges": []}}"#;
    let vocabulary = Vocabulary::from_tokenizer_json(sparse).unwrap();
    assert_eq!(
        (vocabulary.bytes(0), vocabulary.bytes(3), vocabulary.bytes(5)),
        (Some(&b"a"[..]), None, Some(&b"b"[..]))
    );
}

#[test]
fn sentence_piece_tokens_are_spaces_and_bytes() {
    let vocabulary =
        Vocabulary::from_tokenizer_json(&spaced(&legacy_normalizer(), &Value::Null, false))
            .unwrap();
    assert_eq!(vocabulary.bytes(3 + 0x0a), Some(&b"\n"[..]));
    assert_eq!(vocabulary.bytes(3 + 0xff), Some(&b"\xff"[..]));
    assert_eq!(vocabulary.bytes(2), Some(&b"<|end|>"[..]));
    assert_eq!(vocabulary.completion_prefix(), b"<s>");
    let mut text = b"<s>He<|end|>\n".to_vec();
    vocabulary.align(&mut text, 0);
    assert_eq!(text, b"<s> He<|end|> \n");
    assert_eq!(vocabulary.with_completion_prefix(b"x").completion_prefix(), b"x");
}

#[test]
fn unigram_files_are_read_by_position() {
    let file = json!({ "pre_tokenizer": metaspace("never"),
        "model": { "type": "Unigram", "unk_id": 0, "byte_fallback": true,
        "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["<0x41>", -2.0], ["<0xZZ>", -3.0]] } });
    let vocabulary = Vocabulary::from_tokenizer_json(&file.to_string()).unwrap();
    let all: Vec<&[u8]> = (0..4).map(|id| vocabulary.bytes(id).unwrap()).collect();
    assert_eq!(all, [&b"<unk>"[..], b" a", b"A", b"<0xZZ>"]);
}

#[test]
fn tokenizers_that_lose_text_are_refused() {
    let model = json!({ "type": "BPE", "vocab": {}, "merges": [] });
    let cases = [
        json!({ "model": { "type": "WordPiece", "vocab": {}, "unk_token": "[UNK]" } }),
        json!({ "model": { "type": "BPE", "vocab": {}, "end_of_word_suffix": "</w>" } }),
        json!({ "model": model, "normalizer": { "type": "Lowercase" } }),
        json!({ "model": model,
            "normalizer": { "type": "Sequence",
                "normalizers": [{"type": "NFC"}, {"type": "NFKC"}] } }),
        json!({ "model": model, "normalizer": { "type": "Replace", "pattern": {"Regex": " +"}, "content": " " } }),
        json!({ "model": model, "pre_tokenizer": { "type": "Whitespace" } }),
        json!({ "model": model, "pre_tokenizer": { "type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": false } }),
        json!({ "model": model, "decoder": { "type": "WordPiece" } }),
    ];
    for case in cases {
        let error = Vocabulary::from_tokenizer_json(&case.to_string()).unwrap_err();
        assert!(matches!(error, VocabularyError::NotInvertible(_)), "{case}: {error}");
    }
    let too_large = json!({ "model": { "vocab": {"a": 1 << 23} } });
    assert!(matches!(
        Vocabulary::from_tokenizer_json(&too_large.to_string()),
        Err(VocabularyError::TooLarge(_))
    ));
    assert!(matches!(Vocabulary::from_tokenizer_json("{}"), Err(VocabularyError::Json(_))));
}

#[test]
fn fingerprints_tell_vocabularies_apart() {
    let of = |text: &str| Vocabulary::from_tokenizer_json(text).unwrap().fingerprint();
    assert_eq!(of(OWN), of(OWN));
    // One token with other text, and what does not concern decoding.
    assert_ne!(of(OWN), of(&OWN.replacen("<|im_end|>", "<|im_eng|>", 1)));
    let mut value: Value = serde_json::from_str(OWN).unwrap();
    value["truncation"] = Value::Null;
    assert_eq!(of(OWN), of(&value.to_string()));
}
