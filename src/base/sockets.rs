//! Kernel errors that mean that this process or its host is out of sockets.

use rustix::io::Errno;
use std::io;

/// True for a lack of descriptors, ports or memory: the peer is not at fault.
#[must_use]
pub fn is_out_of_sockets(error: &io::Error) -> bool {
    let own = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM];
    error.raw_os_error().is_some_and(|code| own.iter().any(|errno| errno.raw_os_error() == code))
}
