//! One step of rustls's state machine, the same for servers and clients.

use super::fault::SessionFault;
use rustls::Error;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};

/// What came of one look at the bytes.
pub(crate) enum Looked {
    /// Something was done: there may be more.
    Progress,
    /// Nothing to do without more bytes of the network.
    Blocked,
    /// The other side has said that it sends no more.
    PeerClosed,
}

/// What is to be written.
pub(crate) enum Writing<'a> {
    Data(&'a [u8]),
    /// No more plaintext comes.
    End,
}

/// One side of a connection, as rustls drives it.
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

/// Looks at the bytes once. Returns how many of them are used up.
pub(crate) fn look<R: Records>(
    side: &mut R,
    incoming: &mut [u8],
    outgoing: &mut Vec<u8>,
    plain: &mut Vec<u8>,
) -> (usize, Result<Looked, SessionFault>) {
    let UnbufferedStatus { mut discard, state } = side.records(incoming);
    let step = match state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    plain.extend_from_slice(record.payload);
                    discard += record.discard;
                }
                Some(Err(error)) => break Err(error.into()),
                None => break Ok(Looked::Progress),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            encode(&mut data, outgoing).map(|()| Looked::Progress)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // It stands in `outgoing`, which goes out before anything else.
            data.done();
            Ok(Looked::Progress)
        }
        Ok(ConnectionState::PeerClosed) => Ok(Looked::PeerClosed),
        Ok(_) => Ok(Looked::Blocked),
        Err(error) => Err(error.into()),
    };
    (discard, step)
}

fn encode<D>(data: &mut EncodeTlsData<'_, D>, outgoing: &mut Vec<u8>) -> Result<(), SessionFault> {
    let start = outgoing.len();
    // It tells how much room it needs.
    let room = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(wanted)) => wanted.required_size,
        _ => return Ok(()),
    };
    outgoing.resize(start + room, 0);
    let written = data.encode(outgoing.get_mut(start..).unwrap_or_default());
    outgoing.truncate(start + written.as_ref().map_or(0, |bytes| *bytes));
    written.map(drop).map_err(|_| Error::EncryptError.into())
}

/// Writes behind `outgoing`, which gets so much room, or as much as is asked for then.
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
