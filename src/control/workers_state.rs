//! What operators changed of the fleet through the admin API, in a file that outlives the process:
//! one line of JSON for each worker. The control plane's thread says what the file should hold; a
//! blocking thread writes, one text at a time. At most a line for each of `WORKERS_MAX` workers.

use forebay_admin::AddWorkerRequest;
use forebay_base::limits::WORKERS_STATE_BYTES_MAX;
use forebay_base::read_file;
use forebay_config::{WorkerConfig, WorkerUrl};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::NamedTempFile;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{error, info};

/// How long the end of the process waits for the disk.
const LAST_WRITE_TIME_MAX: Duration = Duration::from_secs(5);

/// A line of the file: a worker, and what operators said of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WorkerOrder {
    pub(super) url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) api_key: Option<String>,
    /// No configuration names it.
    #[serde(skip_serializing_if = "is_no")]
    pub(super) added: bool,
    /// It gets nothing new.
    #[serde(skip_serializing_if = "is_no")]
    pub(super) draining: bool,
    /// It is left out, although the configuration names it.
    #[serde(skip_serializing_if = "is_no")]
    pub(super) removed: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_no(value: &bool) -> bool {
    !*value
}

/// The file, and the text that it has or is about to have.
#[derive(Debug)]
pub(super) struct WorkersState {
    path: PathBuf,
    text: String,
    /// Of the fleet that the text is of.
    generation: u64,
    /// What is said of workers that no source has listed yet.
    pending: Vec<WorkerOrder>,
    writing: Option<JoinHandle<()>>,
}

impl WorkerOrder {
    /// The worker as a table of the configuration would say it.
    pub(super) fn worker(&self) -> Result<WorkerConfig, String> {
        let (name, role) = (self.name.clone(), self.role.clone());
        let api_key = self.api_key.clone();
        let asked = AddWorkerRequest::of_worker(self.url.clone(), name, role, api_key)?;
        Ok(asked.worker().clone())
    }

    fn read(line: &str) -> Result<Self, String> {
        let order: Self = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if order.added {
            order.worker()?;
        }
        WorkerUrl::parse(&order.url).map_err(|error| format!("`url` {:?}: {error}", order.url))?;
        Ok(order)
    }
}

impl WorkersState {
    /// Reads the file. A broken one is said, moved aside, and changes nothing.
    pub(super) fn open(path: &Path) -> (Self, Vec<WorkerOrder>) {
        let (path, shown) = (path.to_owned(), path.display());
        let read = read(&path).and_then(|text| Ok((parse(&text)?, text)));
        let (orders, text) = read.unwrap_or_else(|fault| {
            let aside = path.with_added_extension("broken");
            error!(
                "`workers_state` {shown}: {fault}; the workers are those of the configuration. The \
                 file is kept as {}: mend the line, move the file back and restart",
                aside.display()
            );
            if let Err(error) = std::fs::rename(&path, &aside) {
                error!("`workers_state` {shown}: not moved: {error}; the next change replaces it");
            }
            (Vec::new(), String::new())
        });
        if !orders.is_empty() {
            info!(file = %shown, workers = orders.len(), "read what the admin API had changed");
        }
        let pending = Vec::new();
        (Self { path, text, generation: 0, pending, writing: None }, orders)
    }

    /// The worker of that order may come by a source.
    pub(super) fn expect(&mut self, order: WorkerOrder) {
        self.pending.push(order);
    }

    /// The order for a worker that has come by a source, if one waits for it.
    pub(super) fn take_order(&mut self, url: &str) -> Option<WorkerOrder> {
        let place = self.pending.iter().position(|order| order.url == url)?;
        Some(self.pending.swap_remove(place))
    }

    /// Orders for workers that have not come yet.
    pub(super) fn pending(&self) -> &[WorkerOrder] {
        &self.pending
    }

    /// Is this a fleet that the file has not seen? Then [`Self::keep`] is due. Not while the file
    /// is being written: the next tick asks again.
    pub(super) fn is_due(&mut self, generation: u64) -> bool {
        let is_writing = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        !is_writing && std::mem::replace(&mut self.generation, generation) != generation
    }

    /// Has the file written if it says anything else.
    pub(super) fn keep(&mut self, orders: &[WorkerOrder]) {
        let text = text_of(orders);
        if text == self.text {
            return;
        }
        self.text.clone_from(&text);
        let path = self.path.clone();
        self.writing = Some(spawn_blocking(move || {
            if let Err(error) = replace(&path, &text) {
                let shown = path.display();
                error!(
                    "`workers_state` {shown}: not written: {error}; the next change tries again"
                );
            }
        }));
    }

    /// Waits until the file is written, for a while.
    pub(super) async fn written(&mut self) {
        if let Some(writing) = self.writing.take() {
            // What came of it is in the log.
            let _ = tokio::time::timeout(LAST_WRITE_TIME_MAX, writing).await;
        }
    }
}

/// The text of the file; none if there is no file yet.
fn read(path: &Path) -> Result<String, String> {
    match read_file(path, WORKERS_STATE_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|error| format!("not read: {error}")),
    }
}

fn parse(text: &str) -> Result<Vec<WorkerOrder>, String> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let order = |(line, number): (&str, u32)| {
        WorkerOrder::read(line).map_err(|fault| format!("line {number}: {fault}"))
    };
    lines.map(order).collect()
}

fn text_of(orders: &[WorkerOrder]) -> String {
    let mut text = String::new();
    for order in orders {
        if let Ok(line) = serde_json::to_string(order) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// The file is the old one or the new one at each moment, also after a power cut.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(url: &str) -> WorkerOrder {
        WorkerOrder { url: url.to_owned(), ..WorkerOrder::default() }
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers");
        assert_eq!(WorkersState::open(&path).1, [], "no file yet");
        let named = WorkerOrder { name: Some("w".into()), added: true, ..order("http://a:1") };
        let orders = [
            WorkerOrder { role: Some("prefill".into()), draining: true, ..named },
            WorkerOrder { removed: true, ..order("https://b:1") },
        ];
        replace(&path, &text_of(&orders)).unwrap();
        assert_eq!(WorkersState::open(&path).1, orders);
        let lines = "{\"url\":\"http://a:1\",\"name\":\"w\",\"role\":\"prefill\",\"added\":true,\
            \"draining\":true}\n{\"url\":\"https://b:1\",\"removed\":true}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines);
    }

    #[test]
    fn a_broken_file_says_its_line_and_is_kept() {
        let good = "{\"url\":\"http://a:1\",\"draining\":true}\n\n";
        for (line, word) in [
            ("{\"url\":", "EOF"),
            ("{\"url\":\"http://a:1\",\"drains\":true}", "drains"),
            ("{\"url\":\"a\",\"removed\":true}", "http://"),
            ("{\"url\":\"http://a:1\",\"added\":true,\"role\":\"cook\"}", "prefill"),
        ] {
            let fault = parse(&format!("{good}{line}\n")).unwrap_err();
            assert!(fault.starts_with("line 3: ") && fault.contains(word), "{fault}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers");
        std::fs::write(&path, "no").unwrap();
        assert_eq!(WorkersState::open(&path).1, []);
        assert!(!path.exists());
        let aside = folder.path().join("workers.broken");
        assert_eq!(std::fs::read_to_string(aside).unwrap(), "no");
    }
}
