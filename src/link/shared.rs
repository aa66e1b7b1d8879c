//! State shared by both halves of a connection.

use forebay_tls::{Session, SessionFault};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// The TLS session of both halves.
pub(crate) type SharedSession = Rc<RefCell<Session>>;

/// A fault of the session as an I/O error.
pub(crate) fn broken(fault: SessionFault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}
