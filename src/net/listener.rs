//! A socket that accepts connections.

use super::Socket;
use super::Source;
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{SockFilter, SockRef};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::task::{Context, Poll};

/// A classic BPF filter, which sees TCP headers: drops packets with SYN and without ACK.
fn no_syn() -> [SockFilter; 5] {
    let step = |code, skipped_if_not, operand| SockFilter::new(code, 0, skipped_if_not, operand);
    [
        // Byte 13 contains the flags.
        step(0x30, 0, 13),
        step(0x54, 0, 0x12),
        // SYN alone continues with the next step, other packets with the last step.
        step(0x15, 1, 0x02),
        step(0x06, 0, 0),
        step(0x06, 0, u32::MAX),
    ]
}

/// A listening socket of this thread.
#[derive(Debug)]
pub struct Listener(Source);

impl Listener {
    /// Registers a bound, non-blocking socket with this thread's loop.
    ///
    /// # Errors
    /// As for [`Source::new`].
    pub fn from_std(bound: TcpListener) -> io::Result<Self> {
        Source::new(bound.into()).map(Self)
    }

    /// Makes the kernel drop packets that begin a connection. The senders retry after a second, and
    /// then find another listener or none. Connections that have begun can still be accepted, since
    /// closing the listener would reset them.
    ///
    /// # Errors
    /// The kernel refuses the filter.
    pub fn begin_none(&self) -> io::Result<()> {
        let Self(source) = self;
        SockRef::from(&source.fd).attach_filter(&no_syn())
    }

    /// The next connection and its peer address. `accept` returns both, without a further call.
    ///
    /// # Errors
    /// The kernel refuses to accept.
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
                // The client disconnected before the accept.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        Poll::Pending
    }
}
