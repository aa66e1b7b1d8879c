//! Words for a fault of a TOML text: what stands there, and how it is written. The parser names
//! what it expects, by terms of its grammar. The words hold a single character of the text at most:
//! the value may be a secret.

use std::ops::Range;

/// What each help ends with: the parser stops at the first fault.
const UNREAD: &str = "the rest of the file was not looked at";

/// Messages for a value without quotes.
const BARE_VALUES: &[&str] = &[
    "string values must be quoted",
    "invalid boolean",
    "invalid float",
    "invalid integer",
    "invalid hexadecimal",
    "invalid octal",
    "invalid binary",
];

/// Messages for a place in a text or a comment, which may have any character.
const IN_TEXTS: &[&str] = &[
    "missing escaped value",
    "too few unicode",
    "invalid value",
    "invalid multi-line",
    "invalid comment",
    "carriage return",
];

const KEY_FORM: &str = "write KEY = VALUE; a key has letters, digits, - and _, and no spaces";

/// Beginnings of messages, the fault, and how it is written.
const PHRASES: &[(&[&str], &str, &str)] = &[
    (&["missing comma between array"], NO_COMMA, COMMA_FORM),
    (
        &["missing comma between key", "extra assignment"],
        "no comma between two keys of { }",
        "write a comma between them, as in { a = 1, b = 2 }",
    ),
    (
        &["unclosed table", "unclosed array table"],
        "the name of a table has no ] at its end",
        "write [NAME], or [[NAME]] for a table of a list, on a line of its own",
    ),
    (&["unclosed array"], "a list has no ] at its end", "write ] behind its last value"),
    (&["extra `=`"], "found a second `=`", "write KEY = VALUE"),
];

const NO_COMMA: &str = "no comma between two values of a list";
const COMMA_FORM: &str = "write a comma between them, as in [1, 2], or ] where the list ends";

/// A fault of a TOML text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TomlFault {
    /// Byte offset of the fault.
    pub at: usize,
    /// The fault, without its place.
    pub what: String,
    /// How it is written.
    pub help: String,
}

/// The line of a fault, and the place in it.
#[derive(Clone, Copy)]
struct FaultyLine<'t> {
    text: &'t str,
    /// Byte offset of the line.
    start: usize,
    /// Byte offset of the fault within the line.
    at: usize,
}

impl TomlFault {
    /// The fault that the parser marks with its `message`. `lists` are tables that are written as
    /// `[[NAME]]`.
    #[must_use]
    pub fn of(text: &str, message: &str, span: Option<Range<usize>>, lists: &[&str]) -> Self {
        let span = span.unwrap_or(0..0);
        let line = FaultyLine::at(text, span.start);
        let marked = text.get(span.clone()).unwrap_or_default();
        let is_of = |starts: &[&str]| starts.iter().any(|start| message.starts_with(start));
        let is_string = is_of(&["invalid basic string", "invalid literal string"]);
        let stray = if is_of(IN_TEXTS) { None } else { line.stray(is_string) };
        if let Some((at, stray)) = stray {
            let (what, how) = words_for(stray);
            return Self::new(line.start + at, what, &how);
        }
        let found = shown(line.rest().chars().next());
        let fixed = PHRASES.iter().find(|(starts, ..)| is_of(starts));
        let (what, how) = match fixed {
            Some((_, what, how)) => ((*what).to_owned(), (*how).to_owned()),
            None if is_of(&["duplicate key"]) => line.duplicate(marked, lists),
            None if is_of(BARE_VALUES) => line.bare_value(),
            None if is_of(&["key with no value"]) => line.no_value(&found),
            None if is_of(&["invalid unquoted key", "unquoted keys cannot"]) => {
                (format!("found {found} where a key is expected"), KEY_FORM.to_owned())
            }
            None if is_of(&["unexpected key or value"]) => {
                let how = "write each key, and each [NAME] or [[NAME]], on a line of its own; a \
                           comment begins with #";
                (format!("found {found} behind the end of a value or a name"), how.to_owned())
            }
            None if is_string && line.rest().is_empty() => {
                let how = "close it on the same line";
                ("the text has no quotation mark at its end".to_owned(), how.to_owned())
            }
            None => {
                let message = message.trim_end().replace('\n', "; ");
                let what = message.strip_suffix(", expected nothing").unwrap_or(&message);
                return Self { at: span.start, what: what.to_owned(), help: UNREAD.to_owned() };
            }
        };
        Self::new(span.start, what, &how)
    }

    fn new(at: usize, what: String, how: &str) -> Self {
        Self { at, what, help: format!("{how}; {UNREAD}") }
    }
}

impl<'t> FaultyLine<'t> {
    fn at(text: &'t str, at: usize) -> Self {
        let start = text.get(..at).unwrap_or(text).rfind('\n').map_or(0, |at| at + 1);
        let line = text.get(start..).unwrap_or_default();
        let line = line.split('\n').next().unwrap_or_default().trim_end_matches('\r');
        Self { text: line, start, at: at.saturating_sub(start).min(line.len()) }
    }

    fn before(&self) -> &'t str {
        self.text.get(..self.at).unwrap_or_default()
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The key that the line has in front of `=`.
    fn key(&self) -> Option<&'t str> {
        let key = self.text.split_once('=')?.0.trim();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        (!key.is_empty() && key.chars().all(is_part)).then_some(key)
    }

    /// A character that TOML has in texts and comments alone, in the word of the fault. A text
    /// without its end may have such a quotation mark there.
    fn stray(&self, is_string: bool) -> Option<(usize, char)> {
        if is_string {
            let mut all = self.text.char_indices();
            return all.find(|(_, c)| is_typographic(*c)).filter(|_| self.rest().is_empty());
        }
        let end = self.rest().find(|c: char| c.is_ascii_whitespace() || ",]}#\"'".contains(c));
        let word = self.rest().get(..end.unwrap_or(self.rest().len())).unwrap_or_default();
        let (at, stray) = word.char_indices().find(|(_, c)| !c.is_ascii())?;
        Some((self.at + at, stray))
    }

    /// A value that is neither a text in quotes nor a number, a switch, a list or a table.
    fn bare_value(&self) -> (String, String) {
        let is_end = |c: char| ",]}#".contains(c);
        let is_start = |c: char| "=,[{".contains(c);
        let from = self.before().rfind(is_start).map_or(0, |at| at + 1);
        let value = self.text.get(from..).unwrap_or_default();
        let end = value.find(is_end).unwrap_or(value.len());
        let is_in_list = self.before().contains('[') || !self.text.contains('=');
        let has_next = value.get(end..).is_some_and(|rest| rest.starts_with([',', ']']));
        let value = value.get(..end).unwrap_or_default().trim();
        let own = |what: &str, how: &str| (what.to_owned(), how.to_owned());
        match &*value.to_ascii_lowercase() {
            "" => own("no value stands behind `=`", "write a value, or remove the line"),
            "true" | "yes" => own(&format!("`{value}` is no value"), "write true"),
            "false" | "no" => own(&format!("`{value}` is no value"), "write false"),
            word @ ("on" | "off") => {
                own(&format!("`{value}` has no quotes"), &format!("write {word:?}"))
            }
            "null" | "none" | "nil" | "~" => own(
                &format!("`{value}` is no value"),
                "remove the line: a key that is left out has its default",
            ),
            _ if is_in_list && has_next && value.contains(char::is_whitespace) => {
                own(NO_COMMA, COMMA_FORM)
            }
            _ => match self.key().filter(|_| !is_in_list) {
                Some(key) => {
                    (format!("the value of `{key}` has no quotes"), format!("write {key} = \"…\""))
                }
                None => own("a value has no quotes", "write it in quotes, as in \"…\""),
            },
        }
    }

    /// The fault of a line without `=`.
    fn no_value(&self, found: &str) -> (String, String) {
        let line = self.text.trim_start();
        let mut comments = ["//", "/*", "--", ";"].into_iter();
        if let Some(start) = comments.find(|start| line.starts_with(start)) {
            return (format!("`{start}` begins no comment"), "write # in its place".to_owned());
        }
        (format!("found {found} where `=` is expected"), KEY_FORM.to_owned())
    }

    /// A key or a table that stands twice.
    fn duplicate(&self, marked: &str, lists: &[&str]) -> (String, String) {
        let header = self.text.trim_start().strip_prefix('[');
        let header = header.map(|rest| rest.trim_start_matches('['));
        let how = match header.and_then(|rest| rest.split(']').next()).map(str::trim) {
            Some(name) if lists.contains(&name) => {
                format!("write [[{name}]], in double brackets, for each of the tables")
            }
            Some(name) => format!("write the keys of both below a single [{name}]"),
            None => "remove one of the two".to_owned(),
        };
        (format!("duplicate key `{marked}`"), how)
    }
}

fn is_typographic(c: char) -> bool {
    matches!(c, '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}' | '\u{2032}' | '\u{2033}' | '\u{b4}')
}

/// The fault of a character outside of texts, and what to write.
fn words_for(stray: char) -> (String, String) {
    let code = u32::from(stray);
    let (what, how) = match stray {
        '\u{a0}' => {
            (format!("found a no-break space (U+{code:04X})"), "write a space in its place")
        }
        '\u{feff}' | '\u{200b}'..='\u{200f}' | '\u{2060}' => {
            (format!("found a character that is not visible (U+{code:04X})"), "remove it")
        }
        _ if stray.is_whitespace() => {
            (format!("found a typographic space (U+{code:04X})"), "write a space in its place")
        }
        _ if is_typographic(stray) => (
            format!("found `{stray}` (U+{code:04X}), a typographic quotation mark"),
            "write \" in its place, before and behind the text",
        ),
        _ if stray.is_control() => (format!("found a character U+{code:04X}"), "remove it"),
        _ => (
            format!("found `{stray}` (U+{code:04X}) outside of quotes"),
            "write it in quotes, or remove it",
        ),
    };
    (what, how.to_owned())
}

fn shown(found: Option<char>) -> String {
    match found {
        None => "the end of the line".to_owned(),
        Some(c) if c.is_control() => format!("U+{:04X}", u32::from(c)),
        Some(c) => format!("`{c}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str, message: &str, marked: &str) -> TomlFault {
        let at = text.rfind(marked).unwrap();
        TomlFault::of(text, message, Some(at..at + marked.len()), &["worker"])
    }

    /// A value may be a secret, and findings are logged.
    #[test]
    fn no_value_of_the_text_is_in_the_words() {
        for (text, message, marked) in [
            ("api_key = sk-secret", "string values must be quoted", "sk-secret"),
            ("api_key = \"sk-secret", "invalid basic string", ""),
            ("api_key sk-secret", "key with no value, expected `=`", "sk-secret"),
            (
                "api_key = [sk-secret sk-other]",
                "string values must be quoted",
                "sk-secret sk-other",
            ),
            ("api_key = \"a\" sk-secret", "unexpected key or value", "sk-secret"),
            ("api_key = “sk-secret”", "string values must be quoted", "“sk-secret”"),
        ] {
            let TomlFault { what, help, .. } = fault(text, message, marked);
            assert!(!format!("{what}{help}").contains("secret"), "{text}: {what} {help}");
            assert!(!what.is_empty() && help.ends_with(UNREAD), "{text}: {what} {help}");
        }
    }

    #[test]
    fn any_place_of_a_text_has_words() {
        let text = "a = “é”\r\n[w\u{a0}\n\n x = 'é";
        for at in 0..=text.len() + 1 {
            for message in ["string values must be quoted", "duplicate key", "unclosed table", "?"]
            {
                let found = TomlFault::of(text, message, Some(at..at), &[]);
                assert!(!found.what.is_empty(), "{at}: {message}");
            }
        }
        assert_eq!(TomlFault::of("", "odd, expected nothing", None, &[]).what, "odd");
    }

    #[test]
    fn a_character_of_a_text_in_quotes_is_no_stray() {
        let found = fault("a = \"\\é\"", "missing escaped value, expected `b`", "é\"");
        assert_eq!(found.what, "missing escaped value, expected `b`");
        let found = fault("a = \"é", "invalid basic string, expected `\"`", "");
        assert_eq!(found.what, "the text has no quotation mark at its end");
        let found = fault("a = \"é”", "invalid basic string, expected `\"`", "");
        assert!(found.what.contains("typographic quotation mark") && found.at == 7, "{found:?}");
    }
}
