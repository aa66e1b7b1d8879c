//! Bounded reading of text files, and the path of a file that is replaced.

use rustix::fs::OFlags;
use std::fs::{File, FileType};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The path of a file that a new file may replace: that of the target of a symbolic link, or the
/// path itself where nothing is. A device, a pipe or a folder is never replaced: as root, a file
/// would take the place of `/dev/null`.
///
/// # Errors
/// It is there and no regular file, or cannot be looked at.
pub fn replaceable_path(path: &Path) -> io::Result<PathBuf> {
    let is_link = path.symlink_metadata().is_ok_and(|found| found.is_symlink());
    let real = match path.canonicalize() {
        Ok(real) if is_link => real,
        // The target is not there yet.
        Err(_) if is_link => path.parent().unwrap_or(Path::new("")).join(path.read_link()?),
        _ => path.to_owned(),
    };
    match real.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(real),
        found => only_regular(found?.file_type()).map(|()| real),
    }
}

fn only_regular(kind: FileType) -> io::Result<()> {
    if kind.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder"));
    }
    match kind.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// Opens a regular file. Any other file is an error at once: a pipe without a writer would block,
/// and a device may have no end.
///
/// # Errors
/// An error of the system, or the file is not regular.
pub fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    only_regular(file.metadata()?.file_type())?;
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
    use rustix::fs::{self, CWD, Mode, mknodat};

    #[test]
    fn only_a_regular_file_is_read_and_nothing_is_waited_for() {
        let folder = std::env::temp_dir().join(format!("forebay-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        mknodat(CWD, &path, fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
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

    /// A stranger gave a device as the file of the figures, and a file took its place.
    #[test]
    fn a_file_takes_the_place_of_no_device_and_of_no_link() {
        let folder = std::env::temp_dir().join(format!("forebay-replaced-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let at = |name: &str| folder.join(name);
        mknodat(CWD, at("pipe"), fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::write(at("file"), "").unwrap();
        for (link, to) in [("to-file", "file"), ("to-pipe", "pipe"), ("to-new", "new")] {
            std::os::unix::fs::symlink(to, at(link)).unwrap();
        }
        for other in [&at("pipe"), &at("to-pipe"), &folder, Path::new("/dev/null")] {
            assert!(replaceable_path(other).is_err(), "{}", other.display());
        }
        for (name, real) in
            [("file", "file"), ("absent", "absent"), ("to-file", "file"), ("to-new", "new")]
        {
            assert_eq!(replaceable_path(&at(name)).unwrap(), at(real));
        }
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
