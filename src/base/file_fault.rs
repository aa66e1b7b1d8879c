//! The text for a file of the configuration that cannot be used: the fault, and advice by the kind
//! of the error. Each reader of such a file has this text.

use crate::document::EncodingFault;
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Advice for a file that is there, and that the system does not open for this user.
const NO_ACCESS: &str = "let the user of this process read it, and enter each folder above it: \
    `namei -l` with the path shows their owners and modes";

/// A file that cannot be read, or holds something else than the router reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The fault, behind the path.
    pub what: String,
    /// What to do about it.
    pub help: String,
}

impl FileFault {
    /// A file that was read, and cannot be used.
    pub fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: help.into() }
    }

    /// A file that was not read. `form`: how to write the file, which is of use only where the file
    /// is missing or the router itself refuses the content.
    #[must_use]
    pub fn of_read(path: &Path, error: &io::Error, form: &str) -> Self {
        let shown = path.display();
        if let Some(EncodingFault { line, column, what, help }) = EncodingFault::of(error) {
            return Self::new(format!("{shown}: line {line}, column {column}: {what}"), *help);
        }
        Self::new(format!("{shown}: {error}"), Self::advice(error.kind(), form))
    }

    /// Advice by the kind of an error.
    fn advice(kind: ErrorKind, form: &str) -> String {
        let advice = match kind {
            ErrorKind::NotFound => return format!("correct the path, or {form}"),
            ErrorKind::FileTooLarge | ErrorKind::InvalidData => form,
            ErrorKind::PermissionDenied => NO_ACCESS,
            ErrorKind::IsADirectory => "name a file in this folder",
            ErrorKind::InvalidInput => "name a regular file: a pipe or a device may have no end",
            ErrorKind::NotADirectory | ErrorKind::InvalidFilename => {
                "correct the path: a part of it is a file, or is too long"
            }
            _ => "the system cannot read it: look at its disk, or at the server of its mount",
        };
        advice.to_owned()
    }
}

impl Display for FileFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.help)
    }
}

impl Error for FileFault {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::read_document;

    const FORM: &str = "write one line into it";

    /// Issue 39: a file without permission had the help of a missing file.
    #[test]
    fn the_advice_is_that_of_the_kind_of_the_error() {
        for (kind, help) in [
            (ErrorKind::NotFound, "correct the path, or write one line into it"),
            (ErrorKind::PermissionDenied, NO_ACCESS),
            (ErrorKind::IsADirectory, "name a file in this folder"),
            (ErrorKind::NotADirectory, "correct the path: "),
            (ErrorKind::FileTooLarge, FORM),
            (ErrorKind::TimedOut, "the system cannot read it: "),
        ] {
            let fault = FileFault::of_read(Path::new("/a/b"), &kind.into(), FORM);
            assert!(fault.help.starts_with(help), "{fault:?}");
            assert_eq!(fault.what, format!("/a/b: {}", io::Error::from(kind)));
            let is_of_form = matches!(kind, ErrorKind::NotFound | ErrorKind::FileTooLarge);
            assert_eq!(fault.help.contains(FORM), is_of_form, "{fault:?}");
        }
    }

    #[test]
    fn files_of_each_kind_have_their_advice() {
        let folder = std::env::temp_dir().join(format!("forebay-faults-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("file");
        std::fs::write(&file, "a\0b\0").unwrap();
        let fault = |path: &Path, bytes_max| {
            let error = read_document(path, bytes_max).unwrap_err();
            FileFault::of_read(path, &error, FORM).to_string()
        };
        let below = file.join("below");
        for (path, bytes_max, says) in [
            (&folder, 9, "it is a folder; name a file in this folder"),
            (&below, 9, "; correct the path: a part of it is a file"),
            (&file, 3, "it is longer than 3 bytes; write one line into it"),
            (&file, 9, "line 1, column 1: the file is UTF-16, and has to be UTF-8; save the file"),
        ] {
            let found = fault(path, bytes_max);
            assert!(found.contains(says), "{found}");
        }
        let device = fault(Path::new("/dev/zero"), 9);
        assert!(device.contains("it is no regular file; name a regular file"), "{device}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
