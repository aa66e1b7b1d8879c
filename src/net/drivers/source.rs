//! Descriptors watched for readiness: all sockets under epoll; under io_uring only rarely ready
//! descriptors (listeners, connecting sockets, eventfds).

use super::readiness::Readiness;
use crate::reactor::{self, Backend, Reactor};
use rustix::event::PollFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

/// A descriptor that is watched.
#[derive(Debug)]
pub struct Source {
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) fd: Rc<OwnedFd>,
    readiness: Rc<Readiness>,
    interest: PollFlags,
}

impl Source {
    /// Watches a descriptor on this thread's loop.
    ///
    /// # Errors
    /// Outside of [`crate::block_on`], or the registration failed.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let reactor = reactor::current().ok_or(io::ErrorKind::Unsupported)?;
        Self::with(reactor, Rc::new(fd), PollFlags::IN)
    }

    /// `interest`: `IN` or `OUT`; epoll reports both.
    pub(crate) fn with(
        reactor: Rc<Reactor>,
        fd: Rc<OwnedFd>,
        interest: PollFlags,
    ) -> io::Result<Self> {
        let source = Self { reactor, fd, readiness: Rc::default(), interest };
        source.watch()?;
        Ok(source)
    }

    fn watch(&self) -> io::Result<()> {
        let key = match &self.reactor.io {
            Backend::Uring(uring) => {
                uring.borrow_mut().watch(&self.fd, &self.readiness, self.interest)
            }
            Backend::Epoll(epoll) => epoll.borrow_mut().add(&self.fd, &self.readiness)?,
        };
        self.readiness.key.set(Some(key));
        Ok(())
    }

    /// Ready once per signal of the eventfd since the last call; never reads it.
    pub fn poll_signalled(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_readable(cx).map(|()| self.clear_readable())
    }

    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.watched(self.readiness.readable.poll(cx))
    }

    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.watched(self.readiness.writable.poll(cx))
    }

    /// Watches again after the kernel has ended the registration. If that fails, the caller's next
    /// system call returns the error.
    fn watched(&self, polled: Poll<()>) -> Poll<()> {
        let has_ended = polled.is_pending() && self.readiness.key.get().is_none();
        if has_ended && self.watch().is_err() { Poll::Ready(()) } else { polled }
    }

    pub(crate) fn clear_readable(&self) {
        self.readiness.readable.is_ready.set(false);
    }

    /// For a read that did not fill its buffer: it has emptied the socket, and further bytes bring
    /// an edge. An end that was already reported brings no edge.
    pub(crate) fn clear_after_short_read(&self) {
        if !self.readiness.is_ended.get() {
            self.clear_readable();
        }
    }

    pub(crate) fn clear_writable(&self) {
        self.readiness.writable.is_ready.set(false);
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let Some(key) = self.readiness.key.take() else { return };
        match &self.reactor.io {
            Backend::Uring(uring) => uring.borrow_mut().cancel(key),
            Backend::Epoll(epoll) => epoll.borrow_mut().remove(key, self.fd.as_fd()),
        }
    }
}
