//! What else is looked at while a worker is waited for: whoever wants the answer may not want it any more.

use super::RelayError;
use crate::ingress::Conn;
use std::task::{Context, Poll};
use std::time::Duration;

/// Who wants an answer, and how long they wait for it.
pub trait Watch {
    /// Ready once the exchange has lost its point, with why.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<RelayError>;
    /// Ready once the deadline has passed.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// Sets the deadline anew.
    fn wait_at_most(&mut self, after: Duration);
}

impl Watch for Conn {
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<RelayError> {
        self.poll_gone(cx).map(|()| RelayError::ClientGone)
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Self::poll_deadline(self, cx)
    }

    fn wait_at_most(&mut self, after: Duration) {
        Self::wait_at_most(self, after);
    }
}
