//! One connection to a worker.

use super::Watch;
use super::socket_options::set_options;
use forebay_base::{NanosSinceStart, is_out_of_sockets};
use forebay_net::{Receiver, Sender};
use forebay_router::dispatch::RelayError;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// A connection, idle or in use.
#[derive(Debug)]
pub struct Upstream {
    /// Bytes received and not used yet.
    pub input: Vec<u8>,
    /// Requests already answered on it.
    pub answered_count: u64,
    pub(super) reader: Receiver,
    pub(super) writer: Sender,
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
        is_for_long: bool,
    ) -> Result<Self, RelayError> {
        let mut connecting = pin!(Self::connect(address, timeout, is_for_long));
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
        is_for_long: bool,
    ) -> Result<Self, RelayError> {
        let mut connecting = pin!(forebay_net::connect(address));
        let mut late = pin!(forebay_net::sleep(timeout));
        let connected = poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(connected) => Poll::Ready(Some(connected)),
            Poll::Pending => late.as_mut().poll(cx).map(|()| None),
        });
        let socket = match connected.await {
            Some(Ok(socket)) => socket,
            Some(Err(error)) if is_out_of_sockets(&error) => return Err(RelayError::OutOfSockets),
            Some(Err(_)) => return Err(RelayError::ConnectFailed),
            None => return Err(RelayError::ConnectTimedOut),
        };
        set_options(&socket, is_for_long).map_err(|_| RelayError::ConnectFailed)?;
        let (reader, writer) = socket.split();
        Ok(Self {
            input: Vec::new(),
            answered_count: 0,
            reader,
            writer,
            idle_since: NanosSinceStart(0),
            is_for_long,
        })
    }
}
