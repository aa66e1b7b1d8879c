//! A client connection: reads, writes, and detection of the client's disconnect.

use super::{ConnectedClient, Deadline};
use forebay_base::limits::READ_BYTES;
use forebay_base::{Clock, NanosSinceStart};
use forebay_link::{
    HandshakeOutcome, LinkReader, LinkWriter, Turnstile, link, secure, shake_hands,
};
use forebay_net::{BufferPool, Socket};
use forebay_router::dispatch::RelayError;
use forebay_tls::{HandshakeFault, Session};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Most bytes that are read ahead from a client that sends while its request is served.
const INPUT_AHEAD_BYTES_MAX: usize = 4 * READ_BYTES;

/// A client connection and its unparsed input.
#[derive(Debug)]
pub struct Conn {
    /// Bytes received and not yet consumed.
    pub input: Vec<u8>,
    /// The client of this connection.
    pub client: ConnectedClient,
    reader: LinkReader,
    writer: LinkWriter,
    deadline: Deadline,
    pool: Rc<BufferPool>,
    /// The client has closed, or does not read: nothing more is sent.
    closed: bool,
}

/// Reason why no more bytes came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// The client closed its side, or the connection broke.
    Closed,
    /// No byte came in time.
    TimedOut,
}

/// Reason for a failed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// The client has disconnected.
    Gone,
    /// The client does not read.
    Stalled,
}

impl From<WriteEnd> for RelayError {
    fn from(end: WriteEnd) -> Self {
        match end {
            WriteEnd::Gone => Self::ClientGone,
            WriteEnd::Stalled => Self::ClientStalled,
        }
    }
}

impl Conn {
    /// Takes over a socket that was accepted from `peer`, in plain text.
    #[must_use]
    pub fn new(socket: Socket, peer: SocketAddr, clock: Clock) -> Self {
        let (reader, writer) = link(socket, None);
        let deadline = Deadline::new(clock);
        let pool = forebay_net::buffers();
        let client = ConnectedClient::new(peer);
        Self { input: Vec::new(), client, reader, writer, deadline, pool, closed: false }
    }

    /// Scheme of the URLs that the client asks for.
    #[must_use]
    pub const fn scheme(&self) -> &'static str {
        if self.reader.is_secure() { "https" } else { "http" }
    }

    /// Continues over TLS, beginning with the unconsumed input.
    pub fn secure(&mut self, session: Session) {
        let received = std::mem::take(&mut self.input);
        secure(&mut self.reader, &mut self.writer, session, received);
    }

    /// Handshakes before the deadline; returns at once without TLS.
    ///
    /// # Errors
    /// [`HandshakeFault`]. After [`HandshakeFault::NotTls`] the connection continues in plain text.
    pub async fn shake_hands(
        &mut self,
        turnstile: &Turnstile,
    ) -> Result<HandshakeOutcome, HandshakeFault> {
        let Self { reader, writer, deadline, .. } = self;
        let shaken = {
            let mut shaking = pin!(shake_hands(reader, writer, turnstile));
            let in_time = poll_fn(|cx| match shaking.as_mut().poll(cx) {
                Poll::Ready(shaken) => Poll::Ready(shaken),
                Poll::Pending => deadline.poll(cx).map(|()| Err(HandshakeFault::TimedOut)),
            });
            in_time.await
        };
        if shaken == Err(HandshakeFault::NotTls) {
            self.input = self.reader.into_plain();
            self.writer.into_plain();
        }
        shaken
    }

    /// Sets the deadline of the current wait.
    pub const fn wait_at_most(&mut self, after: Duration) {
        self.deadline.set(after);
    }

    /// Moves the deadline to `at`, unless it is earlier already.
    pub fn wait_no_longer_than(&mut self, at: NanosSinceStart) {
        self.deadline.set_at_most(at);
    }

    pub(super) const fn wait_until(&mut self, at: NanosSinceStart) {
        self.deadline.set_at(at);
    }

    pub(super) fn now(&self) -> NanosSinceStart {
        self.deadline.now()
    }

    /// Waits for at least another byte of input.
    ///
    /// # Errors
    /// [`ReadEnd`] if the client has closed, or no byte came before the deadline.
    pub async fn fill(&mut self) -> Result<(), ReadEnd> {
        poll_fn(|cx| {
            match self.reader.poll_in_place(cx, &mut self.input) {
                Poll::Ready(Ok(1..)) => return Poll::Ready(Ok(())),
                Poll::Ready(_) => {
                    self.closed = true;
                    return Poll::Ready(Err(ReadEnd::Closed));
                }
                Poll::Pending => {}
            }
            self.deadline.poll(cx).map(|()| Err(ReadEnd::TimedOut))
        })
        .await
    }

    /// Announces a body of that length. A long body, and the bytes after it, are received in place.
    pub fn expect_body(&mut self, bytes: usize) {
        self.reader.set_in_place(bytes > READ_BYTES);
    }

    /// Ready once the client has closed. Input that arrives meanwhile is buffered, up to a bound.
    /// At the bound nothing is read, so the close of such a client shows when the router writes.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.closed && self.input.len() < INPUT_AHEAD_BYTES_MAX {
            match self.reader.poll_chunk(cx) {
                Poll::Ready(Ok(chunk)) if !chunk.is_empty() => {
                    self.pool.append(&mut self.input, chunk);
                }
                Poll::Ready(_) => self.closed = true,
                Poll::Pending => break,
            }
        }
        if self.closed { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Both halves and the deadline, for bytes that are no HTTP.
    pub(crate) const fn halves(&mut self) -> (&mut LinkReader, &mut LinkWriter, &mut Deadline) {
        (&mut self.reader, &mut self.writer, &mut self.deadline)
    }

    /// Ready once the deadline has passed.
    pub fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.deadline.poll(cx)
    }

    /// Sends all of `bytes` before the deadline and returns a consumed buffer. Polls `meanwhile`
    /// too, so that the worker's next bytes are already in flight.
    ///
    /// # Errors
    /// [`WriteEnd`] if the client has disconnected or does not read.
    pub async fn write_while(
        &mut self,
        bytes: Vec<u8>,
        mut meanwhile: impl FnMut(&mut Context<'_>),
    ) -> Result<Vec<u8>, WriteEnd> {
        let Self { input, reader, writer, deadline, pool, closed, .. } = self;
        writer.start(bytes);
        poll_fn(|cx| {
            if let Poll::Ready(sent) = writer.poll_sent(cx) {
                return Poll::Ready(sent.map_err(|_| WriteEnd::Gone));
            }
            meanwhile(cx);
            // A client that closed while the socket has no room will not read the rest.
            while !*closed && input.len() < INPUT_AHEAD_BYTES_MAX {
                match reader.poll_chunk(cx) {
                    Poll::Ready(Ok(chunk)) if !chunk.is_empty() => pool.append(input, chunk),
                    Poll::Ready(_) => *closed = true,
                    Poll::Pending => break,
                }
            }
            if *closed {
                return Poll::Ready(Err(WriteEnd::Gone));
            }
            deadline.poll(cx).map(|()| {
                *closed = true;
                Err(WriteEnd::Stalled)
            })
        })
        .await
    }

    /// Sends all of `bytes` before the deadline; the client may have closed its sending side.
    ///
    /// # Errors
    /// [`WriteEnd`] if the client has disconnected or does not read.
    pub async fn write(&mut self, bytes: Vec<u8>) -> Result<(), WriteEnd> {
        let Self { writer, deadline, pool, closed, .. } = self;
        writer.start(bytes);
        let buffer = poll_fn(|cx| {
            if let Poll::Ready(sent) = writer.poll_sent(cx) {
                return Poll::Ready(sent.map_err(|_| WriteEnd::Gone));
            }
            deadline.poll(cx).map(|()| {
                *closed = true;
                Err(WriteEnd::Stalled)
            })
        })
        .await?;
        pool.give(buffer);
        Ok(())
    }

    /// An empty buffer for a response of the router; [`Conn::write`] returns it to the pool.
    #[must_use]
    pub fn buffer(&self) -> Vec<u8> {
        self.pool.take_small()
    }

    /// An empty buffer with room for that many bytes.
    #[must_use]
    pub fn buffer_for(&self, bytes: usize) -> Vec<u8> {
        self.pool.take_for(bytes)
    }

    /// Returns an unused buffer to the pool.
    pub fn recycle(&self, buffer: Vec<u8>) {
        self.pool.give(buffer);
    }

    /// Drops the first `bytes` of the input. An emptied input returns to the pool: it may be large,
    /// and the next read brings its own buffer.
    pub fn consume(&mut self, bytes: usize) {
        if bytes < self.input.len() {
            self.input.drain(..bytes);
        } else {
            self.pool.give(std::mem::take(&mut self.input));
        }
    }

    /// Sends close_notify to a TLS client, so that the end is not taken for truncation.
    pub fn send_close_notify(&mut self) {
        if !self.closed {
            self.writer.send_close_notify();
        }
    }

    /// The client has not taken the end of its answer yet.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        !self.closed && self.writer.is_behind()
    }

    /// Waits until the kernel has all bytes of the client, or for the deadline.
    ///
    /// # Errors
    /// [`WriteEnd`]: the rest is given up.
    pub async fn flush(&mut self) -> Result<(), WriteEnd> {
        let Self { writer, deadline, closed, .. } = self;
        if *closed {
            return Err(WriteEnd::Gone);
        }
        if writer.is_flushed() {
            return Ok(());
        }
        let flushed = poll_fn(|cx| match writer.poll_flushed(cx) {
            Poll::Ready(flushed) => Poll::Ready(flushed.map_err(|_| WriteEnd::Gone)),
            Poll::Pending => deadline.poll(cx).map(|()| Err(WriteEnd::Stalled)),
        });
        let flushed = flushed.await;
        *closed = flushed.is_err();
        flushed
    }

    /// Closes the sending side; false if the client has closed already.
    pub(super) fn close_sending(&mut self) -> bool {
        !self.closed && self.writer.close().is_ok()
    }
}
