//! Bounded reading of text files.

use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file. Any other file is an error at once: a pipe without a writer would block,
/// and a device may have no end.
///
/// # Errors
/// An error of the system, or the file is not regular.
pub fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder"));
    }
    if !kind.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(file)
}

/// The whole text of a regular file.
///
/// # Errors
/// As [`open_file`] and [`read_text`].
pub fn read_file(path: &Path, bytes_max: usize) -> io::Result<String> {
    read_text(open_file(path)?, bytes_max)
}

/// The whole text.
///
/// # Errors
/// The text cannot be read, is not UTF-8, or is longer than `bytes_max`.
pub fn read_text(source: impl Read, bytes_max: usize) -> io::Result<String> {
    let mut text = String::new();
    let limit = bytes_max as u64;
    source.take(limit.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() > bytes_max {
        let what = format!("it is longer than {bytes_max} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn only_a_regular_file_is_read_and_nothing_is_waited_for() {
        let folder = std::env::temp_dir().join(format!("forebay-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for other in [&path, Path::new("/dev/zero")] {
            let error = read_file(other, 3).unwrap_err();
            assert_eq!(error.to_string(), "it is no regular file", "{}", other.display());
        }
        assert_eq!(read_file(&folder, 3).unwrap_err().kind(), ErrorKind::IsADirectory);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read_file(&path, 3).unwrap(), "abc");
        assert!(read_file(&path, 2).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_text_has_a_bound() {
        assert_eq!(read_text(&b"abc"[..], 3).unwrap(), "abc");
        let error = read_text(std::io::repeat(b'a'), 3).unwrap_err();
        assert_eq!(error.to_string(), "it is longer than 3 bytes");
        assert!(read_text(&b"\xff"[..], 3).is_err());
    }
}
