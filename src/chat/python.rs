//! How Python writes values: templates are written for it, and `{{ value }}` prints what Python's `str` gives.

use minijinja::value::{Value, ValueKind};
use std::fmt::Write;

/// Python's `str.isspace` for one character: Unicode's white space and the four ASCII separators.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// `str(value)`.
pub(super) fn write_str(value: &Value, out: &mut String) {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => write_repr(value, out),
    }
}

/// `repr(value)`.
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

/// Integers as they are, floats as the shortest text that reads back, in Python's notation.
pub(super) fn write_number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => write_float(number, out),
        _ => out.push_str(&value.to_string()),
    }
}

fn write_float(number: f64, out: &mut String) {
    if !number.is_finite() {
        let sign = if number < 0.0 { "-" } else { "" };
        out.push_str(if number.is_nan() { "nan" } else { sign });
        out.push_str(if number.is_nan() { "" } else { "inf" });
        return;
    }
    // Rust's `{:e}` has the shortest digits; Python changes to exponents below 1e-4 and from 1e16 on.
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

/// A string literal: single quotes unless the text has one and no double quote.
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
            _ if character < ' ' || matches!(character, '\u{7f}'..='\u{a0}' | '\u{ad}') => {
                let written = write!(out, "\\x{:02x}", u32::from(character));
                debug_assert!(written.is_ok(), "writing to a String cannot fail");
            }
            _ => out.push(character),
        }
    }
    out.push(quote);
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
        assert_eq!(text("\"plain 'text'\""), "plain 'text'");
        assert_eq!(
            text("[0.1, 1.0, 1e16, 1.5e-7, 123456789.125, -0.0001, 1e15]"),
            "[0.1, 1.0, 1e+16, 1.5e-07, 123456789.125, -0.0001, 1000000000000000.0]"
        );
    }
}
