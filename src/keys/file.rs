//! The key file on disk: size-bounded when read, and replaced atomically, so that a router that
//! reads it concurrently gets either the old keys or the new keys.

use super::document::{KeyFault, parse};
use super::key_ring::KeyRing;
use super::token_keys::TokenKeys;
use forebay_base::limits::{API_KEY_FILE_BYTES_MAX, JWKS_BYTES_MAX};
use forebay_base::{FileFault, read_document, replaceable_path};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Pause between lock attempts, and their number: a second in total.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
const LOCK_TRIES: u32 = 50;

/// How the file of keys, and a file of a key set, are written.
const OF_KEYS: &str = "write it with `forebay key add`";
const OF_KEY_SET: &str = "write a JSON Web Key Set (RFC 7517)";

/// Reason for a failed read.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("cannot read {0}")]
    Unreadable(FileFault),
    /// All faults, in the order of the file.
    #[error("{}", first(.0))]
    Faulty(Vec<KeyFault>),
}

fn first(faults: &[KeyFault]) -> String {
    faults.first().map_or_else(String::new, |fault| {
        format!("line {}, column {}: {}", fault.line, fault.column, fault.what)
    })
}

/// Reads the keys of a file.
///
/// # Errors
/// [`KeyFileError`].
pub fn read(path: &Path) -> Result<KeyRing, KeyFileError> {
    let unreadable = |error| KeyFileError::Unreadable(FileFault::of_read(path, &error, OF_KEYS));
    let text = text_of(path).map_err(unreadable)?;
    parse(&text).map_err(KeyFileError::Faulty)
}

fn text_of(path: &Path) -> io::Result<String> {
    read_document(path, API_KEY_FILE_BYTES_MAX)
}

/// Replaces the file with its text as edited by `change`. A missing file counts as empty and is
/// created readable only by its owner. Owner, group and mode of an existing file are kept: the
/// router must be able to read it afterwards.
///
/// # Errors
/// An I/O error, the error of `change`, or another process changes the file.
pub fn change(
    path: &Path,
    change: impl FnOnce(&str) -> Result<String, String>,
) -> Result<(), String> {
    let unusable = |error: io::Error| FileFault::of_read(path, &error, OF_KEYS).to_string();
    let real = replaceable_path(path).map_err(unusable)?;
    let path = real.as_path();
    let fault = |error: io::Error| format!("{}: {error}", path.display());
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    // Of two processes that change the file at once, the second would undo the first process's
    // change.
    let lock = File::open(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    wait_for(&lock).map_err(|_| {
        let path = path.display();
        let folder = folder.display();
        format!("{path}: another process changes a file in {folder}; try again later")
    })?;
    let text = match text_of(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text.map_err(|error| FileFault::of_read(path, &error, OF_KEYS).to_string())?,
    };
    let text = change(&text)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(fault)?;
    file.write_all(text.as_bytes()).map_err(fault)?;
    keep_owner(path, file.as_file()).map_err(fault)?;
    file.as_file().sync_all().map_err(fault)?;
    file.persist(path).map_err(|error| fault(error.error))?;
    lock.sync_all().map_err(fault)
}

/// Takes the lock, or fails after `LOCK_TRIES` attempts.
#[expect(clippy::disallowed_methods, reason = "`forebay key` alone changes the file, no shard")]
fn wait_for(lock: &File) -> rustix::io::Result<()> {
    let mut taken = flock(lock, FlockOperation::NonBlockingLockExclusive);
    for _ in 0..LOCK_TRIES {
        if taken.is_ok() {
            break;
        }
        std::thread::sleep(LOCK_PAUSE);
        taken = flock(lock, FlockOperation::NonBlockingLockExclusive);
    }
    taken
}

/// Copies owner, group and mode of the old file, if any, to the new file.
fn keep_owner(old: &Path, new: &File) -> io::Result<()> {
    let old = match std::fs::metadata(old) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        old => old?,
    };
    let made = new.metadata()?;
    if (old.uid(), old.gid()) != (made.uid(), made.gid()) {
        std::os::unix::fs::fchown(new, Some(old.uid()), Some(old.gid()))?;
    }
    new.set_permissions(old.permissions())
}

/// Reads a JSON Web Key Set.
///
/// # Errors
/// The fault of the file, with its path.
pub fn read_token_keys(path: &Path) -> Result<TokenKeys, FileFault> {
    let text = read_document(path, JWKS_BYTES_MAX);
    let text = text.map_err(|error| FileFault::of_read(path, &error, OF_KEY_SET))?;
    let fault = |what| FileFault::new(format!("{}: {what}", path.display()), OF_KEY_SET);
    TokenKeys::parse(text.as_bytes()).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const TEXT: &str = "[[key]]\nid = \"a\"\ntenant = \"t\"\nhash = \"sha256:\
                        ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n";

    #[test]
    fn a_change_replaces_the_file_and_keeps_it_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        change(&path, |text| Ok(format!("{text}{TEXT}"))).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(read(&path).unwrap().keys().len(), 1);
        assert_eq!(change(&path, |_| Err("no".to_owned())).unwrap_err(), "no");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TEXT, "as it was");
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 1, "nothing is left behind");
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("no regular file"));
        assert!(read_token_keys(&path).unwrap_err().what.contains("no regular file"));
        assert!(change(&path, |_| Ok(TEXT.to_owned())).unwrap_err().contains("no regular file"));
    }

    /// Issue 39: a byte order mark was no JSON and, in another encoding, no line was named.
    #[test]
    fn a_byte_order_mark_is_no_fault_and_another_encoding_has_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, format!("\u{feff}{TEXT}")).unwrap();
        assert_eq!(read(&path).unwrap().keys().len(), 1);
        std::fs::write(&path, "\u{feff}{\"keys\": []}").unwrap();
        let marked = read_token_keys(&path).map(|keys| keys.count());
        std::fs::write(&path, "{\"keys\": []}").unwrap();
        assert_eq!(marked, read_token_keys(&path).map(|keys| keys.count()));
        std::fs::write(&path, b"# \xe4").unwrap();
        let of_set = read_token_keys(&path).unwrap_err();
        for fault in [read(&path).unwrap_err().to_string(), of_set.to_string()] {
            assert!(fault.contains("line 1, column 3: the byte 0xe4 is not UTF-8"), "{fault}");
            assert!(fault.contains("iconv -f") && !fault.contains("write"), "{fault}");
        }
    }

    #[test]
    fn a_change_keeps_mode_and_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("real.toml");
        let link = folder.path().join("keys.toml");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real.toml", &link).unwrap();
        change(&link, |text| Ok(format!("{text}{TEXT}"))).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TEXT);
    }

    #[test]
    fn two_at_once_are_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        change(&path, |_| {
            let second = change(&path, |text| Ok(text.to_owned()));
            assert!(second.unwrap_err().contains("try again"));
            Ok(TEXT.to_owned())
        })
        .unwrap();
        assert_eq!(read(&path).unwrap().keys().len(), 1);
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{TEXT}modells = 1\n")).unwrap();
        let error = read(file.path()).unwrap_err().to_string();
        assert!(error.starts_with("line 5, column 11: unknown member `modells`"), "{error}");
        let error = read(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("cannot read /nonexistent"), "{error}");
        std::fs::write(file.path(), vec![b'#'; API_KEY_FILE_BYTES_MAX + 1]).unwrap();
        assert!(read(file.path()).unwrap_err().to_string().contains("longer than"));
    }
}
