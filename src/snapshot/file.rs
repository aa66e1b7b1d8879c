//! Snapshots on disk, with blocking I/O.

use super::entry::SnapshotEntry;
use super::format::{Header, SnapshotError};
use super::link::Link;
use super::paths::Paths;
use super::rank::{RankHead, RankName};
use super::reader::{Part, SnapshotReader};
use super::writer::Encoder;
use forebay_base::replaceable_path;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Only the owner may read the file, because it contains the seed of the block keys.
const MODE: u32 = 0o600;
/// Without a write for this long, a temporary file beside the snapshot is a leftover of a crash.
const LEFTOVER_AGE: Duration = Duration::from_secs(3_600);
/// Bytes that are encoded before a write to the file.
const WRITE_BYTES: usize = 256 * 1024;

/// Writes a snapshot to a temporary file, and moves the whole file into its place. When dropped
/// before, it removes the temporary file.
#[derive(Debug)]
pub struct SnapshotWriter {
    file: File,
    path: PathBuf,
    beside: PathBuf,
    encoder: Encoder,
    written_bytes: u64,
    is_whole: bool,
}

impl SnapshotWriter {
    /// Creates the temporary file and encodes the header.
    ///
    /// # Errors
    /// When no file can be created beside the path, or what is there is no regular file.
    pub fn create(path: &Path, header: &Header) -> io::Result<Self> {
        let path = replaceable_path(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        remove_leftovers(&path, &name);
        // A random name, because two processes may write at the same time during an upgrade.
        let beside = path.with_file_name(format!("{name}.{:016x}.new", fastrand::u64(..)));
        let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&beside)?;
        let encoder = Encoder::new(header);
        Ok(Self { file, path, beside, encoder, written_bytes: 0, is_whole: false })
    }

    /// Begins a rank; false if a name is too long, and the caller must leave the rank out.
    pub fn rank(&mut self, head: &RankHead) -> bool {
        self.encoder.rank(head)
    }

    /// Adds an entry of the rank.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn entry(&mut self, entry: &SnapshotEntry) -> io::Result<()> {
        self.encoder.entry(entry);
        self.write_some()
    }

    /// Adds a block, after all ranks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn link(&mut self, link: &Link) -> io::Result<()> {
        self.encoder.link(link);
        self.write_some()
    }

    /// Moves the whole snapshot into its place; returns its size in bytes.
    ///
    /// # Errors
    /// When the file cannot be written or moved; the snapshot before stays in its place.
    pub fn finish(mut self) -> io::Result<u64> {
        self.encoder.end();
        self.write_out()?;
        self.file.sync_all()?;
        fs::rename(&self.beside, &self.path)?;
        self.is_whole = true;
        // Without this sync a crash of the machine may restore the snapshot before, which is
        // harmless. So an error here is ignored.
        let _ = File::open(folder_of(&self.path)).and_then(|folder| folder.sync_all());
        Ok(self.written_bytes)
    }

    fn write_some(&mut self) -> io::Result<()> {
        if self.encoder.made().len() >= WRITE_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> io::Result<()> {
        let made = self.encoder.made();
        self.file.write_all(made)?;
        self.written_bytes += made.len() as u64;
        made.clear();
        Ok(())
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Removes temporary files of the same snapshot that crashed writers have left.
fn remove_leftovers(path: &Path, name: &str) {
    let is_leftover = |entry: &fs::DirEntry| {
        let found = entry.file_name().to_string_lossy().into_owned();
        let inner = found.strip_prefix(name).and_then(|rest| rest.strip_suffix(".new"));
        let modified = || entry.metadata().and_then(|found| found.modified()).ok();
        inner.is_some_and(|inner| inner.len() == 17 && inner.starts_with('.'))
            && modified().and_then(|at| at.elapsed().ok()).is_some_and(|age| age > LEFTOVER_AGE)
    };
    let entries = fs::read_dir(folder_of(path)).into_iter().flatten().flatten();
    for entry in entries.filter(is_leftover) {
        let _ = fs::remove_file(entry.path());
    }
}

/// An open snapshot with a valid header; the other parts are not checked yet.
#[derive(Debug)]
pub struct SnapshotFile {
    file: File,
    header: Header,
}

/// The head of a rank, and its offset in the file.
#[derive(Clone, Debug)]
pub struct RankPlace {
    pub head: RankHead,
    at: u64,
}

/// Ranks and blocks of a snapshot.
#[derive(Debug, Default)]
pub struct Contents {
    pub ranks: HashMap<RankName, RankPlace>,
    /// Links of all blocks that ranks may hold.
    pub paths: Paths,
}

impl SnapshotFile {
    /// Opens a snapshot and reads its header; `None` if there is no file.
    ///
    /// # Errors
    /// [`SnapshotError`] when it cannot be read or is no snapshot of this version.
    pub fn open(path: &Path) -> Result<Option<Self>, SnapshotError> {
        // Check the type first, because opening a pipe would wait for its other end.
        match fs::metadata(path) {
            Ok(found) if found.is_file() => {}
            Ok(_) => return Err(io::Error::other("not a regular file").into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        Self::read(File::open(path)?).map(Some)
    }

    /// Reads the header of an open file.
    ///
    /// # Errors
    /// [`SnapshotError`] when it cannot be read or is no snapshot of this version.
    pub fn read(mut file: File) -> Result<Self, SnapshotError> {
        file.seek(SeekFrom::Start(0))?;
        let (_, header) = SnapshotReader::open(&mut file)?;
        Ok(Self { file, header })
    }

    /// The header of the snapshot.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads the whole file and checks every byte; returns the places of the ranks, and the links.
    ///
    /// # Errors
    /// [`SnapshotError`] when it is damaged anywhere.
    pub fn check(&mut self) -> Result<Contents, SnapshotError> {
        self.file.seek(SeekFrom::Start(0))?;
        let (mut reader, _) = SnapshotReader::open(BufReader::new(&self.file))?;
        let mut ranks = HashMap::new();
        let mut links = Vec::new();
        loop {
            let at = reader.offset();
            match reader.next_part()? {
                Part::Rank(head) => {
                    ranks.insert(head.name.clone(), RankPlace { head, at });
                }
                Part::Entries(_) => {}
                Part::Links(more) => links.extend(more),
                Part::End => return Ok(Contents { ranks, paths: Paths::new(links) }),
            }
        }
    }

    /// Reads the entries of a rank.
    ///
    /// # Errors
    /// [`SnapshotError`] when the file has changed since the check.
    pub fn entries(
        &mut self,
        place: &RankPlace,
        mut each: impl FnMut(SnapshotEntry),
    ) -> Result<(), SnapshotError> {
        self.file.seek(SeekFrom::Start(place.at))?;
        let mut reader = SnapshotReader::resume(BufReader::new(&self.file), place.at, 0);
        let changed = || SnapshotError::Io(io::Error::other("changed while it was read"));
        if !matches!(reader.next_part()?, Part::Rank(head) if head == place.head) {
            return Err(changed());
        }
        let mut left = place.head.entry_count;
        while left > 0 {
            let Part::Entries(entries) = reader.next_part()? else { return Err(changed()) };
            for entry in entries {
                left = left.saturating_sub(1);
                each(entry);
            }
        }
        Ok(())
    }
}
