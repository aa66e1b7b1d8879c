//! Both halves of a shard's connections: the same calls in plain text and over TLS. Reads stay in
//! flight in the kernel either way; TLS lies between received bytes and their consumer.
//!
//! Runs on the shard's thread. Limits: the buffers of a session (`forebay_tls`), the pieces to
//! encrypt, a single handshake per turn.

mod handshake;
mod reader;
mod shared;
#[cfg(test)]
mod tests;
mod turnstile;
mod writer;

pub use handshake::{HandshakeOutcome, shake_hands};
pub use reader::LinkReader;
pub use turnstile::Turnstile;
pub use writer::LinkWriter;

use forebay_net::Socket;
use forebay_tls::Session;
use std::cell::RefCell;
use std::rc::Rc;

/// Both halves of a socket; with a TLS session, which must handshake first.
#[must_use]
pub fn link(socket: Socket, session: Option<Session>) -> (LinkReader, LinkWriter) {
    let (receiver, sender) = socket.split();
    let mut reader = LinkReader::new(receiver);
    let mut writer = LinkWriter::new(sender);
    if let Some(session) = session {
        secure(&mut reader, &mut writer, session, Vec::new());
    }
    (reader, writer)
}

/// Upgrades a plain-text connection to TLS. `received`: bytes of the handshake so far.
pub fn secure(
    reader: &mut LinkReader,
    writer: &mut LinkWriter,
    mut session: Session,
    received: Vec<u8>,
) {
    *session.incoming() = received;
    let session = Rc::new(RefCell::new(session));
    reader.secure(Rc::clone(&session));
    writer.secure(session);
}
