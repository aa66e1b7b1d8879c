//! Text files that operators write: UTF-8, with or without a byte order mark. Editors of Windows
//! add the mark, and no format of the router begins with it.

use crate::text_file::open_file;
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The byte order mark in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// The first byte of a file that is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodingFault {
    /// Line of the byte, from 1.
    pub line: usize,
    /// Column of the byte in characters, from 1.
    pub column: usize,
    /// The fault, without its place.
    pub what: String,
    /// The command that converts the file.
    pub help: &'static str,
}

impl EncodingFault {
    /// The fault in an error of [`read_document`] or [`document_text`].
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl Display for EncodingFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { line, column, what, help } = self;
        write!(f, "line {line}, column {column}: {what}; {help}")
    }
}

impl Error for EncodingFault {}

fn fault(line: usize, column: usize, what: String, help: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, EncodingFault { line, column, what, help })
}

/// The bytes behind a byte order mark, unless the bytes are UTF-16.
fn without_mark(bytes: &[u8]) -> io::Result<&[u8]> {
    // Each text of the router's formats begins with ASCII, which has a zero byte in UTF-16.
    let is_wide = matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, _, ..] | [_, 0, ..]);
    if is_wide {
        let help = "save the file as UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW";
        return Err(fault(1, 1, "the file is UTF-16, and has to be UTF-8".to_owned(), help));
    }
    Ok(bytes.strip_prefix(MARK).unwrap_or(bytes))
}

/// The text of a file, without a byte order mark.
///
/// # Errors
/// [`EncodingFault`].
pub fn document_text(bytes: &[u8]) -> io::Result<String> {
    let bytes = without_mark(bytes)?;
    let error = match std::str::from_utf8(bytes) {
        Ok(text) => return Ok(text.to_owned()),
        Err(error) => error,
    };
    let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
    let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
    let valid = String::from_utf8_lossy(valid);
    let line = valid.split('\n').count();
    let column = valid.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let help = "save the file as UTF-8; from Latin-1: iconv -f LATIN1 -t UTF-8 OLD > NEW";
    Err(fault(line, column, format!("the byte 0x{byte:02x} is not UTF-8"), help))
}

/// The whole text of a regular file, without a byte order mark.
///
/// # Errors
/// As [`open_file`] and [`document_text`], or the file is longer than `bytes_max`.
pub fn read_document(path: &Path, bytes_max: usize) -> io::Result<String> {
    document_text(&all_bytes(path, bytes_max)?)
}

/// The bytes of a regular file, without a byte order mark, for a format with comments in any
/// encoding that contains ASCII.
///
/// # Errors
/// As [`open_file`], the file is UTF-16, or is longer than `bytes_max`.
pub fn read_bytes(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let bytes = all_bytes(path, bytes_max)?;
    without_mark(&bytes).map(<[u8]>::to_vec)
}

fn all_bytes(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_file(path)?.take((bytes_max as u64).saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        let what = format!("it is longer than {bytes_max} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 39: a mark was no TOML, no JSON and no token, and "stream did not contain valid UTF-8"
    /// had neither line nor help.
    #[test]
    fn a_mark_is_dropped_and_another_encoding_has_its_place_and_help() {
        assert_eq!(document_text(b"\xef\xbb\xbfa = 1").unwrap(), "a = 1");
        assert_eq!(document_text("a = \"ä\"".as_bytes()).unwrap(), "a = \"ä\"");
        assert_eq!(document_text(b"").unwrap(), "");
        for (bytes, says) in [
            (&b"a = 1\n# \xc3\xa4 \xe4"[..], "line 2, column 5: the byte 0xe4 is not UTF-8"),
            (b"\xff\xfea\0", "line 1, column 1: the file is UTF-16"),
            (b"\xfe\xff\0a", "line 1, column 1: the file is UTF-16"),
            (b"a\0b\0", "line 1, column 1: the file is UTF-16"),
            (b"\0a\0b", "line 1, column 1: the file is UTF-16"),
        ] {
            let error = document_text(bytes).unwrap_err();
            assert!(EncodingFault::of(&error).is_some());
            assert!(error.to_string().starts_with(says), "{error}");
            assert!(error.to_string().contains("iconv -f "), "{error}");
        }
    }
}
