//! Listening sockets: a socket per shard on the same address, balanced by the kernel
//! (`SO_REUSEPORT`).

use forebay_net::{Listener, Socket as Accepted};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

/// Connections that wait in the kernel until the shard accepts them.
const BACKLOG: i32 = 4_096;

/// Binds the first listening socket. For port 0 the kernel chooses a port, which the other sockets
/// then bind. Unless the port `is_shared` with other processes, a process that already listens
/// there is an error: the kernel would silently distribute connections between both.
///
/// # Errors
/// The socket cannot be bound, e.g. because the address is in use.
pub fn bind_first(address: SocketAddr, is_shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = bound(address, is_shared)?;
    socket.listen(BACKLOG)?;
    // Other processes are excluded at `listen`; from then on the next shards may join.
    socket.set_reuse_port(true)?;
    Ok(socket.into())
}

/// Binds and closes a socket, as a look at the address. The socket does not listen: on a shared
/// port, connections of clients would come to it.
///
/// # Errors
/// As [`bind_first`].
pub fn try_bind(address: SocketAddr, is_shared: bool) -> io::Result<()> {
    bound(address, is_shared).map(drop)
}

fn bound(address: SocketAddr, is_shared: bool) -> io::Result<Socket> {
    let socket = socket(address)?;
    socket.set_reuse_port(is_shared)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Binds the socket of another shard.
///
/// # Errors
/// The socket cannot be bound.
pub fn bind_next(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    bind_first(address, true)
}

/// Sets `TCP_NODELAY` here, because accepted sockets inherit it on Linux, which saves a system call
/// per connection.
fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A bound socket and its protocol.
#[derive(Debug)]
pub struct BoundListener {
    /// A listening, non-blocking socket.
    pub socket: std::net::TcpListener,
    /// Clients begin with a TLS handshake.
    pub is_tls: bool,
}

/// An accepted connection with its peer.
#[derive(Debug)]
pub struct NewConnection {
    /// The socket that was accepted.
    pub socket: Accepted,
    /// Peer address of the connection.
    pub peer: SocketAddr,
    /// The client begins with a TLS handshake.
    pub is_tls: bool,
}

/// All listening sockets of a shard, in its loop.
#[derive(Debug)]
pub struct Listeners {
    all: Vec<(Listener, bool)>,
    /// Index of the listener to poll first: rotates for fairness.
    next: usize,
}

impl Listeners {
    /// Registers bound sockets with this shard's loop.
    ///
    /// # Errors
    /// The registration failed.
    pub fn new(bound: Vec<BoundListener>) -> io::Result<Self> {
        let listen = |bound: BoundListener| Ok((Listener::from_std(bound.socket)?, bound.is_tls));
        Ok(Self { all: bound.into_iter().map(listen).collect::<io::Result<_>>()?, next: 0 })
    }

    /// Refuses further connections. Connections that have begun can still be accepted.
    ///
    /// # Errors
    /// The kernel refuses the filter.
    pub fn begin_none(&self) -> io::Result<()> {
        self.all.iter().try_for_each(|(listener, _)| listener.begin_none())
    }

    /// The next connection of any listener.
    ///
    /// # Errors
    /// The kernel refuses to accept.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<NewConnection>> {
        let (before, from) = self.all.split_at(self.next.min(self.all.len()));
        for (listener, is_tls) in from.iter().chain(before) {
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                self.next = (self.next + 1) % self.all.len().max(1);
                let is_tls = *is_tls;
                let arrival = |(socket, peer)| NewConnection { socket, peer, is_tls };
                return Poll::Ready(accepted.map(arrival));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::TcpStream;

    fn loopback(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    /// Issue 39: a port that another router shares was in use for the doctor, and `serve` starts.
    #[test]
    fn a_look_at_a_port_sees_what_a_start_would_see() {
        let first = bind_first(loopback(0), false).unwrap();
        let address = first.local_addr().unwrap();
        assert_eq!(try_bind(address, false).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(try_bind(address, true).is_ok());
        drop(first);
        assert!(try_bind(address, false).is_ok());
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
