//! The name of a process's handover socket, and the check of peers' users.

use super::wire::write_line;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, geteuid};
use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener, UnixStream};

/// Name of the handover socket of the process that listens on an address. An abstract name, not a
/// file: it ends with the process, and belongs to the network namespace like the address.
#[derive(Clone, Debug)]
pub struct HandoverAddress(net::SocketAddr);

impl HandoverAddress {
    /// The name for the process that listens on `listen`.
    ///
    /// # Errors
    /// When the system refuses the name.
    pub fn of(listen: SocketAddr) -> io::Result<Self> {
        net::SocketAddr::from_abstract_name(format!("forebay/{listen}")).map(Self)
    }

    /// True if a Forebay process listens there.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        // The host ignores an unknown request, and does not log it.
        UnixStream::connect_addr(&self.0).is_ok_and(|stream| write_line(&stream, "look").is_ok())
    }

    /// Listens on the name.
    ///
    /// # Errors
    /// When the system refuses, for example because another process listens there.
    pub fn bind(&self) -> io::Result<HandoverListener> {
        let listener = UnixListener::bind_addr(&self.0)?;
        listener.set_nonblocking(true)?;
        Ok(HandoverListener(listener))
    }

    /// Connects; `None` where no process listens, or a process of another user.
    pub(super) fn meet(&self) -> io::Result<Option<(UnixStream, Pid)>> {
        let stream = match UnixStream::connect_addr(&self.0) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error),
        };
        let peer = trusted(&stream)?;
        Ok(peer.map(|pid| (stream, pid)))
    }
}

/// A listener on a handover socket.
#[derive(Debug)]
pub struct HandoverListener(pub(super) UnixListener);

/// The process at the other end, if its user is this user or root.
pub(super) fn trusted(stream: &UnixStream) -> io::Result<Option<Pid>> {
    let peer = socket_peercred(stream)?;
    Ok((peer.uid == geteuid() || peer.uid.is_root()).then_some(peer.pid))
}
