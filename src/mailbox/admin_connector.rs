//! Calls of the admin API on the port of clients, as a shard sees them: paths that it passes on,
//! and the connector to the control plane.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

/// Paths that name workers.
const PATHS: [&[u8]; 4] = [b"/add_worker", b"/remove_worker", b"/list_workers", b"/workers"];
const ONE_WORKER: &[u8] = b"/workers/";

/// Connector from a shard to the admin API. The control plane implements it: the data plane knows
/// no runtime but its own.
pub trait AdminConnector: Debug + Send + Sync {
    /// A socket for a single call and its answer.
    ///
    /// # Errors
    /// [`AdminConnectError`].
    fn open(&self, peer: SocketAddr) -> Result<UnixStream, AdminConnectError>;
}

/// Reason for which a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminConnectError {
    /// `CLIENT_PORT_CALLS_MAX` calls are under way, or there is no socket.
    Full,
    /// This process does not answer the admin API any more.
    Closed,
}

/// May this path be called on the port of clients?
#[must_use]
pub fn is_on_client_port(path: &[u8]) -> bool {
    let one = path.strip_prefix(ONE_WORKER);
    PATHS.contains(&path) || one.is_some_and(|id| !id.is_empty() && !id.contains(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::is_on_client_port;

    #[test]
    fn only_workers_are_called_by_the_port_of_clients() {
        for path in ["/add_worker", "/remove_worker", "/list_workers", "/workers", "/workers/a:1"] {
            assert!(is_on_client_port(path.as_bytes()), "{path}");
        }
        for path in [
            "/workers/",
            "/workers/a/drain",
            "/workers/a/engine/metrics",
            "/admin/reload",
            "/engines/flush_cache",
            "/metrics",
            "/v1/models",
            "/add_worker/",
        ] {
            assert!(!is_on_client_port(path.as_bytes()), "{path}");
        }
    }
}
