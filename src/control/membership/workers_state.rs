//! Operators' changes of the fleet through the admin API, in a file that outlives the process: a
//! line of JSON for each worker. The control plane's thread decides the content of the file; a
//! blocking thread writes a single text at a time. At most a line for each of `WORKERS_MAX`
//! workers.

use super::super::file_faults::names_folder;
use super::line_file::{
    Durability, LineReading, copy_aside, json_line, lines_of, move_aside, read_lines, replace,
};
use forebay_admin::{AddWorkerRequest, StateFileFigures};
use forebay_base::limits::WORKERS_STATE_BYTES_MAX;
use forebay_base::{NanosSinceStart, read_bytes};
use forebay_config::{WorkerConfig, WorkerUrl};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, spawn_blocking, spawn_local, unconstrained};
use tracing::{error, info, warn};

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

    /// The order of a line, and the authority of its URL.
    fn read(line: &str) -> Result<(Self, String), String> {
        let order: Self = json_line(line)?;
        if !(order.added || order.draining || order.removed) {
            return Err("no order: set `added`, `draining` or `removed`".to_owned());
        }
        if order.added {
            order.worker()?;
        }
        match WorkerUrl::parse(&order.url) {
            Ok(url) => Ok((order, url.authority)),
            Err(error) => Err(format!("`url` {:?}: {error}", order.url)),
        }
    }

    fn is_for(&self, authority: Option<&str>) -> bool {
        let own = WorkerUrl::parse(&self.url).ok();
        own.is_some_and(|own| Some(&*own.authority) == authority)
    }
}

impl WorkersState {
    /// Reads the file. A faulty line is logged and costs no other line. The router writes the file
    /// anew without such lines, and keeps the file as it was under another name.
    pub(super) fn open(path: &Path) -> (Self, Vec<WorkerOrder>) {
        let shown = path.display();
        let mut record = WriteRecord::default();
        let (orders, text) = match read(path) {
            Ok((reading, bytes)) => {
                record.fault = set_aside(path, &reading, &bytes);
                (reading.items, String::from_utf8_lossy(&bytes).into_owned())
            }
            Err(fault) => {
                record.fault = Some(set_whole_aside(path, &fault));
                (Vec::new(), String::new())
            }
        };
        if !orders.is_empty() {
            info!(file = %shown, workers = orders.len(), "read what the admin API had changed");
        }
        let state = Self {
            path: path.to_owned(),
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
        let url = WorkerUrl::parse(url).ok();
        let authority = url.as_ref().map(|url| &*url.authority);
        self.pending.retain(|order| !order.is_for(authority));
    }

    /// The pending order for a worker that a source has added.
    pub(super) fn take_order(&mut self, url: &str) -> Option<WorkerOrder> {
        let url = WorkerUrl::parse(url).ok()?;
        let place = self.pending.iter().position(|order| order.is_for(Some(&*url.authority)))?;
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
            self.note(&result, !ended.confirms.is_empty(), now);
            self.confirm_all(ended.confirms, &result);
        }
        if self.writing.is_some() {
            return false;
        }
        let is_new = std::mem::replace(&mut self.generation, generation) != generation;
        is_new || !self.asked.is_empty() || self.record.retry_at.is_some_and(|at| now >= at)
    }

    /// `is_order`: the write has an order. An order ends the fault of reading; the write of the
    /// lines that were read does not.
    fn note(&mut self, result: &Result<(), String>, is_order: bool, now: NanosSinceStart) {
        let WriteRecord { figures, retry_at, fault } = &mut self.record;
        *retry_at = result.is_err().then(|| now.plus(RETRY_PAUSE));
        match result {
            Ok(()) => {
                figures.written_count += 1;
                fault.take_if(|fault| is_order || fault.since > NanosSinceStart(0));
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

/// The orders and the bytes of the file; none if there is no file yet.
fn read(path: &Path) -> Result<(LineReading<WorkerOrder>, Vec<u8>), String> {
    let bytes = match read_bytes(path, WORKERS_STATE_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.map_err(|error| format!("not read: {error}"))?,
    };
    Ok((read_orders(&bytes), bytes))
}

/// Each order. A second order for an authority is a fault: the router writes a line for each.
/// Another spelling may be another worker, see `EngineAddress`.
fn read_orders(bytes: &[u8]) -> LineReading<WorkerOrder> {
    let mut authorities = HashSet::new();
    read_lines(bytes, |line| {
        let (order, authority) = WorkerOrder::read(line)?;
        if authorities.insert(authority) {
            return Ok(order);
        }
        Err(format!("a second order for {}: join both lines", order.url))
    })
}

/// Logs the faulty lines, and keeps a copy of their file.
fn set_aside(path: &Path, read: &LineReading<WorkerOrder>, bytes: &[u8]) -> Option<StateFault> {
    let fault = read.fault()?;
    let shown = path.display();
    read.log_faults(&format!("`workers_state` {shown}"));
    let text = match copy_aside(path, bytes) {
        Ok(aside) => {
            warn!(
                "`workers_state` {shown} as it was is kept as {}: mend the lines, move the file \
                 back and restart; or give the orders again",
                aside.display()
            );
            let kept = aside.file_name().unwrap_or_default().display();
            format!("is not in use in part: {fault}; the lost orders are in {kept}")
        }
        Err(error) => {
            error!(
                "`workers_state` {shown} as it was is not kept: {error}; give the orders of the \
                 lines again"
            );
            format!("is not in use in part: {fault}")
        }
    };
    Some(StateFault { text, since: NanosSinceStart(0) })
}

/// Logs that no line is in use, and moves the file.
fn set_whole_aside(path: &Path, fault: &str) -> StateFault {
    let shown = path.display();
    error!("`workers_state` {shown}: {fault}; the workers are those of the configuration");
    let text = match move_aside(path) {
        Ok(aside) => {
            error!(
                "`workers_state` {shown} is kept as {}: mend the file, move it back and restart",
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
    StateFault { text, since: NanosSinceStart(0) }
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
        let wanted = "`workers_state` workers, for 7 s: is not in use in part: line 1: ";
        assert!(unread.starts_with(wanted) && unread.contains("workers.broken"), "{unread}");
        std::fs::remove_file(&path).unwrap();
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

    #[test]
    fn a_second_order_for_a_worker_is_a_fault() {
        let lines = "{\"url\":\"http://b\",\"draining\":true}\n\
                     {\"url\":\"http://[::1]:80\",\"removed\":true}\n\
                     {\"url\":\"http://b\",\"added\":true}\n\
                     {\"url\":\"http://[::ffff:7f00:1]\",\"removed\":true}\n\
                     {\"url\":\"http://127.0.0.1\",\"removed\":true}\n";
        let reading = read_orders(lines.as_bytes());
        assert_eq!((reading.items.len(), reading.fault_count), (4, 1), "{:?}", reading.items);
        let wanted = "line 3: a second order for http://b: ";
        assert!(reading.faults[0].starts_with(wanted), "{:?}", reading.faults);
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

    /// A stranger's first edit of the file: a faulty line dropped the orders of all lines.
    #[test]
    fn a_faulty_line_costs_its_own_order_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers");
        let good = [
            WorkerOrder { draining: true, ..order("http://a:1") },
            WorkerOrder { removed: true, ..order("http://b:1") },
        ];
        for (number, (line, word)) in [
            ("{\"url\":", "EOF"),
            ("{\"url\":\"http://a:1\",\"drains\":true}", "drains"),
            ("{\"url\":\"a\",\"removed\":true}", "http://"),
            ("{\"url\":\"http://c:1\"}", "no order"),
            ("{\"url\":\"http://a:1\",\"added\":true,\"role\":\"cook\"}", "prefill"),
        ]
        .into_iter()
        .enumerate()
        {
            let text = lines_of(&good[..1]) + "\n" + line + "\n" + &lines_of(&good[1..]);
            std::fs::write(&path, &text).unwrap();
            let (state, orders) = WorkersState::open(&path);
            assert_eq!(orders, good, "{line}");
            let concern = state.concern(NanosSinceStart(0)).unwrap();
            assert!(concern.contains(": line 3: ") && concern.contains(word), "{concern}");
            let kept = match number {
                0 => "workers.broken".to_owned(),
                _ => format!("workers.broken.{}", number + 1),
            };
            assert!(concern.ends_with(&format!(" in {kept}")), "{concern}");
            assert_eq!(std::fs::read_to_string(folder.path().join(kept)).unwrap(), text);
        }
    }

    /// The write of the lines that were read hid that lines were lost.
    #[test]
    fn lost_lines_are_a_concern_until_an_order_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers");
        std::fs::write(&path, "no\n{\"url\":\"http://a:1\",\"draining\":true}\n").unwrap();
        let (mut state, orders) = WorkersState::open(&path);
        let now = NanosSinceStart(1);
        for is_order in [false, true] {
            let (confirmation, _confirmed) = oneshot::channel();
            if is_order {
                state.confirm(confirmation);
            }
            block_on_local(async {
                state.keep(&orders[usize::from(is_order)..]);
                state.ended().notified().await;
                while !state.take_due(1, now) && state.writing.is_some() {
                    tokio::task::yield_now().await;
                }
            });
            assert_eq!(state.concern(now).is_none(), is_order);
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers");
        let long = "\n".repeat(WORKERS_STATE_BYTES_MAX + 1);
        std::fs::write(&path, &long).unwrap();
        assert_eq!(WorkersState::open(&path).1, []);
        assert!(!path.exists());
        let aside = folder.path().join("workers.broken");
        assert_eq!(std::fs::metadata(&aside).unwrap().len(), long.len() as u64);
        // A link stays, and so does a folder, which stands for whatever is no regular file.
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        assert_eq!(WorkersState::open(&path).1, []);
        assert!(path.is_symlink() && folder.path().join("workers.broken.broken").exists());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(WorkersState::open(&path).1, []);
        assert!(path.is_dir());
    }

    /// `/` at the end of a URL made another worker of it.
    #[test]
    fn an_order_waits_for_an_address() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, _) = WorkersState::open(&folder.path().join("workers"));
        let waiting = order("http://a:1/");
        state.expect(waiting.clone());
        state.expect(order("http://b:1"));
        assert_eq!(state.take_order("http://c:1"), None);
        assert_eq!(state.take_order("http://a:1"), Some(waiting));
        state.forget_orders("http://b:1/");
        assert_eq!(state.pending(), []);
    }
}
