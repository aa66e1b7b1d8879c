//! Messages as lines: the subject without a prefix, a space, the JSON, a line feed. Sans-IO.
//!
//! ```text
//! v1.load {"replica":"5be1c0ffee15600d","name":"router-a","seq":19,"full":true}
//! v1.use {"replica":"5be1c0ffee15600d","tenants":[]}
//! ```
//! A line of an unknown version or kind is counted and skipped, as on NATS. A line that is too long
//! ends the stream.

use super::inbound::InboundMessage;
use crate::wire::{MESSAGE_BYTES_MAX, VERSION};
use bytes::{Buf, Bytes};
use thiserror::Error;

/// Longest line, with its subject and its end.
const LINE_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 64;

/// A line that is longer than a message may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a line of more than {LINE_BYTES_MAX} bytes")]
pub struct LineTooLong;

/// Encodes a message as a line. JSON of messages contains no line feed.
pub(crate) fn line(word: &str, json: &[u8]) -> Bytes {
    debug_assert!(!json.contains(&b'\n'), "a message is one line");
    let mut line = format!("{VERSION}.{word} ").into_bytes();
    line.extend_from_slice(json);
    line.push(b'\n');
    line.into()
}

/// Splits a stream into messages.
#[derive(Debug, Default)]
pub struct MessageLines {
    /// Beginning of the next line.
    unread: Vec<u8>,
}

impl MessageLines {
    /// The next message. Takes bytes from `chunk` up to the line's end, or all bytes.
    ///
    /// # Errors
    /// [`LineTooLong`]; the rest of the stream is unreadable.
    pub fn take(&mut self, chunk: &mut Bytes) -> Result<Option<InboundMessage>, LineTooLong> {
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = chunk.split_to(end.unwrap_or(chunk.len()));
        if self.unread.len().saturating_add(part.len()) >= LINE_BYTES_MAX {
            return Err(LineTooLong);
        }
        self.unread.extend_from_slice(&part);
        if end.is_none() {
            return Ok(None);
        }
        chunk.advance(1);
        Ok(Some(received(std::mem::take(&mut self.unread))))
    }
}

fn received(line: Vec<u8>) -> InboundMessage {
    let mut payload = Bytes::from(line);
    let space = payload.iter().position(|byte| *byte == b' ').unwrap_or(payload.len());
    let subject = payload.split_to(space);
    InboundMessage { subject: String::from_utf8_lossy(&subject).into_owned(), payload }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(lines: &mut MessageLines, bytes: &[u8]) -> Result<Vec<InboundMessage>, LineTooLong> {
        let mut chunk = Bytes::copy_from_slice(bytes);
        let mut messages = Vec::new();
        while let Some(message) = lines.take(&mut chunk)? {
            messages.push(message);
        }
        assert!(chunk.is_empty());
        Ok(messages)
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let mut lines = MessageLines::default();
        let written = [line("load", br#"{"a":" b "}"#), line("use", b"{}")].concat();
        let messages = read(&mut lines, &written).unwrap();
        let shown: Vec<_> = messages.iter().map(|it| (&*it.subject, &*it.payload)).collect();
        assert_eq!(shown, [("v1.load", &br#" {"a":" b "}"#[..]), ("v1.use", b" {}")]);
        for (bytes, subject) in [(&b"\n"[..], ""), (b"load\n", "load"), (b"\xff {}\n", "\u{fffd}")]
        {
            assert_eq!(read(&mut lines, bytes).unwrap()[0].subject, subject);
        }
    }

    #[test]
    fn an_endless_line_ends_the_stream() {
        let mut lines = MessageLines::default();
        let part = vec![b'x'; LINE_BYTES_MAX / 4];
        for _ in 0..3 {
            assert_eq!(read(&mut lines, &part), Ok(Vec::new()));
        }
        assert_eq!(read(&mut lines, &[&part[..], b"xxxx"].concat()), Err(LineTooLong));
        let longest = vec![b' '; MESSAGE_BYTES_MAX];
        let whole = read(&mut MessageLines::default(), &line("load", &longest)).unwrap();
        assert_eq!(whole[0].payload.len(), MESSAGE_BYTES_MAX + 1);
    }

    proptest! {
        #[test]
        fn the_cuts_of_the_stream_do_not_matter(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
            cuts in proptest::collection::vec(1_usize..20, 0..40),
        ) {
            let whole = read(&mut MessageLines::default(), &bytes).unwrap();
            prop_assert_eq!(whole.len(), bytes.iter().filter(|byte| **byte == b'\n').count());
            let mut lines = MessageLines::default();
            let mut parts = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts {
                let (part, after) = rest.split_at(cut.min(rest.len()));
                parts.extend(read(&mut lines, part).unwrap());
                rest = after;
            }
            parts.extend(read(&mut lines, rest).unwrap());
            prop_assert_eq!(parts, whole);
        }
    }
}
