//! Single values of a body.

use super::json::{Cursor, ScanError};

/// A boolean; `default` for anything else.
pub(super) fn flag(cursor: &mut Cursor<'_>, default: bool) -> Result<bool, ScanError> {
    let first = cursor.peek();
    cursor.skip_value(1)?;
    Ok(match first {
        Some(b't') => true,
        Some(b'f') => false,
        _ => default,
    })
}

/// A boolean, if it is one.
pub(super) fn switch(cursor: &mut Cursor<'_>) -> Result<Option<bool>, ScanError> {
    let first = cursor.peek();
    cursor.skip_value(1)?;
    Ok(match first {
        Some(b't') => Some(true),
        Some(b'f') => Some(false),
        _ => None,
    })
}

/// True unless the value is `null` or `false`.
pub(super) fn present(cursor: &mut Cursor<'_>) -> Result<bool, ScanError> {
    let absent = matches!(cursor.peek(), Some(b'n' | b'f'));
    cursor.skip_value(1)?;
    Ok(!absent)
}

/// A whole number from 0; larger ones than 32 bits saturate.
pub(super) fn count(cursor: &mut Cursor<'_>) -> Result<Option<u32>, ScanError> {
    if !matches!(cursor.peek(), Some(b'0'..=b'9')) {
        cursor.skip_value(1)?;
        return Ok(None);
    }
    let digits = cursor.number()?;
    Ok(digits.map(|digits| cursor.slice(&digits).parse().unwrap_or(u32::MAX)))
}

/// `max_new_tokens` and `n` of `/generate`'s sampling parameters.
pub(super) fn sampling(cursor: &mut Cursor<'_>) -> Result<(Option<u32>, Option<u32>), ScanError> {
    let (mut tokens, mut samples) = (None, None);
    if cursor.peek() != Some(b'{') {
        cursor.skip_value(1)?;
        return Ok((tokens, samples));
    }
    cursor.open();
    let mut first = true;
    while let Some(key) = cursor.next_key(&mut first)? {
        match cursor.slice(&key.span) {
            "max_new_tokens" => tokens = count(cursor)?,
            "n" => samples = count(cursor)?,
            _ => cursor.skip_value(2)?,
        }
    }
    Ok((tokens, samples))
}
