//! Lends the descriptor of a shard's socket, for options that the runtime does not know.

use monoio::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Calls `with` with the descriptor of `stream`.
pub fn with_descriptor<T>(stream: &TcpStream, with: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
    // SAFETY: `stream` owns the descriptor, and is borrowed for longer than `with` runs.
    with(unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) })
}
