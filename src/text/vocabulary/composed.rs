//! Unicode's composed form (NFC), to which some tokenizers (Qwen's) normalize text before they
//! split it.
//!
//! Nearly all text is in that form, so the check must be cheap. The table is the same as in the
//! `tokenizers` crate, so that both use the same version of Unicode.

use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Most marks on a character, from the Stream-Safe Text Format of UAX #15. No script needs more
/// than a few. Composing sorts the marks of a character, so the bound keeps time and memory in
/// proportion to the text.
const MARKS_MAX: usize = 30;

/// Appends `text` in the composed form, up to a character with more than [`MARKS_MAX`] marks. False
/// if there is such a character, because the text behind it is unknown then.
pub(super) fn push(text: &str, out: &mut Vec<u8>) -> bool {
    let safe = safe_prefix(text);
    let mut buffer = [0; 4];
    for (character, _) in safe.nfc() {
        out.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
    }
    safe.len() == text.len()
}

/// The text before the first character with more than [`MARKS_MAX`] marks.
fn safe_prefix(text: &str) -> &str {
    let mut start = 0;
    let mut marks = 0;
    for (at, character) in text.char_indices() {
        if is_settled(character) || canonical_combining_class(character) == 0 {
            start = at;
            marks = 0;
        } else {
            marks += 1;
            if marks > MARKS_MAX {
                return text.get(..start).unwrap_or_default();
            }
        }
    }
    text
}

/// True if the text is surely in the composed form.
pub(super) fn is_composed(text: &[u8]) -> bool {
    // All characters below U+0300 are composed, and their first bytes are below 0xcc.
    if text.chunks(SCAN_BYTES).all(is_below) {
        return true;
    }
    let Ok(text) = std::str::from_utf8(text) else { return true };
    let mut run = text;
    while let Some(at) = run.find(|character| !is_settled(character)) {
        // The quick check needs the character before, for the order of marks.
        let rest = run.get(at..).unwrap_or_default();
        let length = rest.find(is_settled).unwrap_or(rest.len());
        let (unsettled, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        if is_nfc_quick(unsettled.chars()) != IsNormalized::Yes {
            return false;
        }
        run = after;
    }
    true
}

/// First byte of U+0300.
const FIRST_BYTE: u8 = 0xcc;
/// Bytes that are scanned before a branch.
const SCAN_BYTES: usize = 256;

/// True if all bytes are below [`FIRST_BYTE`]. Without an early exit the compiler vectorizes the
/// loop: 0.1 us for 8 KB instead of 4.8.
fn is_below(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |most: u8, &byte| most.max(byte)) < FIRST_BYTE
}

/// Characters of common scripts that composing never changes, alone or behind another character.
fn is_settled(character: char) -> bool {
    matches!(
        character,
        '\0'..='\u{2ff}'
            | '\u{400}'..='\u{482}'
            | '\u{2010}'..='\u{2027}'
            | '\u{3001}'..='\u{3029}'
            | '\u{3041}'..='\u{3096}'
            | '\u{30a1}'..='\u{30fa}'
            | '\u{4e00}'..='\u{9fef}'
            | '\u{ac00}'..='\u{d7a3}'
            | '\u{ff01}'..='\u{ff5e}'
            | '\u{1f300}'..='\u{1f64f}'
    )
}

#[cfg(test)]
mod tests {
    use super::{MARKS_MAX, is_composed, is_settled, push};
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use unicode_normalization_alignments::char::canonical_combining_class;
    use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

    fn composed(text: &str) -> String {
        let mut out = Vec::new();
        assert!(push(text, &mut out));
        String::from_utf8(out).unwrap()
    }

    /// Tens of millions of marks on one character took 2 s and 0.8 GB to sort.
    #[test]
    fn a_character_with_too_many_marks_ends_the_text() {
        for marks in [MARKS_MAX, MARKS_MAX + 1, 100_000] {
            let text = format!("Zu\u{308}rich e{} and on", "\u{345}\u{301}".repeat(marks / 2 + 1));
            let mut out = Vec::new();
            assert!(!push(&text, &mut out));
            assert_eq!(String::from_utf8(out).unwrap(), "Zürich ");
        }
        let text = format!("a{}b", "\u{345}\u{301}".repeat(MARKS_MAX / 2));
        assert!(push(&text, &mut Vec::new()));
    }

    #[test]
    fn settled_characters_are_those_that_never_change() {
        for character in (0..=0x0010_ffff).filter_map(char::from_u32).filter(|it| is_settled(*it)) {
            assert_eq!(
                is_nfc_quick(std::iter::once(character)),
                IsNormalized::Yes,
                "{character:?}"
            );
            assert_eq!(canonical_combining_class(character), 0, "{character:?}");
        }
    }

    #[test]
    fn only_what_is_written_apart_changes() {
        for (text, wanted) in [
            ("Zu\u{308}rich", "Zürich"),
            ("\u{1112}\u{1161}\u{11ab}", "한"),
            ("q\u{307}\u{323}", "q\u{323}\u{307}"),
            ("\u{212b}", "Å"),
            ("か\u{3099}", "が"),
        ] {
            assert!(!is_composed(text.as_bytes()), "{text}");
            assert_eq!(composed(text), wanted);
        }
        for text in ["plain", "naïve", "日本語、한국어 ＡＢＣ", "Привет 😀👩‍💻", "สวัสดี ", "नमस्ते"]
        {
            assert!(is_composed(text.as_bytes()), "{text}");
        }
        assert!(is_composed(b"\xff\xcc"));
    }

    #[test]
    fn one_mark_is_seen_wherever_it_stands() {
        for length in [0, 1, 255, 256, 257, 700] {
            assert!(is_composed("x".repeat(length).as_bytes()));
            for at in [0, 1, 254, 255, 256, 257, 511, 512, 699] {
                let mut text = "u".repeat(at.min(length));
                text.push_str("u\u{308}");
                text.push_str(&"x".repeat(length));
                assert!(!is_composed(text.as_bytes()), "{length} {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_composed_stays(text in any::<String>(), marks in "[a-zか\u{300}-\u{30f}\u{3099}\u{323} 日한\u{1100}\u{1161}]{0,12}") {
            for text in [&text, &marks] {
                let once = composed(text);
                prop_assert_eq!(&composed(&once), &once);
                if is_composed(text.as_bytes()) {
                    prop_assert_eq!(&once, text);
                }
            }
        }
    }
}
