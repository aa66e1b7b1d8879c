//! TLS without I/O: a session converts ciphertext to plaintext and back; the caller moves the
//! bytes. Certificates and keys are read from their files by the control plane.
//!
//! The protocol is from rustls, the cryptography from ring. All state of a session is bounded, and
//! so are the files.

mod accept;
mod certificate;
mod certificate_fields;
mod connect;
mod fault;
mod records;
mod session;

#[cfg(test)]
mod tests;

pub use accept::{AcceptFiles, Acceptor, FilesFault, Tickets};
pub use certificate::{
    CertificateFault, CertificateFiles, LoadedCertificate, MissingIssuer, leaf_for_authority,
    read_authorities,
};
pub use certificate_fields::date_text;
pub use connect::{ConnectFault, ConnectFiles, Connector};
pub use fault::{CertificateRefusal, HandshakeFault, SessionFault};
pub use session::Session;

/// ALPN protocol of all connections.
const HTTP_1_1: &[u8] = b"http/1.1";
