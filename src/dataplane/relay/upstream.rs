//! A connection to a worker.

use super::Watch;
use super::key::UpstreamKey;
use super::socket_options::set_options;
use forebay_base::{NanosSinceStart, is_out_of_sockets};
use forebay_link::{
    HandshakeOutcome, LinkReader, LinkWriter, Turnstile, link, secure, shake_hands,
};
use forebay_router::dispatch::RelayError;
use forebay_tls::{HandshakeFault, Session};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

/// A connection, idle or in use. Boxed: each request moves its connection several times, and
/// futures hold it more than once.
#[derive(Debug)]
pub struct Upstream {
    /// Bytes received and not used yet.
    pub input: Vec<u8>,
    /// Requests already answered on it.
    pub answered_count: u64,
    /// The worker that it is good for.
    pub key: UpstreamKey,
    pub(super) reader: LinkReader,
    pub(super) writer: LinkWriter,
    pub(super) idle_since: NanosSinceStart,
    /// For requests that a worker may have to read piece by piece.
    pub(super) is_for_long: bool,
}

impl Upstream {
    /// Connects, in plain text. The connection ends within seconds if the worker's host vanishes.
    ///
    /// # Errors
    /// [`RelayError::ConnectFailed`], [`RelayError::ConnectTimedOut`] or
    /// [`RelayError::OutOfSockets`].
    pub async fn connect(
        key: UpstreamKey,
        timeout: Duration,
        is_for_long: bool,
    ) -> Result<Box<Self>, RelayError> {
        let socket = match in_time(timeout, pin!(forebay_net::connect(key.address))).await {
            Some(Ok(socket)) => socket,
            Some(Err(error)) if is_out_of_sockets(&error) => return Err(RelayError::OutOfSockets),
            Some(Err(_)) => return Err(RelayError::ConnectFailed),
            None => return Err(RelayError::ConnectTimedOut),
        };
        set_options(&socket, is_for_long).map_err(|_| RelayError::ConnectFailed)?;
        let (reader, writer) = link(socket, None);
        Ok(Box::new(Self {
            input: Vec::new(),
            answered_count: 0,
            key,
            reader,
            writer,
            idle_since: NanosSinceStart(0),
            is_for_long,
        }))
    }

    /// Both directions, for bytes that are no HTTP any more.
    pub const fn halves(&mut self) -> Halves<'_> {
        Halves { reader: &mut self.reader, writer: &mut self.writer }
    }

    /// Goes on over TLS.
    ///
    /// # Errors
    /// [`HandshakeFault`].
    pub async fn shake_hands(
        &mut self,
        session: Session,
        timeout: Duration,
        turnstile: &Turnstile,
    ) -> Result<HandshakeOutcome, HandshakeFault> {
        let Self { reader, writer, .. } = self;
        secure(reader, writer, session, Vec::new());
        let shaken = in_time(timeout, pin!(shake_hands(reader, writer, turnstile))).await;
        shaken.unwrap_or(Err(HandshakeFault::TimedOut))
    }
}

/// The two directions of a connection.
#[derive(Debug)]
pub struct Halves<'a> {
    /// Where its bytes come from.
    pub reader: &'a mut LinkReader,
    /// Where bytes for it go.
    pub writer: &'a mut LinkWriter,
}

/// The result of the work, if it ends in time. The work is not moved: a future that is moved lies
/// twice in each future that waits for it.
async fn in_time<T>(timeout: Duration, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut late = pin!(forebay_net::sleep(timeout));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => late.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Works as long as the client waits for the result. The work is not moved, as in `in_time`.
///
/// # Errors
/// An error of the work, or of `watch`.
pub async fn while_wanted<T>(
    watch: &mut impl Watch,
    mut work: Pin<&mut impl Future<Output = Result<T, RelayError>>>,
) -> Result<T, RelayError> {
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => watch.poll_lost(cx).map(Err),
    })
    .await
}
