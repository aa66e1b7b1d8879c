//! A connected socket under its thread's driver.

use crate::Source;
use crate::reactor::Reactor;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// A connected socket under its thread's driver.
#[derive(Debug)]
pub(crate) enum DrivenSocket {
    /// Receives and sends by io_uring operations.
    Completions { reactor: Rc<Reactor>, fd: Rc<OwnedFd> },
    /// Receives and sends when epoll reports readiness.
    Edges(Source),
}

impl DrivenSocket {
    pub(crate) fn reactor(&self) -> &Reactor {
        match self {
            Self::Completions { reactor, .. } => reactor,
            Self::Edges(source) => &source.reactor,
        }
    }
}

impl AsFd for DrivenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Completions { fd, .. } => fd.as_fd(),
            Self::Edges(source) => source.as_fd(),
        }
    }
}
