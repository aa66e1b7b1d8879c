//! Listening sockets: one per shard on the same address, spread by the kernel (`SO_REUSEPORT`).

use monoio::net::TcpListener;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;

/// Connections that wait in the kernel until the shard accepts them.
const BACKLOG: i32 = 4_096;

/// Binds one listening socket. Port 0 lets the kernel choose; the next shards then bind what it chose.
/// `TCP_NODELAY` is set here, because accepted sockets inherit it on Linux: one system call less a connection.
///
/// # Errors
/// What the kernel says, e.g. that the address is in use by a process that does not share it.
pub fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Hands a bound socket to this shard's runtime.
///
/// # Errors
/// What the runtime says.
pub fn listen(bound: std::net::TcpListener) -> io::Result<TcpListener> {
    TcpListener::from_std(bound)
}
