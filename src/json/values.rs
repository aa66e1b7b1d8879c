//! Single values of a JSON text, with the cursor on the value.

use crate::{Cursor, JsonError};

/// The value, if it is a boolean.
pub fn switch(cursor: &mut Cursor<'_>) -> Result<Option<bool>, JsonError> {
    let first = cursor.peek();
    cursor.skip_value(1)?;
    Ok(match first {
        Some(b't') => Some(true),
        Some(b'f') => Some(false),
        _ => None,
    })
}

/// True unless the value is `null` or `false`.
pub fn present(cursor: &mut Cursor<'_>) -> Result<bool, JsonError> {
    let absent = matches!(cursor.peek(), Some(b'n' | b'f'));
    cursor.skip_value(1)?;
    Ok(!absent)
}

/// The value, or `default` if it is no boolean.
pub fn flag(cursor: &mut Cursor<'_>, default: bool) -> Result<bool, JsonError> {
    let first = cursor.peek();
    cursor.skip_value(1)?;
    Ok(first == Some(b't') || (default && first != Some(b'f')))
}
