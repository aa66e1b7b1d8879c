//! Listening sockets of an engine's HTTP server.

use super::config::EngineError;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpSocket};

/// Opens a listening socket.
pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, EngineError> {
    let open = || {
        let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    open().map_err(|error| EngineError::Listen {
        address: address.to_string(),
        problem: error.to_string(),
    })
}

const BACKLOG: u32 = 4_096;
