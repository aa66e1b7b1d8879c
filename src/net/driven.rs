//! A connected socket as its driver has it.

use super::Source;
use super::reactor::Reactor;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// A connected socket, by the driver of its thread.
#[derive(Debug)]
pub(crate) enum Driven {
    /// Receives and sends by operations of io_uring.
    Completions { reactor: Rc<Reactor>, fd: Rc<OwnedFd> },
    /// Receives and sends when epoll says that it can.
    Edges(Source),
}

impl Driven {
    pub(crate) fn reactor(&self) -> &Reactor {
        match self {
            Self::Completions { reactor, .. } => reactor,
            Self::Edges(source) => &source.reactor,
        }
    }
}

impl AsFd for Driven {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Completions { fd, .. } => fd.as_fd(),
            Self::Edges(source) => source.as_fd(),
        }
    }
}
