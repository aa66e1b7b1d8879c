//! One turn of a task ends, though it could go on.

use std::future::poll_fn;
use std::task::Poll;

/// Bytes that a task reads or writes at most before it lets others run. Sockets that are always
/// ready never make it wait.
const TURN_BYTES: usize = 32 * 1024;

/// What a task has read or written since others had a turn.
#[derive(Debug, Default)]
pub struct Turn {
    bytes: usize,
}

impl Turn {
    /// Counts more; past [`TURN_BYTES`], others have a turn.
    pub async fn spend(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= TURN_BYTES {
            self.bytes = 0;
            end_turn().await;
        }
    }
}

/// Lets other tasks and the sockets have a turn.
pub async fn end_turn() {
    let mut ended = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut ended, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
