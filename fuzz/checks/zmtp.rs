//! Any bytes as what a ZeroMQ peer says. Must hold: what is read does not depend on how the bytes
//! are cut, and is what a naive reader of the frames reads; nothing claimed is believed; memory
//! follows what has arrived; only a peer that speaks the protocol passes the handshake; a PING, and
//! nothing else, is answered.

use forebay_zmq::ZmtpError;
use forebay_zmq::zmtp::{
    GREETING_BYTES, Incoming, MESSAGE_BYTES_MAX, PARTS_MAX, SocketKind, ZmtpInbox, answer,
    check_greeting, check_ready, message,
};

/// A command or a message, and how the reading ended: waiting for more, or refused.
type Units = Vec<(bool, Vec<Vec<u8>>)>;

/// Panics when a rule above is broken. The first byte says how the rest is cut.
pub(crate) fn check(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else { return };
    let expected = naive(data);
    for size in [data.len().max(1), usize::from(cut) + 1] {
        assert_eq!(read(data, size), expected, "in pieces of {size}");
    }
    for (command, parts) in &expected.0 {
        if *command {
            check_command(&parts[0]);
        } else {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let again = read(&message(&parts), 1 << 20);
            let owned = parts.iter().map(|part| part.to_vec()).collect();
            assert_eq!(again, (vec![(false, owned)], None), "written and read back");
        }
    }
    check_command(data);
    if let Some(bytes) = data.first_chunk::<GREETING_BYTES>() {
        let speaks = bytes[0] == 0xff && bytes[9] & 1 == 1 && bytes[10] >= 3;
        let is_null = bytes[12..17] == *b"NULL\0";
        assert_eq!(check_greeting(bytes).is_ok(), speaks && is_null);
    }
}

fn read(data: &[u8], size: usize) -> (Units, Option<ZmtpError>) {
    let mut inbox = ZmtpInbox::default();
    let mut units = Vec::new();
    for piece in data.chunks(size) {
        inbox.tail().extend_from_slice(piece);
        assert!(inbox.tail().capacity() <= 4 * data.len() + 4_096);
        loop {
            let (unit, end) = match inbox.next() {
                Ok(Some(unit)) => unit,
                Ok(None) => break,
                Err(error) => return (units, Some(error)),
            };
            units.push(match unit {
                Incoming::Command(range) => (true, vec![inbox.slice(&range).to_vec()]),
                Incoming::Message(parts) => {
                    (false, parts.iter().map(|part| inbox.slice(part).to_vec()).collect())
                }
            });
            inbox.consume(end);
        }
    }
    (units, None)
}

fn naive(mut data: &[u8]) -> (Units, Option<ZmtpError>) {
    let mut units = Vec::new();
    let most = u64::try_from(MESSAGE_BYTES_MAX).unwrap();
    let mut parts = Vec::new();
    let mut bytes = 0;
    while let Some((&flags, rest)) = data.split_first() {
        if flags > 7 {
            return (units, Some(ZmtpError::Framing));
        }
        let (length, head) = match (flags & 2 != 0, rest) {
            (false, [length, ..]) => (u64::from(*length), 2),
            (true, [a, b, c, d, e, f, g, h, ..]) => {
                (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), 9)
            }
            _ => break,
        };
        bytes += head + length.min(most + 1);
        if bytes > most || parts.len() >= PARTS_MAX {
            return (units, Some(ZmtpError::TooLarge));
        }
        let from = usize::try_from(head).unwrap();
        let to = usize::try_from(head + length).unwrap();
        let Some(body) = data.get(from..to) else { break };
        data = &data[to..];
        if flags & 4 != 0 {
            if !parts.is_empty() || flags & 1 != 0 {
                return (units, Some(ZmtpError::Framing));
            }
            units.push((true, vec![body.to_vec()]));
            bytes = 0;
            continue;
        }
        parts.push(body.to_vec());
        if flags & 1 == 0 {
            units.push((false, std::mem::take(&mut parts)));
            bytes = 0;
        }
    }
    (units, None)
}

fn check_command(body: &[u8]) {
    let context = body.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..));
    let context = context.map(|context| &context[..context.len().min(16)]);
    let expected = context.map(|context| [b"\x04PONG", context].concat());
    let answered = answer(body).map(|bytes| {
        let (units, error) = read(&bytes, bytes.len());
        assert_eq!((units.len(), error), (1, None));
        assert!(units[0].0, "a command");
        units[0].1[0].clone()
    });
    assert_eq!(answered, expected);
    for (kind, peers) in [
        (SocketKind::Subscriber, [&b"PUB"[..], b"XPUB"]),
        (SocketKind::Dealer, [b"ROUTER", b"ROUTER"]),
        (SocketKind::Publisher, [b"SUB", b"XSUB"]),
    ] {
        if check_ready(body, kind).is_ok() {
            assert!(body.starts_with(b"\x05READY"));
            let named =
                peers.iter().any(|peer| body.windows(peer.len()).any(|found| found == *peer));
            assert!(named, "{kind:?} talks to {peers:?}");
        }
    }
}
