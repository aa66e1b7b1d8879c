//! Operators' changes of the fleet through the admin API, in a file that outlives the process: a
//! line of JSON for each worker. The control plane's thread decides the content of the file; a
//! blocking thread writes a single text at a time. At most a line for each of `WORKERS_MAX`
//! workers.

use super::line_file::{Durability, lines_of, replace};
use forebay_admin::AddWorkerRequest;
use forebay_base::limits::WORKERS_STATE_BYTES_MAX;
use forebay_base::{NanosSinceStart, read_file};
use forebay_config::{WorkerConfig, WorkerUrl};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::io::ErrorKind;
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
    /// When to write again: the last write failed, and the file does not have the text.
    retry_at: Option<NanosSinceStart>,
    /// A write has ended.
    ended: Rc<Notify>,
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

impl WorkersState {
    /// Reads the file. A broken file is logged and moved aside, and changes nothing.
    pub(super) fn open(path: &Path) -> (Self, Vec<WorkerOrder>) {
        let shown = path.display();
        let path = path.to_owned();
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
        let state = Self {
            path,
            text,
            generation: 0,
            pending: Vec::new(),
            writing: None,
            asked: Vec::new(),
            retry_at: None,
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
            self.retry_at = result.is_err().then(|| now.plus(RETRY_PAUSE));
            for confirm in ended.confirms {
                // The caller may be gone.
                let _ = confirm.send(result.clone());
            }
        }
        if self.writing.is_some() {
            return false;
        }
        let is_new = std::mem::replace(&mut self.generation, generation) != generation;
        is_new || !self.asked.is_empty() || self.retry_at.is_some_and(|at| now >= at)
    }

    /// Begins to write the file if its text differs.
    pub(super) fn keep(&mut self, orders: &[WorkerOrder]) {
        let text = lines_of(orders);
        let confirms = std::mem::take(&mut self.asked);
        if text == self.text && self.retry_at.is_none() {
            confirms.into_iter().for_each(|confirm| drop(confirm.send(Ok(()))));
            return;
        }
        self.text.clone_from(&text);
        let path = self.path.clone();
        let ended = Rc::clone(&self.ended);
        let had_failed = self.retry_at.is_some();
        let write = spawn_blocking(move || {
            let written = replace(&path, &text, Durability::Disk);
            if written.is_ok() && had_failed {
                info!("`workers_state` {}: written again", path.display());
            }
            written.map_err(|error| {
                let fault = format!("`workers_state` {}: not written: {error}", path.display());
                if !had_failed {
                    error!("{fault}; tried again until it is");
                }
                fault
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
            Err(_) => Err("`workers_state`: the disk does not answer".to_owned()),
        };
        self.retry_at = result.is_err().then_some(NanosSinceStart(0));
        confirms.into_iter().for_each(|confirm| drop(confirm.send(result.clone())));
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
        assert_eq!(std::fs::read_to_string(aside).unwrap(), "no");
    }
}
