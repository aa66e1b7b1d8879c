//! Reads a file of header fields, which may hold secrets.

use super::field_name::is_hop_field;
use forebay_base::limits::TOKEN_BYTES_MAX;
use forebay_base::{FileFault, read_document};
use std::path::Path;

/// Most fields of a file.
const FIELDS_MAX: usize = 16;
/// How the file is written.
const OF_FIELDS: &str = "write a line for each field, such as authorization: Bearer TOKEN";
/// Field of the exporter itself, beside fields of the connection and of framing. A second field of
/// the name would break the message.
const OWN_FIELD: &str = "content-type";

/// A header field with its value.
#[derive(Clone, PartialEq, Eq)]
pub struct TraceField {
    /// Name in lower case.
    pub name: String,
    pub value: String,
}

/// The fields in a file: `name: value` in each line. Empty lines and lines with `#` are skipped.
///
/// # Errors
/// The fault of the file, with its path and line, and without a value.
pub fn read_header_file(path: &Path) -> Result<Vec<TraceField>, FileFault> {
    let text = read_document(path, TOKEN_BYTES_MAX);
    let text = text.map_err(|error| FileFault::of_read(path, &error, OF_FIELDS))?;
    fields_of(path, &text).map_err(|what| FileFault::new(what, OF_FIELDS))
}

fn fields_of(path: &Path, text: &str) -> Result<Vec<TraceField>, String> {
    let shown = path.display();
    let mut fields = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let field = field_of(line);
        let wanted = || format!("{shown}:{}: should be `name: value`", number.saturating_add(1));
        let field = field.ok_or_else(wanted)?;
        if field.name == OWN_FIELD || is_hop_field(&field.name) {
            let line = number.saturating_add(1);
            return Err(format!("{shown}:{line}: the router itself writes `{}`", field.name));
        }
        fields.push(field);
    }
    if fields.is_empty() || fields.len() > FIELDS_MAX {
        return Err(format!("{shown} should hold 1 to {FIELDS_MAX} lines `name: value`"));
    }
    Ok(fields)
}

fn field_of(line: &str) -> Option<TraceField> {
    let (name, value) = line.split_once(':')?;
    let value = value.trim();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_value = |byte: u8| (0x20..0x7f).contains(&byte);
    let is_good = !name.is_empty() && name.bytes().all(is_name) && value.bytes().all(is_value);
    let name = name.to_ascii_lowercase();
    (is_good && !value.is_empty()).then(|| TraceField { name, value: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_field_and_a_fault_shows_no_value() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            let read = read_header_file(file.path());
            read.map(|all| {
                all.iter().map(|f| format!("{}={}", f.name, f.value)).collect::<Vec<_>>()
            })
        };
        assert_eq!(
            read("# key\nAuthorization: Bearer a:b\n\nx-scope: 1\n").unwrap(),
            ["authorization=Bearer a:b", "x-scope=1"]
        );
        for wrong in ["", "# no field\n", "s3cret", "a b: s3cret", "a:", "a: s3cret\u{7f}"] {
            let fault = read(wrong).unwrap_err().what;
            assert!(!fault.contains("s3cret"), "{fault}");
        }
        assert!(read(&"a: b\n".repeat(17)).is_err());
        assert!(read("Upgrade: h2c\n").unwrap_err().what.contains("`upgrade`"));
        assert!(read("Content-Length: 4\n").unwrap_err().what.contains("`content-length`"));
        assert!(read("a: b\nc\n").unwrap_err().what.contains(":2: "), "the line is named");
    }
}
