//! Which requests may go on a connection to a worker.

use forebay_base::WorkerIndex;
use std::net::SocketAddr;

/// Whom a connection is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamKey {
    /// The address that it leads to.
    pub address: SocketAddr,
    /// Over TLS: the worker whose name was checked. Others may have the same address.
    pub secured_for: Option<WorkerIndex>,
}
