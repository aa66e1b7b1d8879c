//! Both halves of a shard's connections: the same calls in plain text and over TLS. Reads stay
//! under way in the kernel either way; TLS lies between what has come and who takes it.
//!
//! Runs on the shard's thread. Limits: what one session keeps (`forebay_tls`), the pieces of what
//! is encrypted, one handshake a turn.

mod handshake;
mod reader;
mod shared;
#[cfg(test)]
mod tests;
mod turnstile;
mod writer;

pub use handshake::{Shaken, shake_hands};
pub use reader::LinkReader;
pub use turnstile::Turnstile;
pub use writer::LinkWriter;

use forebay_net::Socket;
use forebay_tls::Session;
use std::cell::RefCell;
use std::rc::Rc;

/// Both halves of a socket; over TLS with a session, which then has to shake hands first.
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

/// Goes on over TLS, where plain text went before. `received`: what has come of the handshake.
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
