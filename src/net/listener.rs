//! A socket that accepts connections.

use super::{Socket, Source};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::task::{Context, Poll};

/// A listening socket of this thread.
#[derive(Debug)]
pub struct Listener(Source);

impl Listener {
    /// Takes a bound socket, which does not block, into this thread's loop.
    ///
    /// # Errors
    /// As [`Source::new`].
    pub fn from_std(bound: TcpListener) -> io::Result<Self> {
        Source::new(bound.into()).map(Self)
    }

    /// The next connection, and the address at its other end. The kernel tells it with the
    /// connection, without a further call.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>> {
        let Self(source) = self;
        while source.poll_readable(cx).is_ready() {
            match acceptfrom_with(&source.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((fd, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    let from = from.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
                    let socket = Socket::new(Rc::clone(&source.reactor), Rc::new(fd));
                    return Poll::Ready(socket.map(|socket| (socket, from)));
                }
                Err(Errno::AGAIN) => source.clear_readable(),
                // Gone again before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        Poll::Pending
    }
}
