//! One turn of a task ends, though it could go on.

use std::future::poll_fn;
use std::task::Poll;

/// Bytes that a task reads or writes at most before it lets others run. Sockets that are always
/// ready never make it wait.
pub const TURN_BYTES: usize = 256 * 1024;

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
