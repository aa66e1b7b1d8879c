//! A step of rustls's state machine, shared by servers and clients.

use super::fault::SessionFault;
use rustls::Error;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};

/// Outcome of a step.
pub(crate) enum RecordStep {
    /// Made progress: another step may follow.
    Progress,
    /// More bytes from the network are needed.
    Blocked,
    /// The peer has sent close_notify.
    PeerClosed,
}

pub(crate) enum Writing<'a> {
    Data(&'a [u8]),
    /// The end of the plaintext.
    End,
}

/// A side of a connection in rustls.
pub(crate) trait Records {
    type Data;

    fn records<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Records for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn records<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

impl Records for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn records<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

/// Takes a step on the bytes. Returns the number of consumed bytes.
pub(crate) fn look<R: Records>(
    side: &mut R,
    incoming: &mut [u8],
    outgoing: &mut Vec<u8>,
    plain: &mut Vec<u8>,
) -> (usize, Result<RecordStep, SessionFault>) {
    let UnbufferedStatus { mut discard, state } = side.records(incoming);
    let step = match state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    plain.extend_from_slice(record.payload);
                    discard += record.discard;
                }
                Some(Err(error)) => break Err(error.into()),
                None => break Ok(RecordStep::Progress),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            encode(&mut data, outgoing).map(|()| RecordStep::Progress)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // The bytes are in `outgoing`, which the caller sends before anything else.
            data.done();
            Ok(RecordStep::Progress)
        }
        Ok(ConnectionState::PeerClosed) => Ok(RecordStep::PeerClosed),
        Ok(_) => Ok(RecordStep::Blocked),
        Err(error) => Err(error.into()),
    };
    (discard, step)
}

fn encode<D>(data: &mut EncodeTlsData<'_, D>, outgoing: &mut Vec<u8>) -> Result<(), SessionFault> {
    let start = outgoing.len();
    // An empty buffer makes `encode` return the required size.
    let room = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(wanted)) => wanted.required_size,
        _ => return Ok(()),
    };
    outgoing.resize(start + room, 0);
    let written = data.encode(outgoing.get_mut(start..).unwrap_or_default());
    outgoing.truncate(start + written.as_ref().map_or(0, |bytes| *bytes));
    written.map(drop).map_err(|_| Error::EncryptError.into())
}

/// Encrypts to the end of `outgoing`, with `room` reserved, or the size that rustls then requires.
pub(crate) fn write<R: Records>(
    side: &mut R,
    incoming: &mut [u8],
    outgoing: &mut Vec<u8>,
    writing: &Writing<'_>,
    mut room: usize,
) -> Result<(), SessionFault> {
    let start = outgoing.len();
    for _ in 0..2 {
        let mut traffic = match side.records(incoming).state? {
            ConnectionState::WriteTraffic(traffic) => traffic,
            _ => return Err(Error::HandshakeNotComplete.into()),
        };
        outgoing.resize(start + room, 0);
        let written = writing.to(&mut traffic, outgoing.get_mut(start..).unwrap_or_default());
        outgoing.truncate(start + written.as_ref().map_or(0, |bytes| *bytes));
        match written {
            Ok(_) => return Ok(()),
            Err(EncryptError::InsufficientSize(wanted)) => room = wanted.required_size,
            Err(EncryptError::EncryptExhausted) => break,
        }
    }
    Err(Error::EncryptError.into())
}

impl Writing<'_> {
    fn to<D>(
        &self,
        traffic: &mut WriteTraffic<'_, D>,
        room: &mut [u8],
    ) -> Result<usize, EncryptError> {
        match self {
            Self::Data(plain) => traffic.encrypt(plain, room),
            Self::End => traffic.queue_close_notify(room),
        }
    }
}
