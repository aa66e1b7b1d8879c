//! Sockets, and connecting them.

use super::Receiver;
use super::Sender;
use super::Source;
use super::drivers::driven_socket::DrivenSocket;
use super::reactor::{self, Backend, Reactor};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};

/// A connected socket of this thread.
#[derive(Debug)]
pub struct Socket(DrivenSocket);

impl Socket {
    /// Registers a socket with this thread's loop.
    ///
    /// # Errors
    /// Outside of [`super::block_on`], or the registration failed.
    pub fn from_std(stream: TcpStream) -> io::Result<Self> {
        let reactor = reactor::current().ok_or(io::ErrorKind::Unsupported)?;
        Self::new(reactor, Rc::new(stream.into()))
    }

    /// With completions the operations own the descriptor, and nothing is registered. With edges
    /// the descriptor is registered for reads and writes.
    pub(crate) fn new(reactor: Rc<Reactor>, fd: Rc<OwnedFd>) -> io::Result<Self> {
        Ok(Self(match &reactor.io {
            Backend::Uring(_) => DrivenSocket::Completions { reactor, fd },
            Backend::Epoll(_) => DrivenSocket::Edges(Source::with(reactor, fd, PollFlags::IN)?),
        }))
    }

    /// Ends the connection from outside of its halves.
    #[must_use]
    pub fn closer(&self) -> SocketCloser {
        SocketCloser(match &self.0 {
            DrivenSocket::Completions { fd, .. } => Rc::downgrade(fd),
            DrivenSocket::Edges(source) => Rc::downgrade(&source.fd),
        })
    }

    /// Splits into both halves. The socket is closed when both are dropped.
    #[must_use]
    pub fn split(self) -> (Receiver, Sender) {
        let link = Rc::new(self.0);
        (Receiver::new(Rc::clone(&link)), Sender::new(link))
    }
}

/// Ends a connection from outside of its halves. Does not keep the socket open.
#[derive(Debug)]
pub struct SocketCloser(Weak<OwnedFd>);

impl SocketCloser {
    /// Shuts down both directions: tasks that wait for either half see the end of the connection.
    pub fn shut_down(&self) {
        if let Some(fd) = self.0.upgrade() {
            // Fails where the peer has ended the connection already.
            let _ = net::shutdown(&*fd, Shutdown::Both);
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Connects to an address. Dropping the future aborts.
///
/// # Errors
/// The connection failed.
pub async fn connect(address: SocketAddr) -> io::Result<Socket> {
    let reactor = reactor::current().ok_or(io::ErrorKind::Unsupported)?;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = Rc::new(net::socket_with(family, SocketType::STREAM, flags, None)?);
    match net::connect(&fd, &address) {
        Ok(()) => return Socket::new(reactor, fd),
        Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let source = Source::with(reactor, Rc::clone(&fd), PollFlags::OUT)?;
    loop {
        poll_fn(|cx| source.poll_writable(cx)).await;
        // Outer error: the call. Inner error: the connection.
        sockopt::socket_error(&fd)??;
        match net::getpeername(&fd) {
            Ok(_) => break,
            // A wake-up before the handshake ended: `SO_ERROR` is 0 in this state too.
            Err(Errno::NOTCONN) => source.clear_writable(),
            Err(error) => return Err(error.into()),
        }
    }
    let reactor = Rc::clone(&source.reactor);
    match &reactor.io {
        Backend::Uring(_) => Socket::new(reactor, fd),
        Backend::Epoll(_) => Ok(Socket(DrivenSocket::Edges(source))),
    }
}
