//! Counts the prompts and the samples of a request. Engines make a request of their own for each
//! sample of each prompt.

use super::members::name_of;
use forebay_json::{Cursor, JsonError};

/// Longest number as text that is accepted.
const NUMBER_BYTES_MAX: usize = 64;

/// Prompts in a member of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptItems {
    /// A single text, or a single list of token ids.
    One,
    /// A list of so many prompts.
    List(u32),
}

/// A number in a member of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Absent,
    Value(u32),
    /// A value that not every engine reads alike.
    Unclear,
}

impl Number {
    /// The number, 1 when absent; `None` when unclear.
    pub(super) fn or_one(self) -> Option<u32> {
        match self {
            Self::Absent => Some(1),
            Self::Value(value) => Some(value),
            Self::Unclear => None,
        }
    }
}

/// Reads text, token ids, or a list of either, a level below the top. `None` for null.
pub(super) fn items(cursor: &mut Cursor<'_>) -> Result<Option<PromptItems>, JsonError> {
    match cursor.peek() {
        Some(b'[') => list(cursor).map(Some),
        Some(b'n') => cursor.skip_value(1).map(|()| None),
        _ => cursor.skip_value(1).map(|()| Some(PromptItems::One)),
    }
}

/// Reads a list by its first element, as the engines do: numbers are the ids of a single prompt.
fn list(cursor: &mut Cursor<'_>) -> Result<PromptItems, JsonError> {
    cursor.open();
    let mut first = true;
    let mut count = 0_u32;
    let mut is_ids = false;
    while cursor.next_element(&mut first)? {
        match cursor.peek() {
            Some(b'0'..=b'9' | b'-') if count == 0 => is_ids = true,
            _ => {}
        }
        count = count.saturating_add(1);
        if is_ids {
            cursor.skip_ids();
            cursor.skip_value(2)?;
        } else if cursor.peek() == Some(b'[') {
            skip_list(cursor)?;
        } else {
            cursor.skip_value(2)?;
        }
    }
    Ok(if is_ids || count == 0 { PromptItems::One } else { PromptItems::List(count) })
}

/// Skips a list two levels below the top, most likely of token ids.
fn skip_list(cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
    cursor.open();
    let mut first = true;
    while cursor.next_element(&mut first)? {
        cursor.skip_ids();
        cursor.skip_value(3)?;
    }
    Ok(())
}

/// Reads the vectors of a prompt, or a list of such prompts. `None` for null.
pub(super) fn embeddings(cursor: &mut Cursor<'_>) -> Result<Option<PromptItems>, JsonError> {
    if cursor.peek() != Some(b'[') {
        return items(cursor);
    }
    cursor.open();
    let mut first = true;
    let mut count = 0_u32;
    let mut is_list = false;
    while cursor.next_element(&mut first)? {
        if count == 0 && cursor.peek() == Some(b'[') {
            cursor.open();
            let mut inner_first = true;
            while cursor.next_element(&mut inner_first)? {
                is_list |= cursor.peek() == Some(b'[');
                cursor.skip_value(3)?;
            }
        } else {
            cursor.skip_value(2)?;
        }
        count = count.saturating_add(1);
    }
    Ok(Some(if is_list { PromptItems::List(count) } else { PromptItems::One }))
}

/// Reads a number under `depth` containers. Engines that validate with pydantic also accept `2.0`
/// and `"2"` for 2.
pub(super) fn number(cursor: &mut Cursor<'_>, depth: usize) -> Result<Number, JsonError> {
    let start = cursor.at();
    let text = match cursor.peek() {
        Some(b'n') => {
            cursor.skip_value(depth)?;
            return Ok(Number::Absent);
        }
        Some(b'"') => {
            let text = cursor.string()?;
            cursor.slice(&text.span).trim()
        }
        _ => {
            cursor.skip_value(depth)?;
            cursor.slice(&(start..cursor.at()))
        }
    };
    if text.len() > NUMBER_BYTES_MAX {
        return Ok(Number::Unclear);
    }
    if let Ok(whole) = text.parse::<u32>() {
        return Ok(Number::Value(whole));
    }
    let integral = |value: &f64| value.fract() == 0.0 && (0.0..=1e9).contains(value);
    let whole = text.parse::<f64>().ok().filter(integral);
    let whole = whole.and_then(|value| format!("{value:.0}").parse().ok());
    Ok(whole.map_or(Number::Unclear, Number::Value))
}

/// Reads `n` of `/generate`'s sampling parameters: an object, or a list of objects that must agree.
pub(super) fn samples(cursor: &mut Cursor<'_>) -> Result<Number, JsonError> {
    match cursor.peek() {
        Some(b'{') => samples_of_one(cursor, 1),
        Some(b'[') => {
            cursor.open();
            let mut first = true;
            let mut found = Number::Absent;
            let mut is_leading = true;
            while cursor.next_element(&mut first)? {
                if std::mem::take(&mut is_leading) && cursor.peek() == Some(b'{') {
                    found = samples_of_one(cursor, 2)?;
                } else {
                    cursor.skip_value(2)?;
                }
            }
            Ok(found)
        }
        _ => cursor.skip_value(1).map(|()| Number::Absent),
    }
}

fn samples_of_one(cursor: &mut Cursor<'_>, depth: usize) -> Result<Number, JsonError> {
    cursor.open();
    let mut first = true;
    let mut found = Number::Absent;
    while let Some(key) = cursor.next_key(&mut first)? {
        let mut decoded = String::new();
        if name_of(&key, cursor, &mut decoded) == "n" {
            found = number(cursor, depth + 1)?;
        } else {
            cursor.skip_value(depth + 1)?;
        }
    }
    Ok(found)
}
