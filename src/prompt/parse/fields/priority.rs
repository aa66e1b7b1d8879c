//! vLLM's priority of a request: a whole number, lower is earlier, 0 if absent. Read as vLLM reads
//! it (0.32: pydantic for the body, Python's `int` for the field), so that router and engine read
//! every spelling alike.

use forebay_json::{Cursor, JsonError, unescaped};

/// `priority` of a body; the cursor stands on the value and leaves it. `None` for what engines
/// refuse, and for `null`.
pub(crate) fn of_body(cursor: &mut Cursor<'_>) -> Result<Option<i64>, JsonError> {
    let first = cursor.peek();
    let start = cursor.at();
    cursor.skip_value(1)?;
    let value = cursor.slice(&(start..cursor.at()));
    Ok(match first {
        Some(b'-' | b'0'..=b'9') => number(value),
        Some(b'"') => number(unescaped(value).trim_matches('"')),
        Some(b't') => Some(1),
        Some(b'f') => Some(0),
        _ => None,
    })
}

/// `X-Vllm-Priority`. The engine gets the number as the router read it.
pub(crate) fn of_field(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok().and_then(number)
}

/// A number that is whole, in any of Python's spellings; a number beyond 64 bits saturates.
fn number(text: &str) -> Option<i64> {
    if let Ok(plain) = text.parse() {
        return Some(plain);
    }
    let digits: String = text.trim().chars().filter(|&letter| letter != '_').collect();
    let number: f64 = digits.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    (number.is_finite() && number.fract().abs() < f64::EPSILON).then_some(number as i64)
}
