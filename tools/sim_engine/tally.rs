//! Counts of requests over all ranks, for `/metrics`: what is open, what ended otherwise than by
//! its last token.

use std::sync::Arc;
use tokio::sync::watch;

/// Requests by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EngineCounts {
    /// Requests that are being served, also while they wait for their other half. Each answer of
    /// several counts.
    pub(super) open: usize,
    /// Requests that were aborted by id, or because their client had left.
    pub(super) aborted: u64,
    /// Requests that failed: no KV came, no decode took theirs, no room in the queue.
    pub(super) failed: u64,
    /// Prefills whose KV no decode took in time.
    pub(super) expired: u64,
}

/// Counts. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineTally(Arc<watch::Sender<EngineCounts>>);

/// One open request; counted until it is dropped.
#[derive(Debug)]
pub(super) struct OpenRequest(EngineTally);

impl EngineTally {
    /// Counts a request as open until the result is dropped.
    pub(super) fn item(&self) -> OpenRequest {
        self.0.send_modify(|counts| counts.open += 1);
        OpenRequest(self.clone())
    }

    pub(super) fn aborted(&self) {
        self.0.send_modify(|counts| counts.aborted += 1);
    }

    pub(super) fn failed(&self) {
        self.0.send_modify(|counts| counts.failed += 1);
    }

    pub(super) fn expired(&self) {
        self.0.send_modify(|counts| counts.expired += 1);
    }

    pub(super) fn counts(&self) -> EngineCounts {
        *self.0.borrow()
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.0.send_modify(|counts| counts.open = counts.open.saturating_sub(1));
    }
}
