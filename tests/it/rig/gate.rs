//! A worker that answers only when the test lets it, one request for each word.

use super::{PATIENCE, Worker, until};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// The worker and the way to let its requests go.
pub(crate) struct Gate {
    pub(crate) worker: Worker,
    open: Sender<()>,
    held: Arc<AtomicUsize>,
}

impl Gate {
    /// Holds every request until [`Gate::open`]; all of them from [`Gate::open_for_good`] on.
    pub(crate) fn start() -> Self {
        Self::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    }

    /// The same with this answer; an empty one closes the connection.
    pub(crate) fn answering(answer: &'static str) -> Self {
        let (open, opened) = channel::<()>();
        let opened = Mutex::new(opened);
        let held = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&held);
        let worker = Worker::start(move |_, stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            // An error: it is open for good.
            let _ = opened.lock().unwrap().recv_timeout(PATIENCE);
            counted.fetch_sub(1, Ordering::SeqCst);
            !answer.is_empty() && stream.write_all(answer.as_bytes()).is_ok()
        });
        Self { worker, open, held }
    }

    /// One request is answered: the one that is held, or the next.
    pub(crate) fn open(&self) {
        self.open.send(()).expect("the worker lives");
    }

    /// Everything is answered at once; the requests that came are returned.
    pub(crate) fn open_for_good(self) -> Worker {
        self.worker
    }

    /// Waits until so many requests are held.
    pub(crate) fn holds(&self, count: usize) {
        until("the worker holds them", || self.held.load(Ordering::SeqCst) == count);
    }

    /// The prompt of the next request that came.
    pub(crate) fn prompt(&self) -> String {
        prompt(&self.worker)
    }
}

/// The prompt of the next request that a worker got.
pub(crate) fn prompt(worker: &Worker) -> String {
    let body: serde_json::Value = serde_json::from_slice(&worker.next().body).expect("JSON");
    body["prompt"].as_str().expect("a prompt").to_owned()
}
