//! The receiving half of a socket.

use super::drivers::driven_socket::DrivenSocket;
use super::drivers::readiness::keep_waker;
use super::inflow::Inflow;
use super::reactor::Backend;
use forebay_base::limits::{READ_BYTES, READ_IN_PLACE_BYTES_MAX};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

/// Receives from a socket.
#[derive(Debug)]
pub struct Receiver {
    link: Rc<DrivenSocket>,
    flow: Rc<RefCell<Inflow>>,
}

impl Receiver {
    pub(crate) fn new(link: Rc<DrivenSocket>) -> Self {
        Self { link, flow: Rc::default() }
    }

    /// The next chunk; empty at the end of the stream, and from then on.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        let mut flow = self.flow.borrow_mut();
        if !flow.has_some() {
            Self::receive(&self.link, &self.flow, &mut flow, Some(cx));
        }
        if let Some(taken) = flow.take(&self.link.reactor().buffers) {
            return Poll::Ready(taken);
        }
        self.keep_waker(&mut flow, cx);
        Poll::Pending
    }

    /// Appends received bytes to `into`, as many as it has room for. 0: the end of the stream.
    pub fn poll_in_place(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let is_free = {
            let flow = self.flow.borrow();
            !flow.has_some() && flow.key.is_none() && flow.is_in_place()
        };
        // Bytes of an operation precede bytes that are received here.
        if is_free && into.len() < into.capacity() {
            match receive_in_place(&self.link, into) {
                Ok(bytes) => return Poll::Ready(Ok(bytes)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        let chunk = ready!(self.poll_chunk(cx))?;
        let bytes = chunk.len();
        if bytes > 0 {
            self.link.reactor().buffers.append(into, chunk);
        }
        Poll::Ready(Ok(bytes))
    }

    /// Begins or ends a long message: [`Self::poll_in_place`] may then receive its bytes by direct
    /// system calls, and no operation receives ahead of them.
    pub fn set_in_place(&mut self, is_in_place: bool) {
        let ended = self.flow.borrow_mut().set_in_place(is_in_place);
        if let (Some(key), Backend::Uring(uring)) = (ended, &self.link.reactor().io) {
            uring.borrow_mut().cancel(key);
        }
    }

    /// Receives before the owner needs the bytes. The socket stops receiving soon if the bytes are
    /// not taken. True once a chunk (or the end) waits.
    pub fn poll_ahead(&mut self, cx: &mut Context<'_>) -> bool {
        let mut flow = self.flow.borrow_mut();
        if !flow.has_some() {
            Self::receive(&self.link, &self.flow, &mut flow, Some(cx));
            self.keep_waker(&mut flow, cx);
        }
        flow.has_some()
    }

    /// True if neither bytes nor the end has arrived. An idle pooled connection that is not quiet
    /// must not be reused.
    pub fn is_quiet(&mut self) -> bool {
        let mut flow = self.flow.borrow_mut();
        let was_received = flow.is_received();
        if !flow.has_some() {
            Self::receive(&self.link, &self.flow, &mut flow, None);
        }
        // Bytes that came while no operation ran are still in the kernel.
        !flow.has_some() && (was_received || is_empty(&self.link))
    }

    /// Stores a waker for completions; readiness has its own.
    fn keep_waker(&self, flow: &mut Inflow, cx: &Context<'_>) {
        if matches!(*self.link, DrivenSocket::Completions { .. }) {
            keep_waker(&mut flow.waker, cx);
        }
    }

    /// Returns a consumed chunk to the pool.
    pub fn recycle(&self, chunk: Vec<u8>) {
        self.link.reactor().buffers.give(chunk);
    }

    #[cfg(test)]
    pub(crate) fn bytes_ahead(&self) -> usize {
        self.flow.borrow().waiting.iter().map(Vec::len).sum()
    }

    fn receive(
        link: &DrivenSocket,
        shared: &Rc<RefCell<Inflow>>,
        flow: &mut Inflow,
        cx: Option<&mut Context<'_>>,
    ) {
        match link {
            DrivenSocket::Completions { reactor, fd } => {
                if let Backend::Uring(uring) = &reactor.io
                    && flow.key.is_none()
                {
                    flow.key = Some(uring.borrow_mut().receive(fd, shared, flow.is_in_place()));
                }
            }
            DrivenSocket::Edges(source) => {
                let mut noop = Context::from_waker(Waker::noop());
                let cx = cx.unwrap_or(&mut noop);
                while source.poll_readable(cx).is_ready() && !flow.has_some() {
                    let pool = &source.reactor.buffers;
                    let mut read = pool.take();
                    source.reactor.count(|counts| counts.receives += 1);
                    match recv(&source.fd, spare_capacity(&mut read), RecvFlags::DONTWAIT) {
                        Ok((_, bytes)) => {
                            if bytes > 0 && bytes < READ_BYTES {
                                source.clear_after_short_read();
                            }
                            let chunk = pool.chunk_of(&mut read);
                            flow.receive(Ok(Some(chunk)), pool);
                        }
                        Err(Errno::AGAIN) => source.clear_readable(),
                        Err(Errno::INTR) => {}
                        Err(error) => {
                            flow.receive(Err(error.into()), pool);
                        }
                    }
                    pool.give(read);
                }
            }
        }
    }
}

/// Appends received bytes to `into`, at most [`READ_IN_PLACE_BYTES_MAX`].
fn receive_in_place(link: &DrivenSocket, into: &mut Vec<u8>) -> Result<usize, Errno> {
    let spare = into.spare_capacity_mut();
    let room = READ_IN_PLACE_BYTES_MAX;
    let spare = if let Some((spare, _)) = spare.split_at_mut_checked(room) { spare } else { spare };
    link.reactor().count(|counts| counts.receives += 1);
    let ((received, _), _) = recv(link, spare, RecvFlags::DONTWAIT)?;
    let bytes = received.len();
    // SAFETY: `recv` has written that many bytes after the existing bytes.
    unsafe { into.set_len(into.len() + bytes) };
    Ok(bytes)
}

/// True if the kernel has neither bytes nor an end for this socket.
fn is_empty(link: &DrivenSocket) -> bool {
    link.reactor().count(|counts| counts.receives += 1);
    let peeked = recv(link, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(peeked, Err(Errno::AGAIN))
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut flow = self.flow.borrow_mut();
        flow.waker = None;
        if let Some(key) = flow.key.take()
            && let Backend::Uring(uring) = &self.link.reactor().io
        {
            uring.borrow_mut().cancel(key);
        }
        let pool = &self.link.reactor().buffers;
        for chunk in flow.waiting.drain(..) {
            pool.is_taken(&chunk);
            pool.give(chunk);
        }
        flow.is_dropped = true;
    }
}
