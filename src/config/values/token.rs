//! Reads the files of tokens and keys of workers.

use crate::sections::schema::Config;
use forebay_base::limits::TOKEN_BYTES_MAX;
use forebay_base::{FileFault, read_document};
use std::path::Path;

/// The token in a file: its only line.
///
/// # Errors
/// The fault of the file.
pub fn read_token(path: &Path) -> Result<String, FileFault> {
    read_line(path, "write one line into it, for example with: openssl rand -hex 32")
}

/// The key of a worker in a file: its only line.
///
/// # Errors
/// The fault of the file.
pub(crate) fn read_worker_key(path: &Path) -> Result<String, FileFault> {
    read_line(path, "write the engine's --api-key into it, as one line")
}

fn read_line(path: &Path, form: &str) -> Result<String, FileFault> {
    let text = read_document(path, TOKEN_BYTES_MAX - 1);
    let text = text.map_err(|error| FileFault::of_read(path, &error, form))?;
    let token = text.trim();
    let is_plain = token.bytes().all(|byte| (0x21..0x7f).contains(&byte));
    if token.is_empty() || !is_plain {
        let wanted = "should hold one line of visible ASCII without spaces";
        return Err(FileFault::new(format!("{} {wanted}", path.display()), form));
    }
    Ok(token.to_owned())
}

impl Config {
    /// The file with the token that peers require.
    #[must_use]
    pub fn peer_token_file(&self) -> Option<&Path> {
        let own = [&self.admin_read_token_file, &self.admin_token_file];
        [&self.replicas.token_file].into_iter().chain(own).find_map(Option::as_deref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, token) in [
            ("s3cret\n", Some("s3cret")),
            ("\u{feff}s3cret\r\n", Some("s3cret")),
            ("", None),
            ("\n", None),
            ("two words", None),
            ("two\nlines", None),
            (&"x".repeat(TOKEN_BYTES_MAX), None),
        ] {
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(read_token(file.path()).ok().as_deref(), token, "{text:?}");
        }
        assert!(read_token(Path::new("/nonexistent")).is_err());
    }
}
