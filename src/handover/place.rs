//! The name under which a process waits, and who may meet there.

use super::wire::say;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, geteuid};
use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener, UnixStream};

/// Where a process that listens on an address can be met. The name is no file: it goes with the
/// process, and belongs to the network namespace as the address does.
#[derive(Clone, Debug)]
pub struct MeetingPlace(net::SocketAddr);

impl MeetingPlace {
    /// Of the process that listens there.
    ///
    /// # Errors
    /// What the system says of the name.
    pub fn of(listen: SocketAddr) -> io::Result<Self> {
        net::SocketAddr::from_abstract_name(format!("forebay/{listen}")).map(Self)
    }

    /// Does a process of Forebay listen there?
    #[must_use]
    pub fn is_taken(&self) -> bool {
        // A word that means nothing to the host ends the talk there too, without a line in its log.
        UnixStream::connect_addr(&self.0).is_ok_and(|stream| say(&stream, "look").is_ok())
    }

    /// Takes the place, to wait there for others.
    ///
    /// # Errors
    /// What the system says; another process may wait there.
    pub fn bind(&self) -> io::Result<BoundPlace> {
        let listener = UnixListener::bind_addr(&self.0)?;
        listener.set_nonblocking(true)?;
        Ok(BoundPlace(listener))
    }

    /// `None` where nobody waits, or somebody of another user.
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

/// A place that this process has.
#[derive(Debug)]
pub struct BoundPlace(pub(super) UnixListener);

/// The process at the other end, if it is of this user or of root.
pub(super) fn trusted(stream: &UnixStream) -> io::Result<Option<Pid>> {
    let peer = socket_peercred(stream)?;
    Ok((peer.uid == geteuid() || peer.uid.is_root()).then_some(peer.pid))
}
