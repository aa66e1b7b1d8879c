//! Listening sockets: one per shard on the same address, spread by the kernel (`SO_REUSEPORT`).

use forebay_net::Listener;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;

/// Connections that wait in the kernel until the shard accepts them.
const BACKLOG: i32 = 4_096;

/// Binds the first listening socket. Port 0 lets the kernel choose; the others then bind what it
/// chose. Unless the port `is_shared` with other processes, one of them that listens there already
/// is an error: the kernel would share out the connections without a word.
///
/// # Errors
/// What the kernel says, e.g. that the address is in use.
pub fn bind_first(address: SocketAddr, is_shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = socket(address)?;
    socket.set_reuse_port(is_shared)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    // Others are excluded when it begins to listen; from then on the next shards may join.
    socket.set_reuse_port(true)?;
    Ok(socket.into())
}

/// Binds the socket of another shard.
///
/// # Errors
/// What the kernel says.
pub fn bind_next(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    bind_first(address, true)
}

/// `TCP_NODELAY` is set here, because accepted sockets inherit it on Linux: one system call less a
/// connection.
fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Hands a bound socket to this shard's loop.
///
/// # Errors
/// What the loop says.
pub fn listen(bound: std::net::TcpListener) -> io::Result<Listener> {
    Listener::from_std(bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::TcpStream;

    fn loopback(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn a_port_is_shared_among_shards_and_with_others_only_on_purpose() {
        let first = bind_first(loopback(0), false).unwrap();
        let address = first.local_addr().unwrap();
        let everywhere = SocketAddr::from(([0, 0, 0, 0], address.port()));
        for other in [address, everywhere] {
            let refused = bind_first(other, false).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AddrInUse, "{other}");
        }
        let second = bind_next(address).unwrap();
        let clients: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
        let accepted =
            [&first, &second].map(|listener| std::iter::from_fn(|| listener.accept().ok()).count());
        assert_eq!(accepted[0] + accepted[1], clients.len());
        assert!(accepted.iter().all(|count| *count > 8), "{accepted:?}");
        drop((first, clients));
        assert!(bind_first(address, false).is_err(), "one shard listens");
        assert!(bind_first(address, true).is_ok());
        drop(second);
        assert!(bind_first(address, false).is_ok(), "connections that end hold no port");
    }
}
