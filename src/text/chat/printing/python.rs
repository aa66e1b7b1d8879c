//! Python's text of values, because templates are written for Python, and `{{ value }}` prints
//! Python's `str(value)`.

use minijinja::value::{Value, ValueKind};
use std::fmt::Write;

/// Python's `str.isspace` for a character: Unicode's white space and the four ASCII separators.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// Writes a value as Python's `str(value)`.
pub(crate) fn write_str(value: &Value, out: &mut String) {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => write_repr(value, out),
    }
}

/// Writes a value as Python's `repr(value)`.
fn write_repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::None | ValueKind::Undefined => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => write_number(value, out),
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => write_map(value, out),
        ValueKind::Seq | ValueKind::Iterable => write_list(value, out),
        _ => out.push_str(&value.to_string()),
    }
}

fn write_list(value: &Value, out: &mut String) {
    out.push('[');
    for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
        out.push_str(if index == 0 { "" } else { ", " });
        write_repr(&item, out);
    }
    out.push(']');
}

fn write_map(value: &Value, out: &mut String) {
    out.push('{');
    for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
        out.push_str(if index == 0 { "" } else { ", " });
        write_repr(&key, out);
        out.push_str(": ");
        write_repr(&value.get_item(&key).unwrap_or_default(), out);
    }
    out.push('}');
}

/// Writes a number in Python's notation, floats with the shortest digits that read back.
pub(crate) fn write_number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => write_float(number, out),
        _ => out.push_str(&value.to_string()),
    }
}

/// Writes a float in Python's notation.
pub(crate) fn write_float(number: f64, out: &mut String) {
    if !number.is_finite() {
        let sign = if number < 0.0 { "-" } else { "" };
        out.push_str(if number.is_nan() { "nan" } else { sign });
        out.push_str(if number.is_nan() { "" } else { "inf" });
        return;
    }
    // Rust's `{:e}` has the shortest digits; Python changes to exponents below 1e-4 and from 1e16
    // on.
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let written = if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs())
    } else {
        write!(out, "{number:?}")
    };
    debug_assert!(written.is_ok(), "writing to a String cannot fail");
}

/// Writes a string literal, with double quotes only if the text has a single quote and no double
/// quote.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => out.extend(['\\', quote]),
            _ if is_printable(character) => out.push(character),
            _ => {
                let written = match u32::from(character) {
                    point @ ..=0xff => write!(out, "\\x{point:02x}"),
                    point @ ..=0xffff => write!(out, "\\u{point:04x}"),
                    point => write!(out, "\\U{point:08x}"),
                };
                debug_assert!(written.is_ok(), "writing to a String cannot fail");
            }
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable` for a character. Rust's debug output uses the same table, and escapes
/// a character behind the first of a text for no other reason.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    let mut buffer = [b'a'; 5];
    let length = 1 + character.encode_utf8(buffer.get_mut(1..).unwrap_or_default()).len();
    let text = buffer.get(..length).and_then(|text| std::str::from_utf8(text).ok());
    text.is_some_and(|text| text.escape_debug().nth(1) == Some(character))
}

#[cfg(test)]
mod tests {
    use super::write_str;
    use minijinja::value::Value;

    fn text(json: &str) -> String {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        let mut out = String::new();
        write_str(&Value::from_serialize(value), &mut out);
        out
    }

    #[test]
    fn values_print_as_python_prints_them() {
        assert_eq!(
            text(r#"{"b": [1, true, null], "a": "it's", "q": "\"'\n"}"#),
            "{'b': [1, True, None], 'a': \"it's\", 'q': '\"\\'\\n'}"
        );
        assert_eq!(
            text(
                r#"["\u0001\u007f\u00a0\u00ad\u2028\u200b\u3000", "e\u0301 日本 😀", "\udb40\udc01\\"]"#
            ),
            r"['\x01\x7f\xa0\xad\u2028\u200b\u3000', 'e\u0301 日本 😀', '\U000e0001\\']"
                .replace(r"e\u0301", "e\u{301}")
        );
        assert_eq!(text("\"plain 'text'\""), "plain 'text'");
        assert_eq!(
            text("[0.1, 1.0, 1e16, 1.5e-7, 123456789.125, -0.0001, 1e15]"),
            "[0.1, 1.0, 1e+16, 1.5e-07, 123456789.125, -0.0001, 1000000000000000.0]"
        );
    }
}
