//! The TLS handshake of a connection. The caller bounds its time.

use super::{LinkReader, LinkWriter, Turnstile};
use forebay_tls::HandshakeFault;
use std::future::poll_fn;
use std::io::IoSlice;

/// Record types that a handshake can begin with: alert and handshake.
const FIRST_BYTES: [u8; 2] = [0x15, 0x16];

/// Outcome of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeOutcome {
    /// The TLS session was resumed.
    pub is_resumed: bool,
}

/// Runs the handshake; returns at once without TLS. Dropping the future aborts.
///
/// # Errors
/// [`HandshakeFault`]. The peer has received the alert if the socket had room.
pub async fn shake_hands(
    reader: &mut LinkReader,
    writer: &mut LinkWriter,
    turnstile: &Turnstile,
) -> Result<HandshakeOutcome, HandshakeFault> {
    let LinkReader { receiver, opening: Some(opening) } = reader else {
        return Ok(HandshakeOutcome { is_resumed: false });
    };
    let mut is_first = true;
    loop {
        let first = opening.session.borrow_mut().incoming().first().copied();
        if let Some(first) = first.filter(|_| std::mem::replace(&mut is_first, false))
            && !FIRST_BYTES.contains(&first)
        {
            return Err(HandshakeFault::NotTls);
        }
        let (advanced, out) = {
            let mut session = opening.session.borrow_mut();
            (session.shake(), std::mem::take(session.outgoing()))
        };
        if let Err(fault) = advanced {
            let _ = writer.sender.try_send(&[IoSlice::new(&out)]);
            return Err(fault.in_handshake());
        }
        if !out.is_empty() {
            let sent = writer.sender.send(out).await.map_err(|_| HandshakeFault::Closed)?;
            writer.sender.recycle(sent);
        }
        let session = &opening.session;
        if !session.borrow().is_handshaking() {
            return Ok(HandshakeOutcome { is_resumed: session.borrow().is_resumed() });
        }
        let received =
            poll_fn(|cx| receiver.poll_in_place(cx, session.borrow_mut().incoming())).await;
        if !matches!(received, Ok(1..)) {
            return Err(HandshakeFault::Closed);
        }
        turnstile.pass().await;
    }
}
