//! Which requests may go on a connection to a worker.

use forebay_base::WorkerIndex;
use std::net::SocketAddr;

/// The destination of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamKey {
    /// Address of the connection.
    pub address: SocketAddr,
    /// Over TLS: the worker by the name that was checked. Workers may share an address.
    pub secured_for: Option<WorkerIndex>,
}
