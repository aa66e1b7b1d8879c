//! Files with a line of JSON for each worker. A blocking thread writes them, a single text at a
//! time. A faulty line costs no other line. A faulty file is kept beside its replacement.

use forebay_base::limits::BROKEN_COPIES_MAX;
use forebay_base::{read_bytes, replaceable_path};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions, rename};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use tracing::warn;

/// Faults of lines that the log has; of further faults it has the number.
const FAULTS_LOGGED_MAX: usize = 8;

/// Whether a file outlives a power cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// The next power cut may lose the file. Costs no wait for the disk.
    Cache,
    Disk,
}

/// A line for each item.
pub(super) fn lines_of(items: &[impl Serialize]) -> String {
    let lines = items.iter().filter_map(|item| serde_json::to_string(item).ok());
    lines.map(|line| line + "\n").collect()
}

/// Replaces a file atomically.
///
/// # Errors
/// As [`replaceable_path`], or the file cannot be written.
pub(super) fn replace(path: &Path, text: &str, durability: Durability) -> io::Result<()> {
    let path = &replaceable_path(path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    if durability == Durability::Cache {
        file.persist(path)?;
        return Ok(());
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()
}

/// Items of a file, and the faults of its other lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LineReading<T> {
    pub(super) items: Vec<T>,
    /// The first [`FAULTS_LOGGED_MAX`], each with the number of its line.
    pub(super) faults: Vec<String>,
    pub(super) fault_count: usize,
}

impl<T> LineReading<T> {
    /// The first fault, and the number of further faults.
    pub(super) fn fault(&self) -> Option<String> {
        let first = self.faults.first()?;
        Some(match self.fault_count {
            0 | 1 => first.clone(),
            count => format!("{first} (and {} more)", count - 1),
        })
    }

    /// Logs the faults. `file`: its key and path.
    pub(super) fn log_faults(&self, file: &str) {
        for fault in &self.faults {
            warn!("{file}: {fault}; this line is not in use");
        }
        let more = self.fault_count.saturating_sub(self.faults.len());
        if more > 0 {
            warn!("{file}: {more} more lines are not in use");
        }
    }
}

/// Reads each line that is not blank. A line that is not UTF-8 is a fault too.
pub(super) fn read_lines<T>(
    bytes: &[u8],
    mut read: impl FnMut(&str) -> Result<T, String>,
) -> LineReading<T> {
    let mut reading = LineReading { items: Vec::new(), faults: Vec::new(), fault_count: 0 };
    for (line, number) in bytes.split(|byte| *byte == b'\n').zip(1_u32..) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let text = str::from_utf8(line).map_err(|_| "not UTF-8".to_owned());
        match text.and_then(&mut read) {
            Ok(item) => reading.items.push(item),
            Err(fault) => {
                reading.fault_count += 1;
                if reading.faults.len() < FAULTS_LOGGED_MAX {
                    reading.faults.push(format!("line {number}: {fault}"));
                }
            }
        }
    }
    reading
}

/// Reads a line of JSON. The fault has the column, and no line: the text has only this line.
pub(super) fn json_line<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|error| {
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        match text.strip_suffix(&place) {
            Some(what) => format!("{what} (column {})", error.column()),
            None => text,
        }
    })
}

/// Keeps a copy of a faulty file under a name of its own. Bytes that a copy has are kept once.
///
/// # Errors
/// Each of [`BROKEN_COPIES_MAX`] names has other bytes, or the copy cannot be written.
pub(super) fn copy_aside(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let real = replaceable_path(path)?;
    let is_kept = |aside: &PathBuf| read_bytes(aside, bytes.len()).is_ok_and(|kept| kept == bytes);
    if let Some(aside) = names_aside(&real).find(is_kept) {
        return Ok(aside);
    }
    let (mut file, aside) = new_aside(&real)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    drop_unless(written, aside)
}

/// Moves a file that cannot be read, as [`copy_aside`].
///
/// # Errors
/// Each name is in use, or the file cannot be moved.
pub(super) fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let real = replaceable_path(path)?;
    let (_, aside) = new_aside(&real)?;
    drop_unless(rename(&real, &aside), aside)
}

fn names_aside(real: &Path) -> impl Iterator<Item = PathBuf> {
    let name = |number| match number {
        1 => real.with_added_extension("broken"),
        _ => real.with_added_extension(format!("broken.{number}")),
    };
    (1..=BROKEN_COPIES_MAX).map(name)
}

/// Creates the first file that is not there yet: no file is written over.
fn new_aside(real: &Path) -> io::Result<(File, PathBuf)> {
    for aside in names_aside(real) {
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (file, aside)),
        }
    }
    let what = format!("{BROKEN_COPIES_MAX} broken copies are there already: remove them");
    Err(io::Error::new(ErrorKind::AlreadyExists, what))
}

/// The path of a copy. A copy that failed leaves no file.
fn drop_unless(result: io::Result<()>, aside: PathBuf) -> io::Result<PathBuf> {
    if result.is_err() {
        // The first error counts.
        let _ = std::fs::remove_file(&aside);
    }
    result.map(|()| aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faulty_line_costs_no_other_line() {
        let faulty: [&[u8]; 5] = [b"{\"n\":", b"no", b"\xff\xfe", b"[1", b"\"text\""];
        for fault in faulty {
            for place in 0..4 {
                let mut lines: Vec<&[u8]> = vec![b"1", b" ", b"2\r"];
                lines.insert(place, fault);
                let reading = read_lines::<u32>(&lines.join(&b'\n'), json_line);
                assert_eq!((reading.items, reading.fault_count), (vec![1, 2], 1));
                let number = format!("line {}: ", place + 1);
                assert!(reading.faults[0].starts_with(&number), "{:?}", reading.faults);
                assert!(!reading.faults[0].contains("at line 1"), "{:?}", reading.faults);
            }
        }
        let many = read_lines::<u32>(&b"no\n".repeat(100), json_line);
        assert_eq!((many.faults.len(), many.fault_count), (FAULTS_LOGGED_MAX, 100));
        assert!(many.fault().unwrap().ends_with(" (and 99 more)"));
    }

    #[test]
    fn a_copy_replaces_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers");
        let mut kept = Vec::new();
        for number in 0..BROKEN_COPIES_MAX {
            let text = format!("fault {number}");
            std::fs::write(&path, &text).unwrap();
            let aside = match number % 2 {
                0 => move_aside(&path).unwrap(),
                _ => copy_aside(&path, text.as_bytes()).unwrap(),
            };
            assert_eq!(copy_aside(&path, text.as_bytes()).unwrap(), aside, "kept once");
            kept.push((aside, text));
        }
        std::fs::write(&path, "another").unwrap();
        let faults = [move_aside(&path), copy_aside(&path, b"another")];
        for fault in faults {
            assert!(fault.unwrap_err().to_string().contains("remove them"));
        }
        for (aside, text) in kept {
            assert_eq!(std::fs::read_to_string(aside).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), BROKEN_COPIES_MAX + 1);
    }
}
