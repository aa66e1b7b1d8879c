//! The name of a process's handover socket, and the check of peers' users.

use super::wire::write_line;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Uid, geteuid};
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{self, UnixListener, UnixStream};

/// Environment variable of a process that `forebay upgrade` has started: the name of the handover
/// socket of the process that started it, for its report if its start fails.
pub const OF_UPGRADE: &str = "FOREBAY_UPGRADE";

/// Request of a process that only looks. The host knows no such request, and ignores it.
const LOOK: &str = "look";

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

    /// The name as [`Self::name_of`] returns it.
    ///
    /// # Errors
    /// When the system refuses the name.
    pub(super) fn named(name: &OsStr) -> io::Result<Self> {
        net::SocketAddr::from_abstract_name(name.as_bytes()).map(Self)
    }

    /// Name of the socket of a process, for its environment.
    pub(super) fn name_of(listener: &UnixListener) -> Option<OsString> {
        let address = listener.local_addr().ok()?;
        Some(OsStr::from_bytes(address.as_abstract_name()?).to_owned())
    }

    /// True if a Forebay process listens there.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        UnixStream::connect_addr(&self.0).is_ok_and(|stream| write_line(&stream, LOOK).is_ok())
    }

    /// Process that waits there for the next process, if its user is this user or root. The name
    /// of a process of another user proves nothing: each user can take it.
    ///
    /// # Errors
    /// When the system refuses to connect.
    pub fn running(&self) -> io::Result<Option<Pid>> {
        let Some((stream, process)) = self.meet()? else { return Ok(None) };
        // A process that ends meanwhile has closed its end.
        Ok(write_line(&stream, LOOK).is_ok().then_some(process))
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

    /// Connects; `None` where no process listens, or a process of another user. What that process
    /// hands over may be used.
    pub(super) fn meet(&self) -> io::Result<Option<(UnixStream, Pid)>> {
        let Some(stream) = self.connect()? else { return Ok(None) };
        let peer = trusted(&stream)?;
        Ok(peer.map(|pid| (stream, pid)))
    }

    /// Connects to send an order; `None` where no process listens that this user may order. Root
    /// orders the processes of all users: a unit runs the router as its own user.
    pub(super) fn meet_for_order(&self) -> io::Result<Option<UnixStream>> {
        let Some(stream) = self.connect()? else { return Ok(None) };
        let peer = socket_peercred(&stream)?;
        Ok(takes_orders(peer.uid, geteuid()).then_some(stream))
    }

    fn connect(&self) -> io::Result<Option<UnixStream>> {
        match UnixStream::connect_addr(&self.0) {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A listener on a handover socket.
#[derive(Debug)]
pub struct HandoverListener(pub(super) UnixListener);

/// The process at the other end, if its user is this user or root.
pub(super) fn trusted(stream: &UnixStream) -> io::Result<Option<Pid>> {
    let peer = socket_peercred(stream)?;
    Ok(is_trusted(peer.uid, geteuid()).then_some(peer.pid))
}

/// Sockets, index and requests of the peer may be used.
fn is_trusted(peer: Uid, own: Uid) -> bool {
    peer == own || peer.is_root()
}

/// The peer may get orders of a process of the user `own`.
fn takes_orders(peer: Uid, own: Uid) -> bool {
    own.is_root() || is_trusted(peer, own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_orders_all_users_and_trusts_itself_alone() {
        let root = Uid::ROOT;
        let router = Uid::from_raw(990);
        let other = Uid::from_raw(1_000);
        assert!(is_trusted(root, router) && is_trusted(router, router) && is_trusted(root, root));
        assert!(!is_trusted(router, root) && !is_trusted(other, router));
        assert!(takes_orders(router, root), "`forebay upgrade` of root, a unit with its own user");
        assert!(takes_orders(root, router) && takes_orders(router, router));
        assert!(!takes_orders(other, router));
    }
}
