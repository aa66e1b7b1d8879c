//! Operators' changes of the fleet through the admin API, in a file that outlives the process: a
//! line of JSON for each worker. The control plane's thread decides the content of the file; a
//! blocking thread writes a single text at a time. At most a line for each of `WORKERS_MAX`
//! workers.

use super::super::file_faults::names_folder;
use super::line_file::{Durability, lines_of, replace};
use forebay_admin::{AddWorkerRequest, StateFileFigures};
use forebay_base::limits::WORKERS_STATE_BYTES_MAX;
use forebay_base::{NanosSinceStart, read_file, replaceable_path};
use forebay_config::{WorkerConfig, WorkerUrl};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, spawn_blocking, spawn_local, unconstrained};
use tracing::{error, info};

/// Between two tries to write.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the disk.
const LAST_WRITE_TIME_MAX: Duration = Duration::from_secs(5);

/// A line of the file: a worker, and its order.
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
    /// The worker is not in the configuration.
    #[serde(skip_serializing_if = "is_no")]
    pub(super) added: bool,
    /// The worker gets no new requests.
    #[serde(skip_serializing_if = "is_no")]
    pub(super) draining: bool,
    /// The worker is removed, although the configuration names it.
    #[serde(skip_serializing_if = "is_no")]
    pub(super) removed: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_no(value: &bool) -> bool {
    !*value
}

/// The file, and the last text written or being written.
#[derive(Debug)]
pub(super) struct WorkersState {
    path: PathBuf,
    text: String,
    /// Generation of the fleet that the text describes.
    generation: u64,
    /// Orders for workers that no source has listed yet.
    pending: Vec<WorkerOrder>,
    writing: Option<StateWrite>,
    /// Callers that wait for a write that has not begun.
    asked: Vec<Confirmation>,
    record: WriteRecord,
    /// A write has ended.
    ended: Rc<Notify>,
}

/// Results of reading and writing the file.
#[derive(Debug, Default)]
struct WriteRecord {
    figures: StateFileFigures,
    /// When to write again: the last write failed, and the file does not have the text.
    retry_at: Option<NanosSinceStart>,
    /// `None`: the file was read, and the last write has not failed.
    fault: Option<StateFault>,
}

/// Why the file could not be read or written, without the folder, and since when.
#[derive(Debug)]
struct StateFault {
    text: String,
    since: NanosSinceStart,
}

/// Receives the result of a write, with the fault of a failed write.
pub(crate) type Confirmation = oneshot::Sender<Result<(), String>>;

/// A write under way, with the confirmations of its changes.
#[derive(Debug)]
struct StateWrite {
    task: JoinHandle<Result<(), String>>,
    confirms: Vec<Confirmation>,
}

impl WorkerOrder {
    /// The worker as a table of the configuration.
    pub(super) fn worker(&self) -> Result<WorkerConfig, String> {
        let name = self.name.clone();
        let role = self.role.clone();
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

/// Keeps a broken file for the operator; returns its new path.
fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let real = replaceable_path(path)?;
    let aside = real.with_added_extension("broken");
    std::fs::rename(real, &aside)?;
    Ok(aside)
}

impl WorkersState {
    /// Reads the file. A broken file is logged and moved aside, and changes nothing.
    pub(super) fn open(path: &Path) -> (Self, Vec<WorkerOrder>) {
        let shown = path.display();
        let path = path.to_owned();
        let read = read(&path).and_then(|text| Ok((parse(&text)?, text)));
        let mut record = WriteRecord::default();
        let (orders, text) = read.unwrap_or_else(|fault| {
            error!("`workers_state` {shown}: {fault}; the workers are those of the configuration");
            let text = match move_aside(&path) {
                Ok(aside) => {
                    error!(
                        "`workers_state` {shown} is kept as {}: mend the line, move the file back \
                         and restart",
                        aside.display()
                    );
                    let kept = aside.file_name().unwrap_or_default().display();
                    format!("is not in use: {fault}; the orders in {kept} are lost")
                }
                Err(error) => {
                    error!("`workers_state` {shown} is not moved: {error}; correct the path");
                    format!("is not in use: {fault}")
                }
            };
            record.fault = Some(StateFault { text, since: NanosSinceStart(0) });
            (Vec::new(), String::new())
        });
        if !orders.is_empty() {
            info!(file = %shown, workers = orders.len(), "read what the admin API had changed");
        }
        let state = Self {
            path,
            text,
            generation: 0,
            pending: Vec::new(),
            writing: None,
            asked: Vec::new(),
            record,
            ended: Rc::default(),
        };
        (state, orders)
    }

    /// Keeps the order until a source lists its worker.
    pub(super) fn expect(&mut self, order: WorkerOrder) {
        self.pending.push(order);
    }

    /// Drops the pending orders for a worker, which a later order replaces.
    pub(super) fn forget_orders(&mut self, url: &str) {
        self.pending.retain(|order| order.url != url);
    }

    /// The pending order for a worker that a source has added.
    pub(super) fn take_order(&mut self, url: &str) -> Option<WorkerOrder> {
        let place = self.pending.iter().position(|order| order.url == url)?;
        Some(self.pending.swap_remove(place))
    }

    /// Orders for workers that no source lists yet.
    pub(super) fn pending(&self) -> &[WorkerOrder] {
        &self.pending
    }

    /// Notified when a write has ended: then call [`Self::take_due`].
    pub(super) fn ended(&self) -> Rc<Notify> {
        Rc::clone(&self.ended)
    }

    /// Confirms earlier changes, once the file has them.
    pub(super) fn confirm(&mut self, answer: Confirmation) {
        self.asked.push(answer);
    }

    /// Takes the result of an ended write; true if [`Self::keep`] is due: for a new fleet, for a
    /// waiting caller, and again after a failure. False while a write runs.
    pub(super) fn take_due(&mut self, generation: u64, now: NanosSinceStart) -> bool {
        if let Some(ended) = self.writing.take_if(|writing| writing.task.is_finished()) {
            let mut task = ended.task;
            // Without tokio's budget: a task that has used its own up would find no result.
            let mut task = unconstrained(&mut task);
            let ended_by = Pin::new(&mut task).poll(&mut Context::from_waker(Waker::noop()));
            let result = match ended_by {
                Poll::Ready(Ok(result)) => result,
                Poll::Ready(Err(error)) => Err(error.to_string()),
                Poll::Pending => Err("the write has no result (this is a bug)".to_owned()),
            };
            self.note(&result, now);
            self.confirm_all(ended.confirms, &result);
        }
        if self.writing.is_some() {
            return false;
        }
        let is_new = std::mem::replace(&mut self.generation, generation) != generation;
        is_new || !self.asked.is_empty() || self.record.retry_at.is_some_and(|at| now >= at)
    }

    fn note(&mut self, result: &Result<(), String>, now: NanosSinceStart) {
        let WriteRecord { figures, retry_at, fault } = &mut self.record;
        *retry_at = result.is_err().then(|| now.plus(RETRY_PAUSE));
        match result {
            Ok(()) => {
                figures.written_count += 1;
                *fault = None;
            }
            Err(reason) => {
                figures.failed_count += 1;
                let had_failed = fault.take().filter(|fault| fault.since > NanosSinceStart(0));
                let since = had_failed.map_or(now, |fault| fault.since);
                *fault = Some(StateFault { text: format!("cannot be written: {reason}"), since });
            }
        }
    }

    /// Writes of the file so far.
    pub(super) const fn figures(&self) -> StateFileFigures {
        self.record.figures
    }

    /// Why the file does not hold the operators' orders, for callers without a token.
    pub(super) fn concern(&self, now: NanosSinceStart) -> Option<String> {
        let StateFault { text, since } = self.record.fault.as_ref()?;
        let file = self.path.file_name().unwrap_or_default().display();
        let text = if names_folder(text) { "the log has the reason" } else { text };
        let seconds = now.since(*since) / 1_000_000_000;
        Some(format!("`workers_state` {file}, for {seconds} s: {text}"))
    }

    /// Sends the result to the callers, with the file. A caller may be gone.
    fn confirm_all(&self, confirms: Vec<Confirmation>, result: &Result<(), String>) {
        let path = self.path.display();
        let with_file = |reason: String| format!("`workers_state` {path}: not written: {reason}");
        let result = result.clone().map_err(with_file);
        confirms.into_iter().for_each(|confirm| drop(confirm.send(result.clone())));
    }

    /// Begins to write the file if its text differs.
    pub(super) fn keep(&mut self, orders: &[WorkerOrder]) {
        let text = lines_of(orders);
        let confirms = std::mem::take(&mut self.asked);
        if text == self.text && self.record.retry_at.is_none() {
            confirms.into_iter().for_each(|confirm| drop(confirm.send(Ok(()))));
            return;
        }
        self.text.clone_from(&text);
        let path = self.path.clone();
        let ended = Rc::clone(&self.ended);
        let had_failed = self.record.retry_at.is_some();
        let write = spawn_blocking(move || {
            let written = replace(&path, &text, Durability::Disk);
            if written.is_ok() && had_failed {
                info!("`workers_state` {}: written again", path.display());
            }
            written.map_err(|error| {
                if !had_failed {
                    let fault = format!("`workers_state` {}: not written: {error}", path.display());
                    error!("{fault}; tried again until it is");
                }
                error.to_string()
            })
        });
        let task = spawn_local(async move {
            let result = write.await.unwrap_or_else(|error| Err(error.to_string()));
            ended.notify_one();
            result
        });
        self.writing = Some(StateWrite { task, confirms });
    }

    /// Waits until the file is written, for a while.
    pub(super) async fn written(&mut self) {
        let Some(StateWrite { task, confirms }) = self.writing.take() else { return };
        let result = match tokio::time::timeout(LAST_WRITE_TIME_MAX, task).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the disk does not answer".to_owned()),
        };
        self.record.retry_at = result.is_err().then_some(NanosSinceStart(0));
        self.confirm_all(confirms, &result);
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

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_kv_events::test_support::block_on_local;

    /// Issue 39: the file of the operators' orders was wrong in the log alone.
    #[test]
    fn a_file_that_cannot_be_read_or_written_is_a_concern() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers");
        let second = |seconds: u64| NanosSinceStart(seconds * 1_000_000_000);
        std::fs::write(&path, "no\n").unwrap();
        let (mut state, _) = WorkersState::open(&path);
        let unread = state.concern(second(7)).unwrap();
        let wanted = "`workers_state` workers, for 7 s: is not in use: line 1: ";
        assert!(unread.starts_with(wanted) && unread.contains("workers.broken"), "{unread}");
        std::fs::create_dir(&path).unwrap();
        let mut write = |seconds: u64| {
            block_on_local(async {
                state.keep(&[order("http://a:1")]);
                state.ended().notified().await;
                while !state.take_due(1, second(seconds)) && state.writing.is_some() {
                    tokio::task::yield_now().await;
                }
            });
            let StateFileFigures { written_count, failed_count } = state.figures();
            (state.concern(second(seconds + 2)), written_count, failed_count)
        };
        let (concern, written, failed) = write(10);
        let concern = concern.unwrap();
        let wanted = "`workers_state` workers, for 2 s: cannot be written: ";
        assert!(concern.starts_with(wanted), "{concern}");
        assert_eq!((written, failed), (0, 1));
        let (concern, ..) = write(20);
        assert!(concern.unwrap().contains("for 12 s"), "since the first");
        std::fs::remove_dir(&path).unwrap();
        assert_eq!(write(30), (None, 1, 2));
    }

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
        replace(&path, &lines_of(&orders), Durability::Disk).unwrap();
        assert_eq!(WorkersState::open(&path).1, orders);
        let lines = "{\"url\":\"http://a:1\",\"name\":\"w\",\"role\":\"prefill\",\"added\":true,\
            \"draining\":true}\n{\"url\":\"https://b:1\",\"removed\":true}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines);
    }

    #[test]
    fn a_broken_file_is_reported_with_its_line_and_kept() {
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
        assert_eq!(std::fs::read_to_string(&aside).unwrap(), "no");
        // A link stays, and so does a folder, which stands for whatever is no regular file.
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        assert_eq!(WorkersState::open(&path).1, []);
        assert!(path.is_symlink() && folder.path().join("workers.broken.broken").exists());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(WorkersState::open(&path).1, []);
        assert!(path.is_dir());
    }
}
