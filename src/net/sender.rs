//! The sending half of a socket.

use super::Source;
use super::drivers::driven::Driven;
use super::drivers::readiness::keep_waker;
use super::outflow::{Outflow, SendState};
use super::reactor::Backend;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, send, sendmsg, shutdown};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Sends on a socket.
#[derive(Debug)]
pub struct Sender {
    link: Rc<Driven>,
    flow: Rc<RefCell<Outflow>>,
}

impl Sender {
    pub(crate) fn new(link: Rc<Driven>) -> Self {
        Self { link, flow: Rc::default() }
    }

    /// Begins to send all of `bytes`. Only after the previous send has finished.
    pub fn start(&mut self, bytes: Vec<u8>) {
        let mut flow = self.flow.borrow_mut();
        debug_assert!(matches!(flow.state, SendState::Idle), "one buffer at a time");
        flow.state = match &*self.link {
            Driven::Completions { reactor, fd } => match &reactor.io {
                Backend::Uring(uring) => {
                    SendState::UnderWay(uring.borrow_mut().send(fd, &self.flow, bytes, 0))
                }
                Backend::Epoll(_) => SendState::Idle,
            },
            Driven::Edges(_) => send_now(&self.link, bytes, 0),
        };
    }

    /// Ready when all bytes are sent; returns the buffer.
    ///
    /// # Errors
    /// The send failed.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        let mut flow = self.flow.borrow_mut();
        loop {
            match std::mem::take(&mut flow.state) {
                SendState::Done(done) => return Poll::Ready(done),
                SendState::Idle => return Poll::Ready(Ok(Vec::new())),
                SendState::Blocked { bytes, sent_bytes } => {
                    let Driven::Edges(source) = &*self.link else { return Poll::Pending };
                    if source.poll_writable(cx).is_pending() {
                        flow.state = SendState::Blocked { bytes, sent_bytes };
                        return Poll::Pending;
                    }
                    flow.state = send_now(&self.link, bytes, sent_bytes);
                }
                under_way @ SendState::UnderWay(_) => {
                    flow.state = under_way;
                    keep_waker(&mut flow.waker, cx);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Sends as much as the socket has room for, by a direct system call: for payloads that are too
    /// long to copy. Only while no send is in progress. 0: there is no room.
    ///
    /// # Errors
    /// The send failed.
    pub fn try_send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut control = SendAncillaryBuffer::default();
        self.link.reactor().count(|counts| counts.sends += 1);
        match sendmsg(&*self.link, pieces, &mut control, flags) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN) => {
                if let Driven::Edges(source) = &*self.link {
                    source.clear_writable();
                }
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the socket has room, or is broken.
    ///
    /// # Errors
    /// The socket cannot be watched.
    pub async fn room(&mut self) -> io::Result<()> {
        match &*self.link {
            Driven::Completions { reactor, fd } => {
                let source = Source::with(Rc::clone(reactor), Rc::clone(fd), false)?;
                poll_fn(|cx| source.poll_writable(cx)).await;
            }
            Driven::Edges(source) => poll_fn(|cx| source.poll_writable(cx)).await,
        }
        Ok(())
    }

    /// Returns a consumed buffer to the pool.
    pub fn recycle(&self, buffer: Vec<u8>) {
        self.link.reactor().buffers.give(buffer);
    }

    /// Sends all of `bytes`; returns the buffer.
    ///
    /// # Errors
    /// The send failed.
    pub async fn send(&mut self, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        self.start(bytes);
        poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// Closes the sending side.
    ///
    /// # Errors
    /// The shutdown failed.
    pub fn close(&mut self) -> io::Result<()> {
        Ok(shutdown(&*self.link, Shutdown::Write)?)
    }
}

/// Sends as much as the socket has room for.
fn send_now(link: &Driven, bytes: Vec<u8>, mut sent_bytes: usize) -> SendState {
    loop {
        let rest = bytes.get(sent_bytes..).unwrap_or_default();
        if rest.is_empty() {
            return SendState::Done(Ok(bytes));
        }
        link.reactor().count(|counts| counts.sends += 1);
        match send(link, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => sent_bytes += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if let Driven::Edges(source) = link {
                    source.clear_writable();
                }
                return SendState::Blocked { bytes, sent_bytes };
            }
            Err(error) => return SendState::Done(Err(error.into())),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut flow = self.flow.borrow_mut();
        flow.waker = None;
        if let SendState::UnderWay(key) = std::mem::take(&mut flow.state)
            && let Backend::Uring(uring) = &self.link.reactor().io
        {
            uring.borrow_mut().cancel(key);
            // A shutdown ends an operation that the cancellation misses because it is between two
            // attempts.
            let _ = shutdown(&*self.link, Shutdown::Both);
        }
    }
}
