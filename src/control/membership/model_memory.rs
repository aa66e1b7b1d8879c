//! Model names of each worker, for the next process: if the worker is down at start, requests for
//! its names get 503 instead of 404. A line of JSON for each worker. An upgrade hands the lines
//! over in a temporary file. A restart reads them from a file beside the snapshot of the index, if
//! there is a snapshot. The control plane's thread decides the content of the file; a blocking
//! thread writes a single text at a time.

use super::super::fleet::RememberedWorker;
use super::line_file::{Durability, json_line, lines_of, read_lines, replace};
use forebay_base::limits::MODEL_MEMORY_BYTES_MAX;
use forebay_base::{read_bytes, read_text};
use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

/// How long the end of the process waits for the disk.
const LAST_WRITE_TIME_MAX: Duration = Duration::from_secs(5);

/// The file, and the last text written or being written.
#[derive(Debug, Default)]
pub(super) struct ModelMemory {
    /// `None` without a snapshot.
    path: Option<PathBuf>,
    text: String,
    /// Generation of the fleet that the text describes.
    generation: u64,
    writing: Option<JoinHandle<()>>,
    /// Whether the write failed.
    result: Option<oneshot::Receiver<bool>>,
    /// The last write failed. The text is written again with the next generation.
    has_failed: bool,
}

impl ModelMemory {
    /// Reads the file from the process before, otherwise the file beside the snapshot.
    pub(super) fn open(
        handed: Option<File>,
        snapshot: Option<&Path>,
    ) -> (Self, Vec<RememberedWorker>) {
        let path = snapshot.map(|snapshot| snapshot.with_added_extension("models"));
        let file = match (&handed, &path) {
            (None, Some(path)) => format!("the models of workers in {}", path.display()),
            _ => "the models of workers from the process before".to_owned(),
        };
        let read = match (handed, &path) {
            (Some(handed), _) => read_handed(handed),
            (None, Some(path)) => match read_bytes(path, MODEL_MEMORY_BYTES_MAX) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
                read => read,
            },
            (None, None) => Ok(Vec::new()),
        };
        let bytes = read.unwrap_or_else(|error| {
            warn!("{file} are not read: {error}; workers that are up list theirs again");
            Vec::new()
        });
        let reading = read_lines(&bytes, read_worker);
        reading.log_faults(&file);
        let workers = reading.items;
        if !workers.is_empty() {
            info!(workers = workers.len(), "the models of the process before are known");
        }
        (Self { path, ..Self::default() }, workers)
    }

    /// Marks the generation; true if it is new and [`Self::keep`] is due. False while a write runs:
    /// the next tick tries again.
    pub(super) fn take_due(&mut self, generation: u64) -> bool {
        let is_writing = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        self.path.is_some()
            && !is_writing
            && std::mem::replace(&mut self.generation, generation) != generation
    }

    /// Begins to write the file if its text differs, or if the last write failed.
    pub(super) fn keep(&mut self, workers: &[RememberedWorker]) {
        // Their state now does not predict their state after a restart.
        let later = workers.iter().map(|worker| RememberedWorker { up: false, ..worker.clone() });
        let text = lines_of(&later.collect::<Vec<_>>());
        self.take_result();
        let had_failed = self.has_failed;
        let is_due = text != self.text || had_failed;
        let Some(path) = self.path.clone().filter(|_| is_due) else { return };
        self.text.clone_from(&text);
        let (send_result, result) = oneshot::channel();
        self.result = Some(result);
        self.writing = Some(spawn_blocking(move || {
            let written = replace(&path, &text, Durability::Cache);
            // At the end of the process no result is waited for.
            let _ = send_result.send(written.is_err());
            let file = path.display();
            match written {
                Err(error) if !had_failed => {
                    warn!(
                        %file,
                        %error,
                        "the models of the workers are not kept for a restart; tried again"
                    );
                }
                Ok(()) if had_failed => info!(%file, "the models of the workers are kept again"),
                Ok(()) | Err(_) => {}
            }
        }));
    }

    /// Takes the result of a write that has ended.
    fn take_result(&mut self) {
        if let Some(mut result) = self.result.take() {
            // A write that panicked has no result, and has failed.
            self.has_failed = result.try_recv().unwrap_or(true);
        }
    }

    /// Waits until the file is written, for a while.
    pub(super) async fn written(&mut self) {
        if let Some(writing) = self.writing.take() {
            // A failure is in the log.
            let _ = timeout(LAST_WRITE_TIME_MAX, writing).await;
        }
    }
}

/// A temporary file with the lines.
pub(super) fn file_of(workers: &[RememberedWorker]) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(lines_of(workers).as_bytes())?;
    Ok(file)
}

fn read_handed(mut file: File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    read_text(file, MODEL_MEMORY_BYTES_MAX).map(String::into_bytes)
}

/// A line of another version may have other members.
fn read_worker(line: &str) -> Result<RememberedWorker, String> {
    let known: RememberedWorker = json_line(line)?;
    match known.worker.is_empty() {
        true => Err("no `worker`".to_owned()),
        false => Ok(known),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(models: &[&str], up: bool) -> RememberedWorker {
        let models = models.iter().map(|&name| name.to_owned()).collect();
        RememberedWorker { worker: "a:1".into(), models, up, sole: false }
    }

    #[test]
    fn what_one_process_hands_over_the_next_one_reads() {
        let workers = [worker(&["m", "\"odd\"\nname"], true), worker(&[], false)];
        let file = file_of(&workers).unwrap();
        assert_eq!(ModelMemory::open(Some(file), None).1, workers);
    }

    #[test]
    fn a_file_is_read_as_far_as_it_is_understood() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = folder.path().join("snapshot");
        assert_eq!(ModelMemory::open(None, Some(&snapshot)).1, []);
        let lines = "{\"worker\":\"a:1\",\"models\":[\"m\"],\"later\":1}\n[]\n{\"worker\":";
        let path = folder.path().join("snapshot.models");
        std::fs::write(&path, lines).unwrap();
        assert_eq!(ModelMemory::open(None, Some(&snapshot)).1, [worker(&["m"], false)]);
        std::fs::write(&path, [0xff; 16]).unwrap();
        assert_eq!(ModelMemory::open(None, Some(&snapshot)).1, []);
        replace(&path, &lines_of(&[worker(&["n"], false)]), Durability::Cache).unwrap();
        assert_eq!(ModelMemory::open(None, Some(&snapshot)).1, [worker(&["n"], false)]);
    }

    /// M1: a full disk is a line at its begin and at its end, and the text is written again.
    #[tokio::test]
    async fn a_failed_write_is_repeated_until_it_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = folder.path().join("later").join("snapshot");
        let (mut memory, _) = ModelMemory::open(None, Some(&snapshot));
        let workers = [worker(&["m"], false)];
        for generation in 1..3 {
            assert!(memory.take_due(generation));
            memory.keep(&workers);
            memory.written().await;
            memory.take_result();
            assert!(memory.has_failed, "no folder");
        }
        std::fs::create_dir(folder.path().join("later")).unwrap();
        assert!(memory.take_due(3));
        memory.keep(&workers);
        memory.written().await;
        memory.take_result();
        assert!(!memory.has_failed);
        assert_eq!(ModelMemory::open(None, Some(&snapshot)).1, workers);
        let path = folder.path().join("later").join("snapshot.models");
        std::fs::remove_file(&path).unwrap();
        memory.keep(&workers);
        memory.written().await;
        assert!(!path.exists(), "the same text is written once");
    }
}
