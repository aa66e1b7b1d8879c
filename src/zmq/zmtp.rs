//! ZMTP 3.0 (rfc.zeromq.org/spec/23) as far as feeds need it: NULL security, a SUB with a single
//! subscription, a DEALER, a PUB, multipart messages. Sans-IO. A claimed length is compared with a
//! limit before memory is reserved.

use std::ops::Range;
use thiserror::Error;

/// Largest message that is accepted. Engines send batches of a few kilobytes, and replayed batches
/// of some hundred.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most parts of a message; engines send three.
pub const PARTS_MAX: usize = 8;
/// A larger buffer is freed once it is empty.
const IDLE_BYTES_MAX: usize = 1024 * 1024;

const FLAG_MORE: u8 = 1;
const FLAG_LONG: u8 = 2;
const FLAG_COMMAND: u8 = 4;

/// Length of a greeting in bytes.
pub const GREETING_BYTES: usize = 64;

/// Faults of a peer in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ZmtpError {
    /// The peer does not support ZMTP, or a version before 3.0 only.
    #[error("the peer does not speak ZMTP 3: is it a ZeroMQ socket, and no HTTP port?")]
    Greeting,
    /// The peer requires CURVE or PLAIN.
    #[error("the peer asks for ZeroMQ security, which is not supported")]
    Security,
    /// The socket type of the peer does not match the type of this side.
    #[error("the peer is another kind of ZeroMQ socket than expected there")]
    SocketType,
    /// A frame or message past the limits.
    #[error(
        "a message is larger than {MESSAGE_BYTES_MAX} bytes or has more than {PARTS_MAX} parts"
    )]
    TooLarge,
    /// Reserved flags, or a command in the middle of a message.
    #[error("the peer breaks the ZMTP framing")]
    Framing,
}

/// The greeting of this side.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    let head = [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    let mechanism = b"NULL";
    for (to, from) in bytes.iter_mut().zip(head.iter().chain(mechanism)) {
        *to = *from;
    }
    bytes
}

/// Checks the greeting of a peer. True if the peer answers PING, which came with ZMTP 3.1.
pub fn check_greeting(bytes: &[u8; GREETING_BYTES]) -> Result<bool, ZmtpError> {
    let [0xff, _, _, _, _, _, _, _, _, signature, version, minor, rest @ ..] = bytes else {
        return Err(ZmtpError::Greeting);
    };
    if *signature & 1 == 0 || *version < 3 {
        return Err(ZmtpError::Greeting);
    }
    let mechanism = rest.first_chunk::<20>().ok_or(ZmtpError::Greeting)?;
    if !mechanism.starts_with(b"NULL\0") {
        return Err(ZmtpError::Security);
    }
    Ok(*version > 3 || *minor > 0)
}

/// Socket type of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// Receives messages of a publisher.
    Subscriber,
    /// Sends requests to a ROUTER.
    Dealer,
    /// Sends messages to subscribers, as engines do.
    Publisher,
    /// Answers requests for old messages, as engines do.
    Router,
}

impl SocketKind {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Subscriber => b"SUB",
            Self::Dealer => b"DEALER",
            Self::Publisher => b"PUB",
            Self::Router => b"ROUTER",
        }
    }

    fn is_peer_of(self, peer: &[u8]) -> bool {
        match self {
            Self::Subscriber => peer == b"PUB" || peer == b"XPUB",
            Self::Dealer => peer == b"ROUTER",
            Self::Publisher => peer == b"SUB" || peer == b"XSUB",
            Self::Router => peer == b"DEALER" || peer == b"REQ" || peer == b"ROUTER",
        }
    }
}

/// The READY command of this side.
pub fn ready(kind: SocketKind) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    body.push(u8::try_from(kind.name().len()).unwrap_or(0));
    body.extend_from_slice(kind.name());
    body.extend_from_slice(b"\x08Identity\0\0\0\0");
    frame(FLAG_COMMAND, &mut body)
}

/// A message of several parts.
pub fn message(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for (position, part) in parts.iter().enumerate() {
        let more = if position + 1 < parts.len() { FLAG_MORE } else { 0 };
        out.append(&mut frame(more, &mut part.to_vec()));
    }
    out
}

/// The subscription to all topics with a prefix.
pub(super) fn subscription(prefix: &str) -> Vec<u8> {
    let mut body = vec![1];
    body.extend_from_slice(prefix.as_bytes());
    frame(0, &mut body)
}

/// A PING without a time to live, because the peer need not watch this side.
pub(super) fn ping() -> Vec<u8> {
    frame(FLAG_COMMAND, &mut b"\x04PING\0\0".to_vec())
}

/// The answer to a command, if any: the PONG to a PING of ZMTP 3.1, with the context of the PING.
pub fn answer(command: &[u8]) -> Option<Vec<u8>> {
    let context = command.strip_prefix(b"\x04PING")?.get(2..)?;
    let mut body = b"\x04PONG".to_vec();
    body.extend_from_slice(context.get(..16).unwrap_or(context));
    Some(frame(FLAG_COMMAND, &mut body))
}

/// Checks the READY command of a peer. Its socket type must match `kind`.
pub fn check_ready(command: &[u8], kind: SocketKind) -> Result<(), ZmtpError> {
    let mut rest = command.strip_prefix(b"\x05READY").ok_or(ZmtpError::Framing)?;
    while let Some((length, after)) = rest.split_first() {
        let (name, after) =
            after.split_at_checked(usize::from(*length)).ok_or(ZmtpError::Framing)?;
        let (size, after) = after.split_first_chunk::<4>().ok_or(ZmtpError::Framing)?;
        let size = usize::try_from(u32::from_be_bytes(*size)).map_err(|_| ZmtpError::Framing)?;
        let (value, after) = after.split_at_checked(size).ok_or(ZmtpError::Framing)?;
        if name.eq_ignore_ascii_case(b"socket-type") {
            return if kind.is_peer_of(value) { Ok(()) } else { Err(ZmtpError::SocketType) };
        }
        rest = after;
    }
    Err(ZmtpError::SocketType)
}

fn frame(flags: u8, body: &mut Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 9);
    match u8::try_from(body.len()) {
        Ok(length) => out.extend_from_slice(&[flags, length]),
        Err(_) => {
            out.push(flags | FLAG_LONG);
            out.extend_from_slice(&u64::try_from(body.len()).unwrap_or(u64::MAX).to_be_bytes());
        }
    }
    out.append(body);
    out
}

/// A whole command or message; ranges are positions in the inbox until it is consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// The body of a command.
    Command(Range<usize>),
    /// The parts of a message.
    Message(Vec<Range<usize>>),
}

/// Received bytes that are not consumed yet.
#[derive(Debug, Default)]
pub struct ZmtpInbox {
    bytes: Vec<u8>,
    start: usize,
}

impl ZmtpInbox {
    /// Buffer that the socket appends received bytes to.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The bytes of a range.
    pub fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or(&[])
    }

    /// Consumes the first `N` bytes, if that many are there.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.bytes.get(self.start..)?.first_chunk::<N>()?;
        self.start += N;
        Some(taken)
    }

    /// The next whole command or message, and the position after it for [`ZmtpInbox::consume`].
    pub fn next(&self) -> Result<Option<(Incoming, usize)>, ZmtpError> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        let mut at = self.start;
        loop {
            let Some(header) = self.header(at)? else { return Ok(None) };
            let end = header.body.saturating_add(header.length);
            if end - self.start > MESSAGE_BYTES_MAX || parts.len() >= PARTS_MAX {
                return Err(ZmtpError::TooLarge);
            }
            if end > self.bytes.len() {
                return Ok(None);
            }
            if header.flags & FLAG_COMMAND != 0 {
                let alone = parts.is_empty() && header.flags & FLAG_MORE == 0;
                let command = Incoming::Command(header.body..end);
                return if alone { Ok(Some((command, end))) } else { Err(ZmtpError::Framing) };
            }
            parts.push(header.body..end);
            if header.flags & FLAG_MORE == 0 {
                return Ok(Some((Incoming::Message(parts), end)));
            }
            at = end;
        }
    }

    /// Drops everything before a position.
    pub fn consume(&mut self, end: usize) {
        self.start = end.min(self.bytes.len());
        if self.start == self.bytes.len() {
            self.start = 0;
            self.bytes.clear();
            if self.bytes.capacity() > IDLE_BYTES_MAX {
                self.bytes = Vec::new();
            }
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    fn header(&self, at: usize) -> Result<Option<FrameHeader>, ZmtpError> {
        let Some((&flags, rest)) = self.bytes.get(at..).and_then(<[u8]>::split_first) else {
            return Ok(None);
        };
        if flags & !(FLAG_MORE | FLAG_LONG | FLAG_COMMAND) != 0 {
            return Err(ZmtpError::Framing);
        }
        if flags & FLAG_LONG == 0 {
            let length = rest.first().map(|&length| usize::from(length));
            return Ok(length.map(|length| FrameHeader { flags, body: at + 2, length }));
        }
        let Some(length) = rest.first_chunk::<8>() else { return Ok(None) };
        let length = usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES_MAX {
            return Err(ZmtpError::TooLarge);
        }
        Ok(Some(FrameHeader { flags, body: at + 9, length }))
    }
}

struct FrameHeader {
    flags: u8,
    body: usize,
    length: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collect(inbox: &mut ZmtpInbox) -> Vec<Vec<Vec<u8>>> {
        let mut out = Vec::new();
        while let Some((incoming, end)) = inbox.next().unwrap() {
            out.push(match incoming {
                Incoming::Command(range) => vec![b"command".to_vec(), inbox.slice(&range).to_vec()],
                Incoming::Message(parts) => {
                    parts.iter().map(|part| inbox.slice(part).to_vec()).collect()
                }
            });
            inbox.consume(end);
        }
        out
    }

    #[test]
    fn greets_itself_and_refuses_others() {
        assert_eq!(check_greeting(&greeting()), Ok(false));
        let with = |at: usize, byte: u8| {
            let mut bytes = greeting();
            bytes[at] = byte;
            check_greeting(&bytes)
        };
        assert_eq!(with(0, b'H'), Err(ZmtpError::Greeting));
        assert_eq!(with(11, 1), Ok(true), "ZMTP 3.1 answers PING");
        assert_eq!(with(10, 1), Err(ZmtpError::Greeting));
        assert_eq!(with(12, b'C'), Err(ZmtpError::Security));
    }

    #[test]
    fn knows_a_publisher_by_its_ready() {
        let publisher = b"\x05READY\x08Identity\0\0\0\0\x0bSocket-Type\0\0\0\x03PUB";
        let check = |command: &[u8]| check_ready(command, SocketKind::Subscriber);
        assert_eq!(check(publisher), Ok(()));
        assert_eq!(check_ready(publisher, SocketKind::Dealer), Err(ZmtpError::SocketType));
        assert_eq!(check(&ready(SocketKind::Dealer)[2..]), Err(ZmtpError::SocketType));
        let dealer = &ready(SocketKind::Dealer)[2..];
        assert_eq!(check_ready(dealer, SocketKind::Router), Ok(()));
        assert_eq!(check_ready(publisher, SocketKind::Router), Err(ZmtpError::SocketType));
        let router = b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER";
        assert_eq!(check_ready(router, SocketKind::Dealer), Ok(()));
        for cut in 0..publisher.len() {
            assert!(check(&publisher[..cut]).is_err());
        }
    }

    #[test]
    fn messages_are_whole_however_they_are_cut() {
        let mut wire = vec![1, 0, 1, 2, b'a', b'b', 2, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3];
        wire.extend_from_slice(&frame(FLAG_COMMAND, &mut b"\x04PING\0\0hi".to_vec()));
        wire.extend_from_slice(&[0, 0]);
        let expected = vec![
            vec![vec![], b"ab".to_vec(), vec![1, 2, 3]],
            vec![b"command".to_vec(), b"\x04PING\0\0hi".to_vec()],
            vec![vec![]],
        ];
        for cut in 0..=wire.len() {
            let mut inbox = ZmtpInbox::default();
            inbox.tail().extend_from_slice(&wire[..cut]);
            let mut out = collect(&mut inbox);
            inbox.tail().extend_from_slice(&wire[cut..]);
            out.extend(collect(&mut inbox));
            assert_eq!(out, expected, "cut at {cut}");
        }
        assert_eq!(answer(b"\x04PING\0\0hi").unwrap(), b"\x04\x07\x04PONGhi");
        assert_eq!(answer(b"\x05READY"), None);
        assert_eq!(ping(), b"\x04\x07\x04PING\0\0");
        assert_eq!(answer(&ping()[2..]).unwrap(), b"\x04\x05\x04PONG");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let long = vec![7; 300];
        let mut inbox = ZmtpInbox::default();
        inbox.tail().extend_from_slice(&message(&[b"", b"ab", &long]));
        assert_eq!(collect(&mut inbox), [vec![vec![], b"ab".to_vec(), long]]);
    }

    #[test]
    fn claimed_lengths_are_not_believed() {
        let mut inbox = ZmtpInbox::default();
        inbox.tail().extend_from_slice(&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(inbox.next(), Err(ZmtpError::TooLarge));
        let mut inbox = ZmtpInbox::default();
        inbox.tail().extend_from_slice(&[1, 0].repeat(PARTS_MAX + 1));
        assert_eq!(inbox.next(), Err(ZmtpError::TooLarge));
        let mut inbox = ZmtpInbox::default();
        inbox.tail().extend_from_slice(&[0x80, 0]);
        assert_eq!(inbox.next(), Err(ZmtpError::Framing));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut inbox = ZmtpInbox::default();
            inbox.tail().extend_from_slice(&bytes);
            while let Ok(Some((_, end))) = inbox.next() {
                inbox.consume(end);
            }
            let _ = check_ready(&bytes, SocketKind::Subscriber);
            let _ = answer(&bytes);
        }
    }
}
