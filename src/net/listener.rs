//! A socket that accepts connections.

use super::{Socket, Source};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::net::TcpListener;
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

    /// The next connection.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Socket>> {
        let Self(source) = self;
        while source.poll_readable(cx).is_ready() {
            match accept_with(&source.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => {
                    return Poll::Ready(Socket::new(Rc::clone(&source.reactor), Rc::new(fd)));
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
