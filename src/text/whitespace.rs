//! Whitespace at the edges of UTF-8 text in bytes. Only the edges are decoded, not the text
//! between.

/// Length in bytes of the leading characters of `text` that are `white`.
pub fn leading_bytes(text: &[u8], white: fn(char) -> bool) -> usize {
    let mut rest = text;
    while let Some(character) = first_character(rest) {
        if !white(character) {
            break;
        }
        rest = rest.get(character.len_utf8()..).unwrap_or_default();
    }
    text.len() - rest.len()
}

/// Length in bytes of the trailing characters of `text` that are `white`.
pub fn trailing_bytes(text: &[u8], white: fn(char) -> bool) -> usize {
    let mut rest = text;
    while let Some(character) = last_character(rest) {
        if !white(character) {
            break;
        }
        let end = rest.len().saturating_sub(character.len_utf8());
        rest = rest.get(..end).unwrap_or_default();
    }
    text.len() - rest.len()
}

fn first_character(text: &[u8]) -> Option<char> {
    let first = *text.first()?;
    if first.is_ascii() {
        return Some(char::from(first));
    }
    (2..=4).find_map(|length| std::str::from_utf8(text.get(..length)?).ok()?.chars().next())
}

fn last_character(text: &[u8]) -> Option<char> {
    let last = *text.last()?;
    if last.is_ascii() {
        return Some(char::from(last));
    }
    (2..=4).find_map(|length| {
        let start = text.len().checked_sub(length)?;
        std::str::from_utf8(text.get(start..)?).ok()?.chars().next()
    })
}

#[cfg(test)]
mod tests {
    use super::{leading_bytes, trailing_bytes};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn agrees_with_str(
            left in "[ \n\t\u{3000}\u{a0}]{0,3}",
            middle in any::<String>(),
            right in "[ \n\u{2003}]{0,3}",
        ) {
            let text = format!("{left}{middle}{right}");
            let white = char::is_whitespace;
            prop_assert_eq!(
                leading_bytes(text.as_bytes(), white),
                text.len() - text.trim_start().len()
            );
            prop_assert_eq!(
                trailing_bytes(text.as_bytes(), white),
                text.len() - text.trim_end().len()
            );
        }

        #[test]
        fn any_bytes_are_survived(bytes in any::<Vec<u8>>()) {
            let white = char::is_whitespace;
            assert!(
                leading_bytes(&bytes, white) + trailing_bytes(&bytes, white) <= 2 * bytes.len()
            );
        }
    }
}
