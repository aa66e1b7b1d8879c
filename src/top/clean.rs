//! Sanitizes text for a terminal: a worker chooses its models' names, and a name must not move the
//! cursor, ring the bell or reverse the line.

/// Longest text of a cell, a name or an event, in characters.
const TEXT_CHARS_MAX: usize = 256;

/// Replaces characters that a terminal would act on, and bounds the length.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(shown).take(TEXT_CHARS_MAX).collect()
}

const fn shown(char: char) -> char {
    match char {
        // C0, C1 and DEL; bidirectional marks; zero-width characters; line separators; tags.
        '\0'..='\u{1f}'
        | '\u{7f}'..='\u{9f}'
        | '\u{ad}'
        | '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}' => '?',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_comes_through() {
        let evil = "a\u{1b}[2Jb\u{9b}31mc\u{202e}d\r\n\u{7}\u{200b}é模";
        assert_eq!(clean(evil), "a?[2Jb?31mc?d????é模");
        assert_eq!(clean(&"x".repeat(9_999)).len(), TEXT_CHARS_MAX);
    }
}
