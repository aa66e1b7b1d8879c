//! The sockets that two processes have. What one of them does to a socket is done in both.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use socket2::SockRef;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The process before, which may still change the sockets that it has given. Older versions that
/// drain before this process serves have the kernel drop whoever connects.
#[derive(Debug)]
pub struct ProcessBefore {
    pid: Pid,
    sockets: Arc<[OwnedFd]>,
}

impl ProcessBefore {
    /// That process, and the sockets that this one listens on.
    #[must_use]
    pub fn new(pid: Pid, sockets: Arc<[OwnedFd]>) -> Self {
        Self { pid, sockets }
    }

    /// Removes what drops packets from the sockets. To be called again and again; false once the
    /// process has ended and can add nothing more.
    #[must_use]
    pub fn reopen(&self) -> bool {
        // Looked at first: what it does until its end is undone below.
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
