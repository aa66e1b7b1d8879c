//! What one thread has asked of the kernel for its sockets.

/// Counts since the thread's loop began. Calls that open, accept or close a
/// connection are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Operations handed to io_uring.
    pub submissions: u64,
    /// Calls of `io_uring_enter` or `epoll_wait`.
    pub waits: u64,
    /// Calls of `send` and `sendmsg`.
    pub sends: u64,
    /// Calls of `recv`, those that brought nothing too.
    pub receives: u64,
}
