//! The sending half of a socket.

use super::Source;
use super::drivers::driven_socket::DrivenSocket;
use super::drivers::readiness::keep_waker;
use super::outflow::{Outflow, SendState};
use super::reactor::Backend;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, send, sendmsg, shutdown};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// Sends on a socket.
#[derive(Debug)]
pub struct Sender {
    link: Rc<DrivenSocket>,
    flow: Rc<RefCell<Outflow>>,
    /// Bytes behind the bytes of the previous send.
    next: Option<Vec<u8>>,
    /// Length of the last buffer.
    last_bytes: usize,
    /// A send has waited for room in the socket since the last flush: the peer reads slowly.
    has_waited: bool,
}

/// Most bytes that an empty socket takes at once: the kernel's initial send buffer (`tcp_wmem`).
const PROMPT_BYTES_MAX: usize = 16 << 10;

/// End of a wait for a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendEnd {
    /// The driver has the bytes: no step of the owner is needed for them to reach the kernel.
    Accepted,
    /// The kernel has the bytes.
    InKernel,
}

impl Sender {
    pub(crate) fn new(link: Rc<DrivenSocket>) -> Self {
        Self { link, flow: Rc::default(), next: None, last_bytes: 0, has_waited: false }
    }

    /// Begins to send all of `bytes`. Only after [`Self::poll_sent`] of the previous bytes.
    pub fn start(&mut self, bytes: Vec<u8>) {
        debug_assert!(self.next.is_none(), "one buffer at a time");
        self.last_bytes = bytes.len();
        let mut flow = self.flow.borrow_mut();
        match flow.state {
            SendState::Idle => flow.state = begin(&self.link, &self.flow, bytes),
            _ => self.next = Some(bytes),
        }
    }

    /// Ready when the driver has all bytes, and the kernel the bytes of the send before; returns a
    /// consumed buffer. Under io_uring a send without a stall costs no wait of its own.
    ///
    /// # Errors
    /// This send or the send before failed.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        self.poll_until(SendEnd::Accepted, cx)
    }

    /// Ready when the kernel has all bytes: needed before the end of the socket.
    ///
    /// # Errors
    /// The send failed.
    pub fn poll_flushed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        let flushed = ready!(self.poll_until(SendEnd::InKernel, cx));
        self.has_waited = false;
        Poll::Ready(flushed)
    }

    /// Bytes wait for room in the socket, or will have to: the peer has not read enough. False for
    /// the short end of an answer to a peer that keeps up, so that such an answer costs no wait.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        let is_posted = matches!(self.flow.borrow().state, SendState::Posted);
        let has_room = is_posted && !self.has_waited && self.last_bytes <= PROMPT_BYTES_MAX;
        !self.is_flushed() && (self.next.is_some() || !has_room)
    }

    fn poll_until(&mut self, end: SendEnd, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        let Self { link, flow: shared, next, has_waited, .. } = self;
        let mut flow = shared.borrow_mut();
        loop {
            let finished = match std::mem::take(&mut flow.state) {
                SendState::Done(Ok(buffer)) => buffer,
                SendState::Done(Err(error)) => {
                    *next = None;
                    return Poll::Ready(Err(error));
                }
                SendState::Idle => Vec::new(),
                SendState::Blocked { bytes, sent_bytes } => {
                    let DrivenSocket::Edges(source) = &**link else { return Poll::Pending };
                    if source.poll_writable(cx).is_pending() {
                        *has_waited = true;
                        flow.state = SendState::Blocked { bytes, sent_bytes };
                        return Poll::Pending;
                    }
                    flow.state = send_now(link, bytes, sent_bytes);
                    continue;
                }
                SendState::Posted if next.is_none() && end == SendEnd::Accepted => {
                    flow.state = SendState::Posted;
                    return Poll::Ready(Ok(Vec::new()));
                }
                under_way @ (SendState::Posted | SendState::UnderWay(_)) => {
                    if let (SendState::Posted, Backend::Uring(uring)) =
                        (&under_way, &link.reactor().io)
                    {
                        uring.borrow_mut().await_posted();
                    }
                    *has_waited |= matches!(under_way, SendState::UnderWay(_));
                    flow.state = under_way;
                    keep_waker(&mut flow.waker, cx);
                    return Poll::Pending;
                }
            };
            let Some(bytes) = next.take() else { return Poll::Ready(Ok(finished)) };
            link.reactor().buffers.give(finished);
            flow.state = begin(link, shared, bytes);
        }
    }

    /// True if the kernel has all bytes.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        let is_idle = matches!(self.flow.borrow().state, SendState::Idle | SendState::Done(Ok(_)));
        self.next.is_none() && is_idle
    }

    /// Brings posted bytes into the kernel before a direct system call. False: they wait for room.
    fn submit_posted(&mut self) -> io::Result<bool> {
        if matches!(self.flow.borrow().state, SendState::Posted) {
            self.link.reactor().submit_now()?;
        }
        let mut flow = self.flow.borrow_mut();
        match std::mem::take(&mut flow.state) {
            SendState::Done(Err(error)) => return Err(error),
            state => flow.state = state,
        }
        drop(flow);
        Ok(self.is_flushed())
    }

    /// Sends as much as the socket has room for, by a direct system call: for payloads that are too
    /// long to copy. 0: there is no room.
    ///
    /// # Errors
    /// The send failed.
    pub fn try_send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.submit_posted()? {
            return Ok(0);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut control = SendAncillaryBuffer::default();
        self.link.reactor().count(|counts| counts.sends += 1);
        match sendmsg(&*self.link, pieces, &mut control, flags) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN) => {
                if let DrivenSocket::Edges(source) = &*self.link {
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
            DrivenSocket::Completions { reactor, fd } => {
                let source = Source::with(Rc::clone(reactor), Rc::clone(fd), PollFlags::OUT)?;
                poll_fn(|cx| source.poll_writable(cx)).await;
            }
            DrivenSocket::Edges(source) => poll_fn(|cx| source.poll_writable(cx)).await,
        }
        Ok(())
    }

    /// Returns a consumed buffer to the pool.
    pub fn recycle(&self, buffer: Vec<u8>) {
        self.link.reactor().buffers.give(buffer);
    }

    /// Sends all of `bytes`, as [`Self::poll_sent`]; returns a consumed buffer.
    ///
    /// # Errors
    /// The send failed.
    pub async fn send(&mut self, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        self.start(bytes);
        poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// Closes the sending side. Bytes that wait for room are lost: see [`Self::poll_flushed`].
    ///
    /// # Errors
    /// The shutdown failed.
    pub fn close(&mut self) -> io::Result<()> {
        self.submit_posted()?;
        Ok(shutdown(&*self.link, Shutdown::Write)?)
    }
}

/// Begins a send by the driver of the socket.
fn begin(link: &DrivenSocket, flow: &Rc<RefCell<Outflow>>, bytes: Vec<u8>) -> SendState {
    match link {
        DrivenSocket::Completions { reactor, fd } => match &reactor.io {
            Backend::Uring(uring) => {
                uring.borrow_mut().send(fd, flow, bytes);
                SendState::Posted
            }
            Backend::Epoll(_) => SendState::Idle,
        },
        DrivenSocket::Edges(_) => send_now(link, bytes, 0),
    }
}

/// Sends as much as the socket has room for.
fn send_now(link: &DrivenSocket, bytes: Vec<u8>, mut sent_bytes: usize) -> SendState {
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
                if let DrivenSocket::Edges(source) = link {
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
