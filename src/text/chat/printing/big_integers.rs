//! Integers of arguments that 64 bits do not hold. Python reads integers of any size, and a float
//! would print other digits.

use minijinja::value::Value;
use serde_json::Value as Json;
use std::borrow::Cow;

/// Opens a string that stands for an integer. A noncharacter, so no text of a client has it.
const MARK: char = '\u{fdd2}';
/// Digits of an integer that `i128` holds in any case.
const DIGITS_MAX: usize = 38;
/// Digits of an integer that 64 bits hold in any case.
const PLAIN_DIGITS_MAX: usize = 18;

/// Parses JSON, with integers above 64 bits as marked strings; `None` for invalid JSON.
///
/// # Errors
/// [`LongInteger`] for an integer with more digits than `i128` holds.
pub(crate) fn parse(text: &str) -> Result<Option<Json>, LongInteger> {
    let marked = mark(text)?;
    Ok(serde_json::from_str(&marked).ok())
}

/// An integer is longer than this version prints.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LongInteger;

/// The integer that a string stands for.
pub(crate) fn read(text: &str) -> Option<Value> {
    text.strip_prefix(MARK)?.parse::<i128>().ok().map(Value::from)
}

/// Replaces long integers outside of strings by marked strings.
fn mark(text: &str) -> Result<Cow<'_, str>, LongInteger> {
    let is_long = |run: &[u8]| run.iter().all(u8::is_ascii_digit);
    if !text.as_bytes().windows(PLAIN_DIGITS_MAX + 1).any(is_long) {
        return Ok(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len() + 8);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            '-' | '0'..='9' => {
                let of_number = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
                rest.bytes().take_while(|byte| of_number(*byte)).count()
            }
            other => other.len_utf8(),
        };
        let (token, tail) = rest.split_at_checked(length).unwrap_or((rest, ""));
        let digits = token.strip_prefix('-').unwrap_or(token);
        let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        match is_integer && digits.len() > PLAIN_DIGITS_MAX {
            true if digits.len() > DIGITS_MAX => return Err(LongInteger),
            true => out.extend(['"', MARK]),
            false => {}
        }
        out.push_str(token);
        if is_integer && digits.len() > PLAIN_DIGITS_MAX {
            out.push('"');
        }
        rest = tail;
    }
    Ok(Cow::Owned(out))
}

/// Length of the JSON string at the front, quotes included.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::{LongInteger, parse, read};

    #[test]
    fn long_integers_keep_their_digits() {
        let parsed = parse(
            r#"{"a": [123456789012345678901234567890, -99999999999999999999],
            "b": "12345678901234567890123", "c": 12345678901234567890.5, "d": 7}"#,
        );
        let parsed = parsed.unwrap().unwrap();
        let text = |pointer: &str| parsed.pointer(pointer).unwrap().as_str().unwrap();
        assert_eq!(read(text("/a/0")).unwrap().to_string(), "123456789012345678901234567890");
        assert_eq!(read(text("/a/1")).unwrap().to_string(), "-99999999999999999999");
        assert_eq!(read(text("/b")), None, "a string of the client");
        assert!(parsed["c"].is_f64() && parsed["d"] == 7);
        assert_eq!(parse(&"9".repeat(39)), Err(LongInteger));
        assert_eq!(parse("{\"a\": "), Ok(None));
    }
}
