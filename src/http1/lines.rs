//! Field lines and line ends, shared by requests and responses.

use super::chars::{blank_run, token_run, value_run};
use super::error::HeadError;
use super::fields::classify;
use super::head::{Field, span};

/// Position after the CR LF at `at`; `None` if the LF is still to come.
pub(super) fn line_end(window: &[u8], at: usize) -> Result<Option<usize>, HeadError> {
    match window.get(at + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some(at + 2)),
        Some(_) => Err(HeadError::LineEnd),
    }
}

/// Parses all field lines from `at` up to the empty line. Returns the position after it, `None` if
/// more bytes are needed.
pub(super) fn field_lines(
    window: &[u8],
    mut at: usize,
    fields_max: usize,
    fields: &mut Vec<Field>,
) -> Result<Option<usize>, HeadError> {
    loop {
        match window.get(at) {
            None => return Ok(None),
            Some(b'\r') => return line_end(window, at),
            Some(b'\n') => return Err(HeadError::LineEnd),
            Some(b' ' | b'\t') => return Err(HeadError::Folded),
            Some(_) => {}
        }
        if fields.len() >= fields_max {
            return Err(HeadError::TooManyFields);
        }
        let Some((field, next)) = field_line(window, at)? else { return Ok(None) };
        fields.push(field);
        at = next;
    }
}

fn field_line(window: &[u8], at: usize) -> Result<Option<(Field, usize)>, HeadError> {
    let line = window.get(at..).unwrap_or(&[]);
    let name_bytes = token_run(line);
    match line.get(name_bytes) {
        None => return Ok(None),
        Some(b':') if name_bytes > 0 => {}
        Some(_) => return Err(HeadError::FieldName),
    }
    let after = line.get(name_bytes + 1..).unwrap_or(&[]);
    let blanks = blank_run(after);
    let value = after.get(blanks..).unwrap_or(&[]);
    let value_bytes = value_run(value);
    match value.get(value_bytes) {
        None => return Ok(None),
        Some(b'\r') => {}
        Some(b'\n') => return Err(HeadError::LineEnd),
        Some(_) => return Err(HeadError::FieldValue),
    }
    let value_at = at + name_bytes + 1 + blanks;
    let Some(next) = line_end(window, value_at + value_bytes)? else { return Ok(None) };
    let value = value.get(..value_bytes).unwrap_or(&[]);
    let kept =
        value.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |last| last + 1);
    let name = line.get(..name_bytes).unwrap_or(&[]);
    let field = Field {
        name: span(at..at + name_bytes),
        value: span(value_at..value_at + kept),
        kind: classify(name),
    };
    Ok(Some((field, next)))
}
