//! The one outstanding read of a socket.
//!
//! `monoio` loses bytes when a read in flight is dropped, so a read that has started is kept until
//! it completes: across requests, and while the answer is relayed. That also shows at once when the
//! peer closes.

use super::BufferPool;
use super::buffer::LargeRead;
use monoio::BufResult;
use monoio::io::{AsyncReadRent, OwnedReadHalf};
use monoio::net::TcpStream;
use pin_project_lite::pin_project;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

type Half = OwnedReadHalf<TcpStream>;
type ReadDone = (Half, BufResult<usize, Vec<u8>>);

/// Reads a socket in chunks of at most one buffer; at most one read in flight and one chunk
/// waiting.
pub struct SocketReader {
    state: ReadState,
    slot: Pin<Box<dyn SocketRead>>,
    ahead: Option<io::Result<Vec<u8>>>,
    expects: Expects,
    pool: Rc<BufferPool>,
}

/// How much the next read may bring; says the size of its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expects {
    Little,
    Some,
    Much,
}

enum ReadState {
    Idle(Half),
    Reading,
    Ended,
}

/// Place of the read in flight: one allocation for all reads of a socket.
trait SocketRead {
    fn begin(self: Pin<&mut Self>, half: Half, buffer: Vec<u8>, large: Option<LargeRead>);
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ReadDone>;
}

pin_project! {
    struct Slot<F, M> {
        #[pin]
        read: Option<F>,
        make: M,
    }
}

impl<F, M> SocketRead for Slot<F, M>
where
    F: Future<Output = ReadDone>,
    M: Fn(Half, Vec<u8>, Option<LargeRead>) -> F,
{
    fn begin(self: Pin<&mut Self>, half: Half, buffer: Vec<u8>, large: Option<LargeRead>) {
        let mut this = self.project();
        let read = (this.make)(half, buffer, large);
        this.read.set(Some(read));
    }

    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ReadDone> {
        let mut this = self.project();
        let Some(read) = this.read.as_mut().as_pin_mut() else { return Poll::Pending };
        let done = ready!(read.poll(cx));
        this.read.set(None);
        Poll::Ready(done)
    }
}

impl SocketReader {
    /// Reads nothing yet.
    #[must_use]
    pub fn new(half: Half, pool: Rc<BufferPool>) -> Self {
        let slot = Box::pin(Slot { read: None, make: read_once });
        Self { state: ReadState::Idle(half), slot, ahead: None, expects: Expects::Some, pool }
    }

    /// From the next read on: will little come, and perhaps not for long? Then reads use small
    /// buffers.
    pub const fn expect_little(&mut self, little: bool) {
        self.expects = if little { Expects::Little } else { Expects::Some };
    }

    /// From the next read on: will much come that is thrown away at once? Then reads use large
    /// buffers.
    pub const fn expect_much(&mut self, much: bool) {
        self.expects = if much { Expects::Much } else { Expects::Some };
    }

    /// The next chunk; empty at the end of the stream, and from then on.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        match self.ahead.take() {
            Some(ready) => Poll::Ready(ready),
            None => self.poll_socket(cx),
        }
    }

    /// Keeps a read in flight while nobody wants the bytes yet. Holds at most one chunk: a socket
    /// whose bytes are not taken is not read further. True once a chunk (or the end) waits.
    pub fn poll_ahead(&mut self, cx: &mut Context<'_>) -> bool {
        if self.ahead.is_none()
            && let Poll::Ready(ready) = self.poll_socket(cx)
        {
            self.ahead = Some(ready);
        }
        self.ahead.is_some()
    }

    /// True when no byte and no end has arrived that was not taken. For a connection in the idle
    /// pool, anything else means that it is not to be used again.
    pub fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        !self.poll_ahead(&mut cx)
    }

    /// Takes back a chunk whose bytes are used up.
    pub fn recycle(&self, chunk: Vec<u8>) {
        self.pool.give(chunk);
    }

    fn poll_socket(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        if let ReadState::Idle(_) = self.state {
            self.begin();
        }
        let ReadState::Reading = self.state else {
            return Poll::Ready(Ok(Vec::new()));
        };
        let (half, (result, buffer)) = ready!(self.slot.as_mut().poll_read(cx));
        self.state = ReadState::Ended;
        match result {
            Ok(0) => {
                self.pool.give(buffer);
                Poll::Ready(Ok(Vec::new()))
            }
            Ok(_) => {
                self.state = ReadState::Idle(half);
                Poll::Ready(Ok(buffer))
            }
            Err(error) => {
                self.pool.give(buffer);
                Poll::Ready(Err(error))
            }
        }
    }

    fn begin(&mut self) {
        let ReadState::Idle(half) = std::mem::replace(&mut self.state, ReadState::Ended) else {
            return;
        };
        let large = match self.expects {
            Expects::Much => self.pool.take_large(),
            Expects::Little | Expects::Some => None,
        };
        let (buffer, large) = match large {
            Some((buffer, large)) => (buffer, Some(large)),
            None if self.expects == Expects::Little => (self.pool.take_small(), None),
            None => (self.pool.take(), None),
        };
        self.slot.as_mut().begin(half, buffer, large);
        self.state = ReadState::Reading;
    }
}

impl std::fmt::Debug for SocketReader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state {
            ReadState::Idle(_) => "idle",
            ReadState::Reading => "reading",
            ReadState::Ended => "ended",
        };
        formatter.debug_struct("SocketReader").field("state", &state).finish_non_exhaustive()
    }
}

async fn read_once(
    mut half: Half,
    buffer: Vec<u8>,
    _large: Option<LargeRead>,
) -> (Half, BufResult<usize, Vec<u8>>) {
    let result = half.read(buffer).await;
    (half, result)
}
