//! The queue of log lines for standard error: bounded, with a writer thread.
//!
//! Any thread may enqueue lines and never waits, locks or fails. A line is dropped and counted if
//! the queue is full or standard error does not accept it. The writer sums up lines about many
//! workers. Limits: [`LOG_LINES_MAX`], [`LOG_BYTES_MAX`],
//! [`forebay_base::limits::LOG_ALIKE_LINES_MAX`].

use crate::worker_lines::{LineSum, WorkerLines};
use forebay_base::Clock;
use forebay_base::limits::{LOG_BYTES_MAX, LOG_FLUSH_TIME_MAX, LOG_LINES_MAX};
use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, Thread};
use std::time::Duration;

/// Lines are written in batches of up to this size.
const BATCH_BYTES: usize = 64 * 1024;
/// Pause before a retry when standard error is non-blocking and full.
const FULL_PAUSE: Duration = Duration::from_millis(10);
/// Poll interval of a flush.
const FLUSH_PAUSE: Duration = Duration::from_millis(2);

static DROPPED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// True on the thread that writes the log.
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
    /// Lines that the writer itself logs. The queue may be full, and only the writer empties it.
    static OWN_LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lines dropped since start; exported as `forebay_log_dropped_total`.
#[must_use]
pub fn dropped_lines_count() -> u64 {
    // ordering: statistic; pairs with nothing.
    DROPPED.load(Ordering::Relaxed)
}

fn count_dropped(lines: usize) {
    // ordering: statistic; pairs with nothing.
    DROPPED.fetch_add(lines as u64, Ordering::Relaxed);
}

/// Enqueues lines; each call of [`Write::write`] is a whole line, and never fails.
#[derive(Clone, Debug)]
pub struct LogQueue {
    // The writer never sleeps in the channel, so no sender has to wake it there, which would lock.
    lines: SyncSender<Vec<u8>>,
    state: Arc<QueueState>,
    writer: Thread,
}

/// Words that senders and the writer share.
#[derive(Debug, Default)]
struct QueueState {
    /// Bytes of lines that are neither written nor lost yet. Each sum that is due later is a byte.
    pending_bytes: AtomicUsize,
    /// A flush waits: sums are due at once.
    is_flushing: AtomicBool,
}

impl LogQueue {
    /// Starts the thread that writes to `out`, which may block and fail.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, handed_in) = sync_channel(LOG_LINES_MAX);
        let state = Arc::new(QueueState::default());
        let of_writer = Arc::clone(&state);
        let reported = dropped_lines_count();
        let of_workers = WorkerLines::default();
        let writer = Writer { out, is_torn: false, reported, of_workers, clock: Clock::start() };
        let thread = thread::Builder::new().name("log".into());
        let thread = thread.spawn(move || writer.run(&handed_in, &of_writer))?;
        Ok(Self { lines, state, writer: thread.thread().clone() })
    }

    fn hand_in(&self, line: &[u8]) {
        if IS_WRITER.get() {
            OWN_LINES.with_borrow_mut(|own| own.extend_from_slice(line));
            return;
        }
        // ordering: Relaxed; only a bound. Pairs with `fetch_sub` of the writer and of the error
        // path below.
        let pending = self.state.pending_bytes.fetch_add(line.len(), Ordering::Relaxed);
        let has_room = pending.saturating_add(line.len()) <= LOG_BYTES_MAX;
        if has_room && self.lines.try_send(line.to_vec()).is_ok() {
            self.writer.unpark();
        } else {
            // ordering: as above.
            self.state.pending_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            count_dropped(1);
        }
    }

    /// Waits until all lines are written or lost, but no longer than [`LOG_FLUSH_TIME_MAX`].
    pub fn flush_all(&self) {
        let clock = Clock::start();
        let deadline = clock.now().plus(LOG_FLUSH_TIME_MAX);
        // ordering: Release; pairs with the Acquire of the writer, which the unpark wakes.
        self.state.is_flushing.store(true, Ordering::Release);
        self.writer.unpark();
        // ordering: Acquire; pairs with the Release of the writer: lines counted as written have
        // left the process.
        while self.state.pending_bytes.load(Ordering::Acquire) > 0 && clock.now() < deadline {
            thread::park_timeout(FLUSH_PAUSE);
        }
        // ordering: as above.
        self.state.is_flushing.store(false, Ordering::Release);
    }
}

impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.hand_in(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread that writes the lines.
struct Writer<W> {
    out: W,
    /// The last written line lacks its end.
    is_torn: bool,
    /// Dropped lines that the log has reported.
    reported: u64,
    of_workers: WorkerLines,
    clock: Clock,
}

/// Lines that were taken from the queue.
struct TakenLines {
    bytes: usize,
    /// No sender is left.
    is_end: bool,
}

impl<W: Write> Writer<W> {
    fn run(mut self, lines: &Receiver<Vec<u8>>, state: &QueueState) {
        IS_WRITER.set(true);
        let mut batch = Vec::new();
        loop {
            batch.clear();
            let held = self.of_workers.held_count();
            let taken = self.take(lines, &mut batch);
            // ordering: Relaxed; the Release below publishes the sum.
            state.pending_bytes.fetch_add(self.of_workers.held_count() - held, Ordering::Relaxed);
            if !batch.is_empty() && self.write(&batch) {
                self.log_dropped();
            }
            // ordering: Acquire; pairs with the Release of `flush_all`.
            let all = taken.is_end || state.is_flushing.load(Ordering::Acquire);
            self.log_sums(state, all);
            if taken.bytes > 0 {
                // ordering: Release; pairs with the Acquire of `flush_all`.
                state.pending_bytes.fetch_sub(taken.bytes, Ordering::Release);
            }
            if taken.bytes > 0 {
                continue;
            }
            if taken.is_end {
                return;
            }
            // A sender wakes this thread after it enqueues a line: a line that came meanwhile ends
            // the wait at once.
            match self.of_workers.wait(self.clock.now()) {
                Some(wait) => thread::park_timeout(wait),
                None => thread::park(),
            }
        }
    }

    /// Takes lines into a batch. Lines that are held back are taken too, and count: a flood of them
    /// ends the batch, so that its bytes are free again and sums are written in time.
    fn take(&mut self, lines: &Receiver<Vec<u8>>, batch: &mut Vec<u8>) -> TakenLines {
        let now = self.clock.now();
        let mut taken = TakenLines { bytes: 0, is_end: false };
        while taken.bytes < BATCH_BYTES {
            match lines.try_recv() {
                Ok(line) => {
                    taken.bytes += line.len();
                    let Some(text) = self.of_workers.admit(&line, now) else { continue };
                    if batch.is_empty() && self.is_torn {
                        batch.push(b'\n');
                    }
                    batch.extend_from_slice(text);
                }
                Err(end) => {
                    taken.is_end = end == TryRecvError::Disconnected;
                    break;
                }
            }
        }
        taken
    }

    /// Writes the sums that are due, and further lines of this thread, past the queue.
    fn log_sums(&mut self, state: &QueueState, all: bool) {
        let due = self.of_workers.take_due(self.clock.now(), all);
        due.iter().for_each(LineSum::log);
        let own = OWN_LINES.take();
        if !own.is_empty() {
            let torn = if self.is_torn { &b"\n"[..] } else { b"" };
            if !self.write(&[torn, &own].concat()) {
                // A sum stands for lines that are lost with it.
                count_dropped(due.iter().map(LineSum::lines).sum());
            }
        }
        // ordering: Release; pairs with the Acquire of `flush_all`. The sums are written or lost.
        state.pending_bytes.fetch_sub(due.len(), Ordering::Release);
    }

    /// Reports lines that were dropped since the last report.
    fn log_dropped(&mut self) {
        let dropped = dropped_lines_count();
        if dropped > self.reported {
            let lines = dropped - self.reported;
            self.reported = dropped;
            tracing::warn!(
                lines,
                "lines of the log were dropped: standard error did not take them in time"
            );
        }
    }

    /// True if all is written.
    fn write(&mut self, batch: &[u8]) -> bool {
        let mut rest = batch;
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => break,
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::park_timeout(FULL_PAUSE);
                }
                Err(_) => break,
            }
        }
        if rest.len() < batch.len() {
            let written = batch.len() - rest.len();
            self.is_torn = batch.get(written - 1) != Some(&b'\n');
        }
        count_dropped(memchr::memchr_iter(b'\n', rest).count());
        rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::NanosSinceStart;
    use std::sync::mpsc::{Sender, channel};

    /// Fails or blocks by what it is told, a call at a time.
    struct Script {
        steps: Receiver<io::Result<usize>>,
        seen: Sender<Vec<u8>>,
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = self.steps.recv().unwrap_or(Ok(usize::MAX))?.min(bytes.len());
            let _ = self.seen.send(bytes[..taken].to_vec());
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn scripted() -> (LogQueue, Sender<io::Result<usize>>, Receiver<Vec<u8>>) {
        let (step, steps) = channel();
        let (seen, written) = channel();
        (LogQueue::start(Script { steps, seen }).unwrap(), step, written)
    }

    /// A writer whose queue is full, and the queue.
    fn full_queue() -> (Writer<Vec<u8>>, LogQueue, Receiver<Vec<u8>>) {
        let (lines, handed_in) = sync_channel(1);
        lines.try_send(b"full\n".to_vec()).unwrap();
        let writer = Writer {
            out: Vec::new(),
            is_torn: false,
            reported: dropped_lines_count(),
            of_workers: WorkerLines::default(),
            clock: Clock::start(),
        };
        let queue = LogQueue { lines, state: Arc::default(), writer: thread::current() };
        (writer, queue, handed_in)
    }

    fn worker_line() -> Vec<u8> {
        b"\x01WARN\x1fplace\x1fgpu\x1frefused\x1fworker is down\x02the line\n".to_vec()
    }

    /// M1: the sum stands for many lines, so a full queue must not cost it.
    #[test]
    fn a_sum_is_written_though_the_queue_is_full() {
        let (mut writer, queue, _handed_in) = full_queue();
        IS_WRITER.set(true);
        let now = writer.clock.now();
        let admitted = (0..50).filter(|_| writer.of_workers.admit(&worker_line(), now).is_some());
        let admitted = admitted.count();
        let state = QueueState::default();
        state.pending_bytes.store(1, Ordering::Relaxed);
        let subscriber = tracing_subscriber::fmt().with_writer(move || queue.clone()).finish();
        tracing::subscriber::with_default(subscriber, || writer.log_sums(&state, true));
        IS_WRITER.set(false);
        let out = String::from_utf8(writer.out).unwrap();
        let wanted = format!("{} more lines: worker is down", 50 - admitted);
        assert!(out.contains(&wanted), "{out}");
        assert_eq!(state.pending_bytes.load(Ordering::Relaxed), 0);
    }

    /// A flood of lines that are held back fills no batch, and must end it all the same.
    #[test]
    fn a_flood_of_held_lines_ends_a_batch() {
        let (mut writer, _, _) = full_queue();
        let line = worker_line();
        let count = 3 * BATCH_BYTES / line.len();
        let (lines, handed_in) = sync_channel(count);
        (0..count).for_each(|_| lines.try_send(line.clone()).unwrap());
        let mut batch = Vec::new();
        let taken = writer.take(&handed_in, &mut batch);
        assert!((BATCH_BYTES..2 * BATCH_BYTES).contains(&taken.bytes), "{}", taken.bytes);
        assert!(batch.len() < BATCH_BYTES, "most lines are held back");
    }

    /// The count is the process's: tests of this file look at it, so they run one after the other.
    #[test]
    fn a_line_is_written_or_counted_and_nobody_waits() {
        let (mut log, step, written) = scripted();
        log.write_all(b"one\n").unwrap();
        step.send(Ok(2)).unwrap();
        step.send(Err(ErrorKind::Interrupted.into())).unwrap();
        step.send(Err(ErrorKind::WouldBlock.into())).unwrap();
        step.send(Ok(9)).unwrap();
        assert_eq!(
            (written.recv().unwrap(), written.recv().unwrap()),
            (b"on".into(), b"e\n".into())
        );
        log.flush_all();

        let before = dropped_lines_count();
        log.write_all(b"torn\n").unwrap();
        step.send(Ok(2)).unwrap();
        step.send(Err(ErrorKind::BrokenPipe.into())).unwrap();
        assert_eq!(written.recv().unwrap(), b"to");
        log.flush_all();
        assert_eq!(dropped_lines_count() - before, 1);
        log.write_all(b"next\n").unwrap();
        step.send(Ok(9)).unwrap();
        assert_eq!(written.recv().unwrap(), b"\nnext\n");
        log.flush_all();

        // Nothing is taken from here on: the queue fills to its bound in lines, and then in bytes.
        let before = dropped_lines_count();
        for _ in 0..LOG_LINES_MAX + BATCH_BYTES + 7 {
            log.write_all(b"\n").unwrap();
        }
        let dropped = dropped_lines_count() - before;
        assert!((7..=BATCH_BYTES as u64 + 7).contains(&dropped), "{dropped}");
        drop(step);
        log.flush_all();
        let (mut log, step, _written) = scripted();
        let before = dropped_lines_count();
        let line = vec![b'x'; LOG_BYTES_MAX / 4];
        for _ in 0..9 {
            log.write_all(&line).unwrap();
        }
        assert_eq!(dropped_lines_count() - before, 5);
        let clock = Clock::start();
        log.flush_all();
        let waited = Duration::from_nanos(clock.now().since(NanosSinceStart(0)));
        assert!(waited >= LOG_FLUSH_TIME_MAX);
        drop(step);
    }
}
