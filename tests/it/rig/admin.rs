//! The router as its admin API shows it.

use super::{Reply, truth};
use forebay::server::ServerHandle;
use std::net::SocketAddr;

/// A loopback address whose port the system chooses.
pub(crate) fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// The answer to a GET.
pub(crate) fn admin(handle: &ServerHandle, path: &str) -> Reply {
    truth::get(handle.admin, path)
}

/// Workers that take traffic.
pub(crate) fn usable(handle: &ServerHandle) -> usize {
    admin(handle, "/workers").text().matches("\"up\"").count()
}

/// Sum of all samples whose line starts with `name`.
pub(crate) fn metric(handle: &ServerHandle, name: &str) -> f64 {
    truth::metric(handle.admin, name)
}
