//! What both halves of a connection share.

use forebay_tls::{Session, SessionFault};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// One session, as both halves have it.
pub(crate) type Shared = Rc<RefCell<Session>>;

/// A fault of the session, as users of sockets know faults.
pub(crate) fn broken(fault: SessionFault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}
