//! A socket that accepts connections.

use super::{Socket, Source};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{SockFilter, SockRef};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::task::{Context, Poll};

/// A filter of packets in classic BPF, which sees TCP headers: drops those with SYN and without
/// ACK.
fn no_syn() -> [SockFilter; 5] {
    let step = |code, skipped_if_not, operand| SockFilter::new(code, 0, skipped_if_not, operand);
    [
        // Byte 13 has the flags.
        step(0x30, 0, 13),
        step(0x54, 0, 0x12),
        // SYN alone goes on with the next step, anything else with the one after it.
        step(0x15, 1, 0x02),
        step(0x06, 0, 0),
        step(0x06, 0, u32::MAX),
    ]
}

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

    /// The kernel drops the packets that begin a connection. Their senders try again after a
    /// second, and then find another listener or none. Connections that have begun can still be
    /// accepted: a listener that is closed resets them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn begin_none(&self) -> io::Result<()> {
        let Self(source) = self;
        SockRef::from(&source.fd).attach_filter(&no_syn())
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
