//! Sockets shared with the previous process. An operation on a shared socket affects both.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use socket2::SockRef;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The previous process, which may still change the sockets that it has sent. An older version that
/// drains before this process serves makes the kernel drop new connections.
#[derive(Debug)]
pub struct PreviousProcess {
    pid: Pid,
    sockets: Arc<[OwnedFd]>,
}

impl PreviousProcess {
    /// The process with that id, and the listening sockets of this process.
    #[must_use]
    pub fn new(pid: Pid, sockets: Arc<[OwnedFd]>) -> Self {
        Self { pid, sockets }
    }

    /// Removes packet filters from the sockets. Call it periodically until false: then the previous
    /// process has ended and cannot add filters any more.
    #[must_use]
    pub fn reopen(&self) -> bool {
        // Check this first, so that filters added before the end are removed below.
        let has_ended = test_kill_process(self.pid) == Err(Errno::SRCH);
        for socket in self.sockets.iter() {
            match SockRef::from(socket).detach_filter() {
                Ok(()) => tracing::info!("connections begin again: the process before ended them"),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => tracing::debug!(%error, "a filter of packets cannot be removed"),
            }
        }
        !has_ended
    }
}
