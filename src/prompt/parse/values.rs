//! Single values of a body.

use super::json::{Cursor, ScanError};

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

/// A boolean, or `default` for anything else.
pub(super) fn flag(cursor: &mut Cursor<'_>, default: bool) -> Result<bool, ScanError> {
    let first = cursor.peek();
    cursor.skip_value(1)?;
    Ok(first == Some(b't') || (default && first != Some(b'f')))
}
