//! The tokenizer beside the library `tokenizers`.

use super::{BUILT_IN, TextSegment, Tokenizer, TokenizerError};
use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_assert_eq, proptest};
use std::path::Path;
use std::str::FromStr;

#[test]
fn answers_are_canonical_and_deterministic() {
    let tokenizer = Tokenizer::built_in().expect("loads");
    assert!(tokenizer.next_words.len() > 100, "{}", tokenizer.next_words.len());
    for seed in 0..50 {
        let prompt = [seed, 7, 9];
        let ids = tokenizer.answer(&prompt, 0, 40);
        assert_eq!(ids, tokenizer.answer(&prompt, 0, 40));
        assert_ne!(ids, tokenizer.answer(&prompt, 1, 40));
        let text: String = ids.iter().map(|id| tokenizer.word(*id)).collect();
        assert_eq!(text, tokenizer.decode(&ids));
        assert_eq!(text, text.trim());
        // As it stands in a later turn of a chat.
        let around = format!("<|im_start|>assistant\n{text}<|im_end|>\n");
        let encoded = tokenizer.encode(&around, false).expect("encodes");
        assert!(encoded.windows(ids.len()).any(|window| window == ids), "{text}");
    }
}

#[test]
fn segments_give_the_ids_of_the_whole() {
    let tokenizer = Tokenizer::built_in().expect("loads");
    assert_eq!(tokenizer.splitters.len(), 3);
    for text in [
        "",
        "<|im_start|>",
        "<|im_start|><|im_end|>x",
        "a<b <|im_start|>user\n héllo <|im_<|im_end|>\n<|im_start|>assistant\n",
    ] {
        let mut ids = Vec::new();
        let mut joined = String::new();
        tokenizer.segments(text, |segment| match segment {
            TextSegment::Token(id) => {
                ids.push(id);
                joined.push_str(&tokenizer.spelling(id).expect("known"));
            }
            TextSegment::Text(part) => {
                ids.extend(tokenizer.encode(part, false).expect("encodes"));
                joined.push_str(part);
            }
        });
        assert_eq!(joined, text);
        assert_eq!(ids, tokenizer.encode(text, false).expect("encodes"));
    }
}

#[test]
fn bad_files_are_errors() {
    let error = Tokenizer::from_json("{}").expect_err("no tokenizer").to_string();
    assert!(cfg!(feature = "tokenizers") || error.contains("--features tokenizers"), "{error}");
    let missing = Tokenizer::from_model_dir(Path::new("/nonexistent"));
    assert!(matches!(missing, Err(TokenizerError::Read { .. })));
}

/// A file with another part than GPT-2's has.
#[test]
fn other_files_need_the_library() {
    let normalizer = r#""normalizer":{"type":"NFC"}"#;
    let composing = BUILT_IN.replacen(r#""normalizer":null"#, normalizer, 1);
    assert_ne!(composing, BUILT_IN);
    let read = Tokenizer::from_json(&composing);
    if cfg!(feature = "tokenizers") {
        let ids = read.expect("loads").encode("caf\u{e9} cafe\u{301}", true).expect("encodes");
        let own = Tokenizer::built_in().expect("loads");
        assert_eq!(ids, own.encode("caf\u{e9} caf\u{e9}", true).expect("encodes"));
    } else {
        let error = read.expect_err("no library").to_string();
        assert!(error.contains("--features tokenizers") && error.contains("normalizer"), "{error}");
    }
}

fn library() -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_str(BUILT_IN).expect("loads")
}

fn text() -> impl Strategy<Value = String> {
    let atom = prop::sample::select(vec![
        " ",
        "  ",
        "\n",
        "\t\n ",
        "the",
        "aaaaa",
        "don't",
        "'ll",
        "'",
        "42",
        "½",
        "lé",
        "日本",
        "😀",
        "Ⓐ",
        "क\u{93f}",
        "e\u{301}",
        "\u{a0}",
        "\u{3000}",
        "\u{0}",
        "\r\n",
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<",
        "<|im",
        "user",
        "Ǆ",
        "ʰ",
        "Ⅷ",
        "_",
        "e",
        "r",
        "th",
    ]);
    prop::collection::vec(atom, 0..16).prop_map(|atoms| atoms.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn ids_and_texts_are_those_of_the_library(
        text in text(),
        wild in ".{0,20}",
        ids in prop::collection::vec(0..2_300_u32, 0..20),
        id in any::<u32>(),
    ) {
        thread_local! {
            static BOTH: (Tokenizer, tokenizers::Tokenizer) =
                (Tokenizer::built_in().expect("loads"), library());
        }
        BOTH.with(|(own, library)| {
            for text in [&text, &format!("{wild}{text}")] {
                let expected = library.encode_fast(text.as_str(), true).expect("encodes");
                prop_assert_eq!(own.encode(text, true).expect("encodes"), expected.get_ids());
            }
            prop_assert_eq!(own.decode(&ids), library.decode(&ids, false).expect("decodes"));
            for id in ids.iter().copied().chain([id]) {
                prop_assert_eq!(own.spelling(id), library.id_to_token(id));
            }
            prop_assert_eq!(own.vocabulary_size(), library.get_vocab_size(true));
            Ok(())
        })?;
    }
}

/// A word of 100,000 letters: each step of a quadratic loop would take a minute.
#[test]
fn long_words_merge_in_time() {
    let own = Tokenizer::built_in().expect("loads");
    let text = "thether".repeat(15_000);
    let expected = library().encode_fast(text.as_str(), false).expect("encodes");
    assert_eq!(own.encode(&text, false).expect("encodes"), expected.get_ids());
}

/// Both cut words by tables of Unicode, of versions that may differ in new scripts.
#[test]
fn characters_are_of_the_kinds_that_the_library_knows() {
    let own = Tokenizer::built_in().expect("loads");
    let library = library();
    // Without the long runs of letters of Chinese and Korean.
    let characters: Vec<char> = ('\u{80}'..='\u{33ff}')
        .chain('\u{a000}'..='\u{abff}')
        .chain('\u{f900}'..='\u{11fff}')
        .chain('\u{1d400}'..='\u{1f1ff}')
        .collect();
    let differs = |characters: &&[char]| {
        // Beside a letter and beside a digit: only its own kind makes one word of it.
        let words = characters.iter().map(|character| format!("e{character} 1{character}\n"));
        let text: String = words.collect();
        let ids = library.encode_fast(text.as_str(), false).expect("encodes");
        own.encode(&text, false).expect("encodes") != ids.get_ids()
    };
    let parts = characters.chunks(64).filter(differs).count();
    assert!(parts * 64 * 50 < characters.len(), "{parts} parts of 64 characters differ");
}
