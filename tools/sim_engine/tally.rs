//! Counts of requests over all ranks, for `/metrics`: open requests, and requests that ended before
//! their last token.

use std::sync::Arc;
use tokio::sync::watch;

/// Requests by state and outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EngineCounts {
    /// Requests in service, also while they wait for their other leg. Each answer of several
    /// counts.
    pub(super) open: usize,
    /// Requests that were aborted by id, or because their client had left.
    pub(super) aborted: u64,
    /// Requests that failed: no KV arrived, no decode took their KV, or the queue was full.
    pub(super) failed: u64,
    /// Prefills with KV that no decode took in time.
    pub(super) expired: u64,
}

/// Shared counters. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineTally(Arc<watch::Sender<EngineCounts>>);

/// An open request; counted until dropped.
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
