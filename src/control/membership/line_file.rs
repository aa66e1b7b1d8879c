//! Files with a line of JSON for each worker. A blocking thread writes them, a single text at a
//! time.

use forebay_base::replaceable_path;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use tempfile::NamedTempFile;

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
