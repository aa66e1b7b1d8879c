//! One connection to a worker.

use super::Watch;
use crate::ingress::{BufferPool, SocketReader};
use forebay_base::limits::{
    KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, UNACKNOWLEDGED_TIME_MAX,
};
use forebay_base::{NanosSinceStart, is_out_of_sockets};
use forebay_ring::with_descriptor;
use forebay_router::dispatch::RelayError;
use monoio::io::{OwnedWriteHalf, Splitable};
use monoio::net::TcpStream;
use rustix::net::sockopt;
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

/// Two ways in which a host vanishes: while it owes the router nothing but an answer, which
/// keep-alive finds out, and while bytes are on their way, of which the user time-out says how long
/// they may be (tcp(7)). The kernel takes bytes that a worker does not read for such bytes. A
/// worker that is busy for seconds must not lose a long request, so there keep-alive stands alone,
/// and health checks find out the rest.
fn set_options(stream: &TcpStream, is_for_long: bool) -> rustix::io::Result<()> {
    with_descriptor(stream, |socket| {
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
        if is_for_long {
            return Ok(());
        }
        let millis = u32::try_from(UNACKNOWLEDGED_TIME_MAX.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(socket, millis)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_vanishes_ends_its_connections_within_seconds() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = monoio::RuntimeBuilder::<monoio::LegacyDriver>::new().build();
        runtime.unwrap().block_on(async {
            for (is_for_long, user_timeout) in [(false, 8_000), (true, 0)] {
                let stream = TcpStream::connect_addr(address).await.unwrap();
                set_options(&stream, is_for_long).unwrap();
                with_descriptor(&stream, |socket| {
                    assert!(sockopt::tcp_nodelay(socket).unwrap());
                    assert!(sockopt::socket_keepalive(socket).unwrap());
                    assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), user_timeout);
                    let probes = sockopt::tcp_keepcnt(socket).unwrap();
                    let silence = sockopt::tcp_keepidle(socket).unwrap()
                        + sockopt::tcp_keepintvl(socket).unwrap() * probes;
                    assert!(silence <= Duration::from_secs(10), "{silence:?}");
                });
            }
        });
    }
}
