//! Events that end a wait for a worker: the client leaves, a deadline passes, the worker fails.

use crate::ingress::Conn;
use forebay_router::dispatch::RelayError;
use std::task::{Context, Poll};
use std::time::Duration;

/// Why a worker is not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The deadline has passed.
    Late,
    /// The worker is out of service and sends nothing.
    Down,
    /// The rank stands still.
    Stalled,
}

/// The side that waits for an answer, and its deadline.
pub trait Watch {
    /// Ready once the exchange has lost its point, with why.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<RelayError>;
    /// Ready once the wait is over.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<WatchEnd>;
    /// Sets the deadline anew.
    fn wait_at_most(&mut self, after: Duration);
}

/// A client that waits, and its connection.
pub trait Client: Watch {
    /// Where its answer goes.
    fn conn(&mut self) -> &mut Conn;
}

impl Watch for Conn {
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<RelayError> {
        self.poll_gone(cx).map(|()| RelayError::ClientGone)
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<WatchEnd> {
        self.poll_deadline(cx).map(|()| WatchEnd::Late)
    }

    fn wait_at_most(&mut self, after: Duration) {
        Self::wait_at_most(self, after);
    }
}
