//! Words of GPT-2's pattern:
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.

use unicode_normalization_alignments::char::is_combining_mark;

/// The words of a text, in order. Nothing of the text is left out.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (word, after) = rest.split_at_checked(word_bytes(rest))?;
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

fn word_bytes(text: &str) -> usize {
    if let Some(ending) = ENDINGS.iter().find(|ending| text.starts_with(**ending)) {
        return ending.len();
    }
    let body = text.strip_prefix(' ').unwrap_or(text);
    match body.chars().next().map(CharKind::of) {
        Some(kind) if kind != CharKind::Blank => {
            let run = body.find(|next| CharKind::of(next) != kind).unwrap_or(body.len());
            text.len() - body.len() + run
        }
        _ => blank_bytes(text),
    }
}

/// A run of blanks, without its last blank where a word follows.
fn blank_bytes(text: &str) -> usize {
    let run = text.find(|next: char| !next.is_whitespace()).unwrap_or(text.len());
    let last = text.get(..run).and_then(|run| run.chars().next_back()).map_or(0, char::len_utf8);
    if run == text.len() || run == last { run } else { run - last }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharKind {
    Blank,
    Letter,
    Number,
    Other,
}

impl CharKind {
    fn of(character: char) -> Self {
        if character.is_whitespace() {
            Self::Blank
        } else if character.is_numeric() {
            Self::Number
        } else if is_letter(character) {
            Self::Letter
        } else {
            Self::Other
        }
    }
}

/// `\p{L}`: what is alphabetic without marks (vowel signs of Indic scripts) and circled letters.
fn is_letter(character: char) -> bool {
    character.is_ascii_alphabetic()
        || character.is_alphabetic()
            && !is_combining_mark(character)
            && !matches!(character, '\u{24b6}'..='\u{24e9}' | '\u{1f130}'..='\u{1f189}')
}

/// Endings of English words that are words of their own.
const ENDINGS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn words_are_those_of_the_pattern() {
        for (text, expected) in [
            ("", vec![]),
            ("I've  been", vec!["I", "'ve", " ", " been"]),
            ("it's 'seen'", vec!["it", "'s", " '", "seen", "'"]),
            ("a\n\n b\t", vec!["a", "\n\n", " b", "\t"]),
            ("a\n\nb", vec!["a", "\n", "\n", "b"]),
            ("x\u{a0}y  ", vec!["x", "\u{a0}", "y", "  "]),
            (" 12ab!? <|", vec![" 12", "ab", "!?", " <|"]),
            ("नमस्ते Ⓐ½", vec!["नमस", "\u{94d}", "त", "\u{947}", " Ⓐ", "½"]),
        ] {
            assert_eq!(words(text).collect::<Vec<_>>(), expected, "{text:?}");
        }
    }
}
