//! Prompts that are text, token ids, or lists of either.

use super::request::PromptSource;
use forebay_json::{Cursor, ID_DIGITS_MAX, JsonError};
use std::ops::Range;

/// Reads the value at the cursor, a member of the top object.
pub(super) fn prompt(cursor: &mut Cursor<'_>) -> Result<(PromptSource, u32), JsonError> {
    match cursor.peek() {
        Some(b'"') => Ok((PromptSource::Text(narrow(&cursor.string()?.span)), 1)),
        Some(b'[') => list(cursor),
        _ => {
            cursor.skip_value(1)?;
            Ok((PromptSource::None, 1))
        }
    }
}

fn list(cursor: &mut Cursor<'_>) -> Result<(PromptSource, u32), JsonError> {
    let start = cursor.at();
    cursor.open();
    let mut first = true;
    if !cursor.next_element(&mut first)? {
        return Ok((PromptSource::None, 1));
    }
    let element = cursor.at();
    match cursor.peek() {
        Some(b'0'..=b'9') => {
            let all = ids(cursor, 2, false)?;
            let ids = PromptSource::TokenIds(narrow(&(start..cursor.at())));
            Ok((if all { ids } else { PromptSource::None }, 1))
        }
        Some(b'[') => {
            cursor.open();
            let all = ids(cursor, 3, true)?;
            let batch = PromptSource::Batch(narrow(&(element..cursor.at())));
            let rest = skip_rest(cursor)?;
            Ok((if all { batch } else { PromptSource::None }, rest.saturating_add(1)))
        }
        Some(b'"') => {
            cursor.string()?;
            let batch = PromptSource::Batch(narrow(&(element..cursor.at())));
            Ok((batch, skip_rest(cursor)?.saturating_add(1)))
        }
        _ => {
            cursor.skip_value(2)?;
            Ok((PromptSource::None, skip_rest(cursor)?.saturating_add(1)))
        }
    }
}

/// Reads an array to its end; true when it has elements and all are token ids. `fresh`: the cursor
/// stands behind the bracket, otherwise on the first element.
fn ids(cursor: &mut Cursor<'_>, depth: usize, fresh: bool) -> Result<bool, JsonError> {
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

/// Leaves the list; returns how many elements were left.
fn skip_rest(cursor: &mut Cursor<'_>) -> Result<u32, JsonError> {
    let mut first = false;
    let mut count = 0_u32;
    while cursor.next_element(&mut first)? {
        cursor.skip_value(2)?;
        count = count.saturating_add(1);
    }
    Ok(count)
}

/// Bodies are below 4 GiB ([`Cursor::new`]).
pub(super) fn narrow(range: &Range<usize>) -> Range<u32> {
    u32::try_from(range.start).unwrap_or(u32::MAX)..u32::try_from(range.end).unwrap_or(u32::MAX)
}
