//! Python's `json.dumps` of values of a body.

use super::numbers;
use super::python::write_float;
use crate::chat::steps::{count_read, count_written};
use serde_json::{Number, Value};

/// Appends `json.dumps(value, ensure_ascii=ascii)`. Values come from a body of
/// bounded depth, or from [`numbers::parse`] as Python.
pub(crate) fn write_python_json(value: &Value, ascii: bool, out: &mut String) {
    count_read(1);
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => match numbers::marked_integer(text) {
            Some(digits) => out.push_str(digits),
            None => write_string(text, ascii, out),
        },
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write_python_json(item, ascii, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (index, (name, value)) in fields.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write_string(name, ascii, out);
                out.push_str(": ");
                write_python_json(value, ascii, out);
            }
            out.push('}');
        }
    }
}

fn write_number(number: &Number, out: &mut String) {
    match number.as_f64() {
        Some(float) if number.is_f64() => write_float(float, out),
        _ => out.push_str(&number.to_string()),
    }
}

/// Appends a string in quotes.
pub(crate) fn write_string(text: &str, ascii: bool, out: &mut String) {
    let start = out.len();
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            _ if character < ' ' || (ascii && !(' '..='~').contains(&character)) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    count_written(out.len() - start);
}
