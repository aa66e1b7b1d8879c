//! A kept connection of a client: sends a request, reads one answer.

use crate::answer::{AnswerReader, Part};
use crate::poll::{Poller, Token};
use crate::stub::written;
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

/// A connection, with the request that a socket may not have taken whole.
pub struct Connection {
    stream: TcpStream,
    token: Token,
    reader: AnswerReader,
    request: Rc<[u8]>,
    sent_bytes: usize,
}

impl Connection {
    /// Ready sockets are reported by `number`.
    ///
    /// # Errors
    /// As the kernel reports them.
    pub fn open(address: SocketAddr, poller: &Poller, number: u32) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let token = Token::Client(number);
        poller.add(&stream, token)?;
        let reader = AnswerReader::default();
        Ok(Self { stream, token, reader, request: Rc::default(), sent_bytes: 0 })
    }

    /// Sends what the socket takes; [`receive`](Self::receive) sends the rest.
    ///
    /// # Errors
    /// As the kernel reports them.
    pub fn send(&mut self, poller: &Poller, request: Rc<[u8]>) -> io::Result<()> {
        self.sent_bytes = written(&self.stream, &request)?;
        let is_whole = self.sent_bytes == request.len();
        self.request = request;
        if is_whole { Ok(()) } else { poller.await_room(&self.stream, self.token, true) }
    }

    /// Reads once, and hands the parts of the answer to `part`. True when the answer is complete.
    ///
    /// # Errors
    /// The connection was closed, or the answer is no answer.
    pub fn receive(
        &mut self,
        poller: &Poller,
        scratch: &mut [u8],
        part: impl FnMut(Part<'_>),
    ) -> io::Result<bool> {
        self.flush(poller)?;
        let count = match self.stream.read(scratch) {
            Ok(0) => return Err(io::Error::other("a connection was closed before its answer")),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        self.reader.feed(&scratch[..count], part)
    }

    /// Status of the last head.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.reader.status
    }

    fn flush(&mut self, poller: &Poller) -> io::Result<()> {
        if self.sent_bytes == self.request.len() {
            return Ok(());
        }
        self.sent_bytes += written(&self.stream, &self.request[self.sent_bytes..])?;
        if self.sent_bytes < self.request.len() {
            return Ok(());
        }
        poller.await_room(&self.stream, self.token, false)
    }
}
