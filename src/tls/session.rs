//! A TLS session: ciphertext to plaintext and back.
//!
//! ```text
//! network --> incoming --advance--> plaintext
//! network <-- outgoing <--encrypt-- plaintext
//! ```
//!
//! The caller appends to `incoming` and sends `outgoing`. Handshake, alerts and key updates write
//! to `outgoing` too: send it after any call here.

use super::fault::SessionFault;
use super::records::{RecordStep, Writing, look, write};
use forebay_base::limits::{TLS_HELLO_BYTES_MAX, TLS_MESSAGE_BYTES_MAX};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::{CommonState, Error, HandshakeKind};
use std::fmt;

/// Longest plaintext of a record.
const RECORD_BYTES_MAX: usize = 16 * 1024;
/// Largest overhead of a record: header, nonce, padding byte and tag.
const RECORD_OVERHEAD_BYTES: usize = 5 + 8 + 1 + 16;
/// Room for a key update or an alert before the plaintext.
const CONTROL_BYTES: usize = 64;
/// Offset of a record's length, after its type and version.
const LENGTH_AT: usize = 3;
const HEADER_BYTES: usize = 5;
/// Records that may be pending at a fault: ServerHello, ChangeCipherSpec, the alert, and three
/// more.
const LAST_WRITES_MAX: usize = 6;

/// A side of a TLS connection.
#[derive(Debug)]
pub struct Session {
    side: Party,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// `incoming` may contain whole unprocessed records.
    has_more: bool,
    /// Plaintext that was decrypted during a write.
    early: Vec<u8>,
    peer_has_closed: bool,
    fault: Option<SessionFault>,
    /// Most bytes that `incoming` may hold during a handshake.
    handshake_bytes_max: usize,
}

enum Party {
    // Boxed: large, and an allocation per connection is negligible beside a handshake.
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

impl fmt::Debug for Party {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Server(_) => "Server",
            Self::Client(_) => "Client",
        })
    }
}

impl Session {
    pub(crate) fn server(connection: UnbufferedServerConnection, asks_client: bool) -> Self {
        let most = if asks_client { TLS_MESSAGE_BYTES_MAX } else { TLS_HELLO_BYTES_MAX };
        Self::new(Party::Server(Box::new(connection)), most)
    }

    pub(crate) fn client(connection: UnbufferedClientConnection) -> Self {
        Self::new(Party::Client(Box::new(connection)), TLS_MESSAGE_BYTES_MAX)
    }

    fn new(side: Party, handshake_bytes_max: usize) -> Self {
        Self {
            side,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            has_more: false,
            early: Vec::new(),
            peer_has_closed: false,
            fault: None,
            handshake_bytes_max,
        }
    }

    /// Buffer for ciphertext from the network. After an append, call [`Self::advance`] or
    /// [`Self::shake`] before anything else.
    pub const fn incoming(&mut self) -> &mut Vec<u8> {
        &mut self.incoming
    }

    /// Ciphertext for the network. The caller takes it out and sends it.
    pub const fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// True if plaintext or a fault may be available without more bytes from the network.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.has_more || !self.early.is_empty() || self.fault.is_some()
    }

    /// Marks received bytes for a later [`Self::advance`].
    pub const fn look_later(&mut self) {
        self.has_more = true;
    }

    /// True if part of a record has arrived.
    #[must_use]
    pub fn has_part(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// True if the peer has sent close_notify: no plaintext follows, and none was truncated.
    #[must_use]
    pub const fn peer_has_closed(&self) -> bool {
        self.peer_has_closed
    }

    /// True during the handshake: nothing can be encrypted yet.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    /// True if the handshake resumed an earlier session.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.common().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    fn common(&self) -> &CommonState {
        match &self.side {
            Party::Server(server) => server,
            Party::Client(client) => client,
        }
    }

    /// Decrypts received records. Appends plaintext to `plain`, up to a length of `bytes_max`
    /// except for a first record; the rest is left for the next call.
    ///
    /// # Errors
    /// [`SessionFault`]; every later call returns it too.
    pub fn advance(&mut self, plain: &mut Vec<u8>, bytes_max: usize) -> Result<(), SessionFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        plain.append(&mut self.early);
        self.has_more = false;
        let mut used = 0;
        let advanced = loop {
            let next_bytes = self.next_bytes(used);
            if next_bytes > 0 && !plain.is_empty() && plain.len() + next_bytes > bytes_max {
                self.has_more = true;
                break Ok(());
            }
            match self.look(&mut used, plain) {
                Ok(RecordStep::Progress) => {}
                Ok(RecordStep::Blocked) => break Ok(()),
                Ok(RecordStep::PeerClosed) => self.peer_has_closed = true,
                Err(fault) => break Err(fault),
            }
        };
        self.incoming.drain(..used.min(self.incoming.len()));
        let most = match self.is_handshaking() {
            true => self.handshake_bytes_max,
            false => TLS_MESSAGE_BYTES_MAX,
        };
        let is_long = !self.has_more && self.incoming.len() > most;
        let advanced =
            advanced.and_then(|()| if is_long { Err(SessionFault::TooLong) } else { Ok(()) });
        self.fault = advanced.clone().err();
        advanced
    }

    /// Processes records of a handshake. Plaintext after its end is stored for [`Self::advance`].
    ///
    /// # Errors
    /// As for [`Self::advance`].
    pub fn shake(&mut self) -> Result<(), SessionFault> {
        let mut early = std::mem::take(&mut self.early);
        let advanced = self.advance(&mut early, usize::MAX);
        self.early = early;
        advanced
    }

    /// Length of the next record from its header; 0 without a header.
    fn next_bytes(&self, used: usize) -> usize {
        let header = self.incoming.get(used..).unwrap_or_default();
        match header.get(LENGTH_AT..HEADER_BYTES) {
            Some(&[high, low]) => usize::from(u16::from_be_bytes([high, low])),
            _ => 0,
        }
    }

    fn look(&mut self, used: &mut usize, plain: &mut Vec<u8>) -> Result<RecordStep, SessionFault> {
        let step = self.step(used, plain);
        if step.is_err() {
            // Write the alert, the session's last record. Pending handshake records precede it.
            for _ in 0..LAST_WRITES_MAX {
                if self.common().wants_write() {
                    let _written = self.step(used, plain);
                }
            }
        }
        step
    }

    fn step(&mut self, used: &mut usize, plain: &mut Vec<u8>) -> Result<RecordStep, SessionFault> {
        let Self { side, incoming, outgoing, .. } = self;
        let records = incoming.get_mut(*used..).unwrap_or_default();
        let (discard, step) = match side {
            Party::Server(server) => look(&mut **server, records, outgoing, plain),
            Party::Client(client) => look(&mut **client, records, outgoing, plain),
        };
        *used += discard;
        step
    }

    /// Encrypts `plain` to the end of `outgoing`.
    ///
    /// # Errors
    /// [`SessionFault`] before the end of the handshake, and when the keys are exhausted.
    pub fn encrypt(&mut self, plain: &[u8]) -> Result<(), SessionFault> {
        if plain.is_empty() {
            return Ok(());
        }
        let records = plain.len().div_ceil(RECORD_BYTES_MAX);
        let room = plain.len() + records * RECORD_OVERHEAD_BYTES + CONTROL_BYTES;
        self.write(&Writing::Data(plain), room)
    }

    /// Appends close_notify to `outgoing`.
    ///
    /// # Errors
    /// [`SessionFault`] before the end of the handshake.
    pub fn close(&mut self) -> Result<(), SessionFault> {
        self.write(&Writing::End, RECORD_OVERHEAD_BYTES + CONTROL_BYTES)
    }

    fn write(&mut self, writing: &Writing<'_>, room: usize) -> Result<(), SessionFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.is_handshaking() {
            return Err(Error::HandshakeNotComplete.into());
        }
        if self.has_more {
            // rustls requires received records to be processed before it encrypts.
            self.shake()?;
        }
        let Self { side, incoming, outgoing, .. } = self;
        match side {
            Party::Server(server) => write(&mut **server, incoming, outgoing, writing, room),
            Party::Client(client) => write(&mut **client, incoming, outgoing, writing, room),
        }
    }
}
