//! Answers of the admin API as text: members, tables, lines.

use crate::cli::process::plain;
use serde_json::Value;
use std::io::{self, Write};

/// Spaces between two columns.
const GAP: usize = 2;

/// Text of a member; empty if the member is missing.
pub(super) fn word<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Number of a member; 0 if the member is missing.
pub(super) fn count(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

pub(super) fn is_set(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// Elements of a member; empty if the member is no list.
pub(super) fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], |list| list)
}

/// Strings of a member, separated by commas.
pub(super) fn words(value: &Value, name: &str) -> String {
    list(value, name).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// Writes rows in columns. The first row is the heading; the last column is as wide as it is.
pub(super) fn table(rows: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let column_count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width_of = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..column_count).map(width_of).collect();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            let rest = width.saturating_sub(cell.chars().count());
            line.extend(std::iter::repeat_n(' ', rest + GAP));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Writes a line of text that a router or a worker may have chosen.
pub(super) fn line(text: &str, out: &mut impl Write) -> Result<(), String> {
    writeln!(out, "{}", plain(text)).map_err(|error| unwritten(&error))
}

/// Writes the answer as a JSON document.
pub(super) fn json(answer: &Value, out: &mut impl Write) -> Result<(), String> {
    writeln!(out, "{answer:#}").map_err(|error| unwritten(&error))
}

pub(super) fn unwritten(error: &io::Error) -> String {
    format!("cannot write the answer: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_plain() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let mut out = Vec::new();
        table(&[row(["a", "b"]), row(["längst", "\u{1b}x"])], &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a       b\nlängst  \u{fffd}x\n");
    }
}
