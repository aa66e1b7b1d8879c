//! One connection to a worker.

use super::Watch;
use super::socket_options::set_options;
use crate::ingress::{BufferPool, SocketReader};
use forebay_base::{NanosSinceStart, is_out_of_sockets};
use forebay_router::dispatch::RelayError;
use monoio::io::{OwnedWriteHalf, Splitable};
use monoio::net::TcpStream;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// A connection, idle or in use.
#[derive(Debug)]
pub struct Upstream {
    /// Bytes received and not used yet.
    pub input: Vec<u8>,
    /// Requests already answered on it.
    pub answered_count: u64,
    pub(super) reader: SocketReader,
    pub(super) writer: OwnedWriteHalf<TcpStream>,
    pub(super) idle_since: NanosSinceStart,
    /// For requests that a worker may have to read piece by piece.
    pub(super) is_for_long: bool,
}

impl Upstream {
    /// Connects as [`Self::connect`] does, as long as somebody wants it.
    ///
    /// # Errors
    /// The same, or what `watch` says.
    pub async fn connect_while(
        watch: &mut impl Watch,
        address: SocketAddr,
        timeout: Duration,
        buffers: &Rc<BufferPool>,
        is_for_long: bool,
    ) -> Result<Self, RelayError> {
        let mut connecting = pin!(Self::connect(address, timeout, buffers, is_for_long));
        poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(connected) => Poll::Ready(connected),
            Poll::Pending => watch.poll_lost(cx).map(Err),
        })
        .await
    }

    /// Connects. The connection ends within seconds if the worker's host vanishes.
    ///
    /// # Errors
    /// [`RelayError::ConnectFailed`], [`RelayError::ConnectTimedOut`] or
    /// [`RelayError::OutOfSockets`].
    pub async fn connect(
        address: SocketAddr,
        timeout: Duration,
        buffers: &Rc<BufferPool>,
        is_for_long: bool,
    ) -> Result<Self, RelayError> {
        let stream = match monoio::time::timeout(timeout, TcpStream::connect_addr(address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if is_out_of_sockets(&error) => return Err(RelayError::OutOfSockets),
            Ok(Err(_)) => return Err(RelayError::ConnectFailed),
            Err(_) => return Err(RelayError::ConnectTimedOut),
        };
        set_options(&stream, is_for_long).map_err(|_| RelayError::ConnectFailed)?;
        let (read, writer) = stream.into_split();
        Ok(Self {
            input: Vec::new(),
            answered_count: 0,
            reader: SocketReader::new(read, Rc::clone(buffers)),
            writer,
            idle_since: NanosSinceStart(0),
            is_for_long,
        })
    }
}
