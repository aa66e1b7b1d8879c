//! Field lines and line ends, shared by requests and responses.

use super::chars::blank_run;
use super::error::HeadError;
use super::fields::classify;
use super::head::{Field, span};
use super::runs::HeadRuns;

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
    let mut runs = HeadRuns::new(window, at);
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
        let Some((field, next)) = field_line(window, at, &mut runs)? else { return Ok(None) };
        fields.push(field);
        at = next;
    }
}

fn field_line(
    window: &[u8],
    at: usize,
    runs: &mut HeadRuns<'_>,
) -> Result<Option<(Field, usize)>, HeadError> {
    let name_end = runs.token_end(at);
    match window.get(name_end) {
        None => return Ok(None),
        Some(b':') if name_end > at => {}
        Some(_) => return Err(HeadError::FieldName),
    }
    let blanks = blank_run(window.get(name_end + 1..).unwrap_or(&[]));
    let value_at = name_end + 1 + blanks;
    let value_end = runs.value_end(value_at);
    match window.get(value_end) {
        None => return Ok(None),
        Some(b'\r') => {}
        Some(b'\n') => return Err(HeadError::LineEnd),
        Some(_) => return Err(HeadError::FieldValue),
    }
    let Some(next) = line_end(window, value_end)? else { return Ok(None) };
    let value = window.get(value_at..value_end).unwrap_or(&[]);
    let kept =
        value.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |last| last + 1);
    let field = Field {
        name: span(at..name_end),
        value: span(value_at..value_at + kept),
        kind: classify(window.get(at..name_end).unwrap_or(&[])),
    };
    Ok(Some((field, next)))
}
