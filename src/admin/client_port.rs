//! Admin API calls on the client port, for scripts that know only that address. A shard relays the
//! bytes of one call and of its response through a socket pair, so TLS works too. Such a call takes
//! no connection of the admin API's own callers, and needs a token whatever it requests.

use super::access::Access;
use axum::http::request::Parts;
use axum::response::Response;
use forebay_base::limits::CLIENT_PORT_CALLS_MAX;
use forebay_mailbox::{AdminConnectError, AdminConnector};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tracing::warn;

/// Shortest time between two log lines about refused calls.
const REFUSAL_LOG_PERIOD: Duration = Duration::from_secs(10);

/// The side that shards have.
#[derive(Debug)]
pub struct ClientPortConnector {
    callers: mpsc::Sender<ClientCaller>,
    /// Permits of calls under way, from the open to the end: the channel only has waiting calls.
    permits: Arc<Semaphore>,
}

/// Calls as the admin API receives them.
#[derive(Debug)]
pub struct ClientCallers(mpsc::Receiver<ClientCaller>);

/// A call and the socket for its response.
#[derive(Debug)]
pub(crate) struct ClientCaller {
    pub(crate) stream: UnixStream,
    pub(crate) peer: SocketAddr,
    /// Released when the call has ended.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Looks at each call before its body is read.
pub(crate) struct ClientGate {
    access: Arc<Access>,
    /// Time of the last log line about a refusal.
    logged_at: Cell<Option<Instant>>,
}

impl ClientGate {
    pub(crate) const fn new(access: Arc<Access>) -> Self {
        Self { access, logged_at: Cell::new(None) }
    }

    /// The response to a call that is not authorized. Refusals are logged at most once per
    /// `REFUSAL_LOG_PERIOD`: guesses at the token must not fill the log.
    pub(crate) fn refuse(&self, caller: &str, head: &Parts, now: Instant) -> Option<Response> {
        let refused = self.access.refuse_client(head)?;
        if self.logged_at.get().is_none_or(|at| now.duration_since(at) >= REFUSAL_LOG_PERIOD) {
            self.logged_at.set(Some(now));
            let path = head.uri.path();
            let status = refused.status().as_u16();
            warn!(
                caller,
                path, status, "a call of the admin API was refused; see `admin_token_file`"
            );
        }
        Some(refused)
    }
}

/// Makes the connector of the shards, and the receiver of their calls.
#[must_use]
pub fn client_port() -> (ClientPortConnector, ClientCallers) {
    let (callers, called) = mpsc::channel(CLIENT_PORT_CALLS_MAX);
    let permits = Arc::new(Semaphore::new(CLIENT_PORT_CALLS_MAX));
    (ClientPortConnector { callers, permits }, ClientCallers(called))
}

impl AdminConnector for ClientPortConnector {
    fn open(&self, peer: SocketAddr) -> Result<UnixStream, AdminConnectError> {
        let permit =
            Arc::clone(&self.permits).try_acquire_owned().map_err(|_| AdminConnectError::Full)?;
        let (near, stream) = pair().map_err(|_| AdminConnectError::Full)?;
        let sent = self.callers.try_send(ClientCaller { stream, peer, permit });
        sent.map_err(|refused| match refused {
            TrySendError::Full(_) => AdminConnectError::Full,
            TrySendError::Closed(_) => AdminConnectError::Closed,
        })?;
        Ok(near)
    }
}

fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let pair = UnixStream::pair()?;
    pair.0.set_nonblocking(true)?;
    pair.1.set_nonblocking(true)?;
    Ok(pair)
}

impl ClientCallers {
    pub(crate) async fn next(&mut self) -> Option<ClientCaller> {
        self.0.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn calls_under_way_are_bounded() {
        let (connector, mut callers) = client_port();
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let open: Vec<_> =
            (0..CLIENT_PORT_CALLS_MAX).map(|_| connector.open(peer).unwrap()).collect();
        assert_eq!(connector.open(peer).unwrap_err(), AdminConnectError::Full);
        let caller = callers.0.try_recv().unwrap();
        assert_eq!(connector.open(peer).unwrap_err(), AdminConnectError::Full, "it is under way");
        drop(caller);
        assert!(connector.open(peer).is_ok());
        drop((open, callers));
        let (connector, callers) = client_port();
        drop(callers);
        assert_eq!(connector.open(peer).unwrap_err(), AdminConnectError::Closed);
    }
}
