//! Reads one answer, sans-IO: as little of its head as there is to know, and its body in place.

use std::io;

/// A longer head or line of a chunk is a fault.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// A part of an answer, in place.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// The whole head, up to its empty line.
    Head(&'a [u8]),
    Body(&'a [u8]),
}

/// The answer that a connection reads.
#[derive(Debug, Default)]
pub struct AnswerReader {
    state: State,
    /// What has come of a head or of a chunk's line that is not complete.
    partial: Vec<u8>,
    /// Of the last head.
    pub status: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// So many bytes of a body with a length.
    Body(usize),
    ChunkLine,
    /// So many bytes of a chunk, then its line end.
    Chunk(usize),
    /// Lines after the last chunk.
    Trailer,
}

impl AnswerReader {
    /// Takes bytes, hands head and body to `part`. True when the answer is complete.
    ///
    /// # Errors
    /// The bytes are no answer, or more than an answer.
    pub fn feed(&mut self, mut bytes: &[u8], mut part: impl FnMut(Part<'_>)) -> io::Result<bool> {
        while !bytes.is_empty() {
            match self.state {
                State::Head => {
                    let Some(rest) = self.head(bytes, &mut part)? else { return Ok(false) };
                    bytes = rest;
                }
                State::Body(left) => {
                    let count = left.min(bytes.len());
                    part(Part::Body(&bytes[..count]));
                    bytes = &bytes[count..];
                    self.state = State::Body(left - count);
                }
                State::ChunkLine | State::Trailer => {
                    let Some(rest) = self.line(bytes)? else { return Ok(false) };
                    bytes = rest;
                }
                State::Chunk(left) => {
                    let count = left.min(bytes.len());
                    // The last two bytes end the line.
                    let data = left.saturating_sub(2).min(count);
                    part(Part::Body(&bytes[..data]));
                    bytes = &bytes[count..];
                    self.state =
                        if count == left { State::ChunkLine } else { State::Chunk(left - count) };
                }
            }
            if self.state == State::Body(0) {
                self.state = State::Head;
                return match bytes {
                    [] => Ok(true),
                    _ => Err(io::Error::other("bytes after an answer")),
                };
            }
        }
        Ok(false)
    }

    /// What follows the head, once it is complete.
    fn head<'a>(
        &mut self,
        bytes: &'a [u8],
        part: &mut impl FnMut(Part<'_>),
    ) -> io::Result<Option<&'a [u8]>> {
        // The end of a head may be cut: look at the whole of it again.
        let before = self.partial.len();
        if before > 0 {
            self.partial.extend_from_slice(bytes);
        }
        let head = if before > 0 { &self.partial } else { bytes };
        let Some(end) = memchr::memmem::find(head, b"\r\n\r\n") else {
            if before == 0 {
                self.partial.extend_from_slice(bytes);
            }
            return bounded(&self.partial);
        };
        let used = end + 4 - before;
        part(Part::Head(&head[..end + 2]));
        self.status = head.get(9..12).and_then(decimal).map_or(0, to_status);
        self.state = match (field(&head[..end], b"content-length").and_then(decimal), self.status) {
            (_, 100..200) => State::Head,
            (Some(length), _) => State::Body(length),
            (None, _) if field(&head[..end], b"transfer-encoding").is_some() => State::ChunkLine,
            (None, _) => return Err(io::Error::other("an answer without a length")),
        };
        self.partial.clear();
        Ok(Some(&bytes[used..]))
    }

    /// What follows a chunk's line or a line of the trailer, once it is complete.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> io::Result<Option<&'a [u8]>> {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            self.partial.extend_from_slice(bytes);
            return bounded(&self.partial);
        };
        self.partial.extend_from_slice(&bytes[..end]);
        let line = self.partial.trim_ascii();
        self.state = if self.state == State::Trailer {
            if line.is_empty() { State::Body(0) } else { State::Trailer }
        } else {
            let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
            let length = std::str::from_utf8(digits).ok();
            let length = length.and_then(|digits| usize::from_str_radix(digits, 16).ok());
            match length.ok_or_else(|| io::Error::other("a chunk without a length"))? {
                0 => State::Trailer,
                length => State::Chunk(length.saturating_add(2)),
            }
        };
        self.partial.clear();
        Ok(Some(&bytes[end + 1..]))
    }
}

fn bounded<T>(partial: &[u8]) -> io::Result<Option<T>> {
    if partial.len() > HEAD_BYTES_MAX {
        return Err(io::Error::other("an endless head"));
    }
    Ok(None)
}

fn to_status(value: usize) -> u16 {
    u16::try_from(value).unwrap_or(0)
}

/// Value of a field; its name in lower case. The start line is the first of the lines.
#[must_use]
pub fn field<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = head;
    while let Some(end) = memchr::memchr(b'\n', rest) {
        rest = &rest[end + 1..];
        if rest.len() > name.len()
            && rest[name.len()] == b':'
            && rest[..name.len()].eq_ignore_ascii_case(name)
        {
            let end = memchr::memchr(b'\r', rest).unwrap_or(rest.len());
            return Some(rest[name.len() + 1..end].trim_ascii());
        }
    }
    None
}

/// A number in digits alone.
#[must_use]
pub fn decimal(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{AnswerReader, Part};

    const LENGTH: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKS: &[u8] = b"HTTP/1.1 429 No\r\ntransfer-encoding: chunked\r\n\r\n\
        2;x=1\r\nhe\r\n3\r\nllo\r\n0\r\nt: 1\r\n\r\n";

    fn read(parts: &[&[u8]]) -> (bool, u16, Vec<u8>) {
        let mut reader = AnswerReader::default();
        let mut body = Vec::new();
        let mut done = false;
        for part in parts {
            assert!(!done, "ended too early");
            let mut take = |part: Part<'_>| match part {
                Part::Head(head) => assert!(head.ends_with(b"\r\n")),
                Part::Body(data) => body.extend_from_slice(data),
            };
            done = reader.feed(part, &mut take).unwrap();
        }
        (done, reader.status, body)
    }

    #[test]
    fn answers_are_read_wherever_they_are_cut() {
        for (wire, status) in [(LENGTH, 200), (CHUNKS, 429)] {
            for cut in 0..=wire.len() {
                let parts = [&wire[..cut], &wire[cut..]];
                let parts = if cut == wire.len() { &parts[..1] } else { &parts[..] };
                assert_eq!(read(parts), (true, status, b"hello".to_vec()), "cut at {cut}");
            }
            let bytes: Vec<&[u8]> = wire.chunks(1).collect();
            assert_eq!(read(&bytes), (true, status, b"hello".to_vec()));
        }
    }

    #[test]
    fn more_than_an_answer_is_a_fault() {
        let mut reader = AnswerReader::default();
        assert!(reader.feed(&[LENGTH, b"x"].concat(), |_| ()).is_err());
    }
}
