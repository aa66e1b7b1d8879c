//! The router as its admin API shows it.

use super::{Client, Reply};
use forebay::server::ServerHandle;
use std::net::SocketAddr;

/// A loopback address whose port the system chooses.
pub(crate) fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// The answer to a GET.
pub(crate) fn admin(handle: &ServerHandle, path: &str) -> Reply {
    let mut client = Client::connect(handle.admin);
    client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
    client.reply()
}

/// Workers that take traffic.
pub(crate) fn usable(handle: &ServerHandle) -> usize {
    admin(handle, "/workers").text().matches("\"up\"").count()
}

/// Sum of all samples whose line starts with `name`.
pub(crate) fn metric(handle: &ServerHandle, name: &str) -> f64 {
    let text = admin(handle, "/metrics").text();
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
