//! Turns the worker's body framing into the client's, one chunk of upstream bytes at a time.

use super::{
    BodyError, BodyFraming, BodyLimits, ChunkedDecoder, LAST_CHUNK, Version, encode_chunk_header,
};

/// How the answer's body reaches the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFraming {
    /// Bytes as they are; `Content-Length` or the end of the connection delimits them.
    Plain,
    /// Chunks of our own, one per read.
    Chunked,
}

impl AnswerFraming {
    /// Of a body of unknown length: chunks for HTTP/1.1; for HTTP/1.0 it ends with the connection.
    #[must_use]
    pub const fn open(client: Version) -> Self {
        match client {
            Version::Http11 => Self::Chunked,
            Version::Http10 => Self::Plain,
        }
    }

    /// Appends data in this framing.
    pub fn push(self, data: &[u8], out: &mut Vec<u8>) {
        if data.is_empty() {
            return;
        }
        match self {
            Self::Plain => out.extend_from_slice(data),
            Self::Chunked => {
                let mut header = [0; 10];
                let start = encode_chunk_header(data.len(), &mut header);
                out.extend_from_slice(header.get(start..).unwrap_or_default());
                out.extend_from_slice(data);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Appends data that lies in two places, as one piece.
    pub fn push_both(self, first: &[u8], second: &[u8], out: &mut Vec<u8>) {
        if first.is_empty() {
            return self.push(second, out);
        }
        match self {
            Self::Plain => {
                out.extend_from_slice(first);
                out.extend_from_slice(second);
            }
            Self::Chunked => {
                let mut header = [0; 10];
                let bytes = first.len().saturating_add(second.len());
                let start = encode_chunk_header(bytes, &mut header);
                out.extend_from_slice(header.get(start..).unwrap_or_default());
                out.extend_from_slice(first);
                out.extend_from_slice(second);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Appends the end of the body.
    pub fn finish(self, out: &mut Vec<u8>) {
        if self == Self::Chunked {
            out.extend_from_slice(LAST_CHUNK);
        }
    }
}

/// State of one body on its way through.
#[derive(Debug)]
pub struct AnswerBody {
    inbound: Inbound,
    framing: AnswerFraming,
    done: bool,
}

#[derive(Debug)]
enum Inbound {
    Length(u64),
    Chunked(ChunkedDecoder),
    UntilClose,
}

impl AnswerBody {
    /// A body that arrives in `inbound` framing and leaves to a client of that version.
    #[must_use]
    pub fn new(inbound: BodyFraming, client: Version) -> Self {
        let (inbound, framing, done) = match inbound {
            BodyFraming::None => (Inbound::Length(0), AnswerFraming::Plain, true),
            BodyFraming::Length(bytes) => {
                (Inbound::Length(bytes), AnswerFraming::Plain, bytes == 0)
            }
            BodyFraming::Chunked => (
                Inbound::Chunked(ChunkedDecoder::new(&BodyLimits::default())),
                AnswerFraming::open(client),
                false,
            ),
            BodyFraming::UntilClose => (Inbound::UntilClose, AnswerFraming::open(client), false),
        };
        Self { inbound, framing, done }
    }

    /// The same, as the rest of a body whose beginning the client has: framed as that, whatever its
    /// own length.
    #[must_use]
    pub fn continued(inbound: BodyFraming, client: Version) -> Self {
        Self { framing: AnswerFraming::open(client), ..Self::new(inbound, client) }
    }

    /// Framing towards the client.
    #[must_use]
    pub const fn framing(&self) -> AnswerFraming {
        self.framing
    }

    /// True once the last byte has been fed.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// True if the end of the upstream connection is the end of this body.
    #[must_use]
    pub const fn ends_with_connection(&self) -> bool {
        matches!(self.inbound, Inbound::UntilClose)
    }

    /// Takes upstream bytes, appends what goes to the client to `out`. Returns how many body bytes
    /// stand at the front of `bytes` afterwards, and how many of `bytes` belonged to this answer.
    ///
    /// # Errors
    /// [`BodyError`] when the framing is broken.
    pub fn feed(
        &mut self,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, usize), BodyError> {
        let (data_bytes, consumed_bytes) = self.decode(bytes)?;
        self.emit(bytes.get(..data_bytes).unwrap_or_default(), out);
        if self.done {
            self.framing.finish(out);
        }
        Ok((data_bytes, consumed_bytes))
    }

    /// The same without `out`: its data and its end are left to the caller.
    ///
    /// # Errors
    /// [`BodyError`] when the framing is broken.
    pub fn decode(&mut self, bytes: &mut [u8]) -> Result<(usize, usize), BodyError> {
        Ok(match &mut self.inbound {
            Inbound::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left = left.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
                self.done = *left == 0;
                (taken, taken)
            }
            Inbound::Chunked(decoder) => {
                let decoded = decoder.decode(bytes)?;
                self.done = decoded.done;
                (decoded.data_bytes, decoded.consumed_bytes)
            }
            Inbound::UntilClose => (bytes.len(), bytes.len()),
        })
    }

    /// The upstream connection ended, and with it the body.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.done = true;
        self.framing.finish(out);
    }

    /// Appends data of our own making, framed like the rest.
    pub fn emit(&self, data: &[u8], out: &mut Vec<u8>) {
        self.framing.push(data, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mut body: AnswerBody, reads: &[&[u8]]) -> (Vec<u8>, bool, usize) {
        let mut out = Vec::new();
        let mut consumed = 0;
        for read in reads {
            let mut bytes = read.to_vec();
            consumed += body.feed(&mut bytes, &mut out).unwrap().1;
        }
        (out, body.is_done(), consumed)
    }

    #[test]
    fn length_passes_through_and_stops_at_its_end() {
        let body = AnswerBody::new(BodyFraming::Length(5), Version::Http11);
        assert_eq!(run(body, &[b"hel", b"loXX"]), (b"hello".to_vec(), true, 5));
    }

    #[test]
    fn chunks_are_framed_anew_per_read() {
        let body = AnswerBody::new(BodyFraming::Chunked, Version::Http11);
        let reads: [&[u8]; 3] = [b"3\r\nabc\r\n2\r", b"\nde\r\n", b"0\r\n\r\n"];
        let (out, done, _) = run(body, &reads);
        assert_eq!(out, b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
        assert!(done);
    }

    #[test]
    fn an_http_1_0_client_gets_plain_bytes() {
        let body = AnswerBody::new(BodyFraming::Chunked, Version::Http10);
        assert_eq!(run(body, &[b"3\r\nabc\r\n0\r\n\r\n"]).0, b"abc");
    }

    #[test]
    fn what_continues_a_stream_is_framed_like_its_beginning() {
        let body = AnswerBody::continued(BodyFraming::Length(5), Version::Http11);
        let (out, done, _) = run(body, &[b"hel", b"loXX"]);
        assert_eq!((&out[..], done), (&b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"[..], true));
        let body = AnswerBody::continued(BodyFraming::Length(5), Version::Http10);
        assert_eq!(run(body, &[b"hello"]).0, b"hello");
    }

    #[test]
    fn a_body_without_length_ends_with_the_connection() {
        let mut body = AnswerBody::new(BodyFraming::UntilClose, Version::Http11);
        let mut out = Vec::new();
        body.feed(&mut b"hi".to_vec(), &mut out).unwrap();
        assert!(!body.is_done() && body.ends_with_connection());
        body.finish(&mut out);
        assert_eq!(out, b"2\r\nhi\r\n0\r\n\r\n");
    }
}
