//! Prompts that are text, token ids, or lists of either.

use super::json::{Cursor, ID_DIGITS_MAX, ScanError};
use super::request::PromptSource;
use std::ops::Range;

/// Reads the value the cursor stands on, one level below the top.
pub(super) fn prompt(cursor: &mut Cursor<'_>) -> Result<PromptSource, ScanError> {
    match cursor.peek() {
        Some(b'"') => Ok(PromptSource::Text(narrow(&cursor.string()?.span))),
        Some(b'[') => list(cursor),
        _ => {
            cursor.skip_value(1)?;
            Ok(PromptSource::None)
        }
    }
}

fn list(cursor: &mut Cursor<'_>) -> Result<PromptSource, ScanError> {
    let start = cursor.at();
    cursor.open();
    let mut first = true;
    if !cursor.next_element(&mut first)? {
        return Ok(PromptSource::None);
    }
    let element = cursor.at();
    match cursor.peek() {
        Some(b'0'..=b'9') => {
            let all = ids(cursor, 2, false)?;
            Ok(if all {
                PromptSource::TokenIds(narrow(&(start..cursor.at())))
            } else {
                PromptSource::None
            })
        }
        Some(b'[') => {
            cursor.open();
            let all = ids(cursor, 3, true)?;
            let batch = PromptSource::Batch(narrow(&(element..cursor.at())));
            skip_rest(cursor)?;
            Ok(if all { batch } else { PromptSource::None })
        }
        Some(b'"') => {
            cursor.string()?;
            let batch = PromptSource::Batch(narrow(&(element..cursor.at())));
            skip_rest(cursor)?;
            Ok(batch)
        }
        _ => {
            cursor.skip_value(2)?;
            skip_rest(cursor)?;
            Ok(PromptSource::None)
        }
    }
}

/// Reads an array to its end; true when it has elements and all are token ids. `fresh`: the cursor
/// stands behind the bracket, otherwise on the first element.
fn ids(cursor: &mut Cursor<'_>, depth: usize, fresh: bool) -> Result<bool, ScanError> {
    let mut first = true;
    if fresh && !cursor.next_element(&mut first)? {
        return Ok(false);
    }
    first = false;
    let mut all = true;
    loop {
        cursor.skip_ids();
        if let Some(b'0'..=b'9') = cursor.peek() {
            all &= cursor.number()?.is_some_and(|digits| digits.len() <= ID_DIGITS_MAX);
        } else {
            all = false;
            cursor.skip_value(depth)?;
        }
        if !cursor.next_element(&mut first)? {
            return Ok(all);
        }
    }
}

fn skip_rest(cursor: &mut Cursor<'_>) -> Result<(), ScanError> {
    let mut first = false;
    while cursor.next_element(&mut first)? {
        cursor.skip_value(2)?;
    }
    Ok(())
}

/// Bodies are below 4 GiB ([`Cursor::new`]).
pub(super) fn narrow(range: &Range<usize>) -> Range<u32> {
    u32::try_from(range.start).unwrap_or(u32::MAX)..u32::try_from(range.end).unwrap_or(u32::MAX)
}
