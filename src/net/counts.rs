//! System calls and operations of a thread for its sockets.

/// Counts since the thread's loop began. Calls that open, accept or close a connection are not
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Operations submitted to io_uring.
    pub submissions: u64,
    /// Calls of `io_uring_enter` or `epoll_wait` at the end of a turn.
    pub waits: u64,
    /// Calls of `send` and `sendmsg`, and of `io_uring_enter` for sends within a turn.
    pub sends: u64,
    /// Calls of `recv`, including calls that returned no bytes.
    pub receives: u64,
}
