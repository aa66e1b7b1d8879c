//! TLS without I/O: a session takes ciphertext and gives plaintext, and the other way round; the
//! caller moves the bytes. Certificates and keys are read from their files on the control side.
//!
//! The protocol is rustls's, the cryptography ring's. All state of a session has a limit, and the
//! files are bounded too.

mod accept;
mod certificate;
mod connect;
mod fault;
mod records;
mod session;

#[cfg(test)]
mod tests;

pub use accept::{AcceptFiles, Acceptor, FilesFault, Tickets};
pub use certificate::{CertificateFault, CertificateFiles, Certified, read_authorities};
pub use connect::{ConnectFault, ConnectFiles, Connector};
pub use fault::{CertificateRefusal, HandshakeFault, SessionFault};
pub use session::Session;

/// The protocol that all connections speak inside of TLS.
const HTTP_1_1: &[u8] = b"http/1.1";
