//! Converts the body framing of a worker's response to the client's framing, a chunk of upstream
//! bytes at a time.

use super::{
    BodyError, BodyFraming, BodyLimits, ChunkedDecoder, LAST_CHUNK, Version, encode_chunk_header,
};

/// Framing of a response body to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFraming {
    /// Bytes as they are; `Content-Length` or the end of the connection delimits them.
    Plain,
    /// Chunked by the router, a chunk per read.
    Chunked,
}

impl AnswerFraming {
    /// For a body of unknown length: chunks for HTTP/1.1; for HTTP/1.0 the connection's end
    /// delimits it.
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

    /// Appends data that is stored in two slices, as a single piece.
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

/// State of a response body in transit.
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

    /// Like [`Self::new`], for the rest of a body that the client has received in part: keeps the
    /// open framing, whatever the rest's own length. The rest must have bytes: an empty rest
    /// would get no last chunk.
    #[must_use]
    pub fn continued(inbound: BodyFraming, client: Version) -> Self {
        Self { framing: AnswerFraming::open(client), ..Self::new(inbound, client) }
    }

    /// Framing to the client.
    #[must_use]
    pub const fn framing(&self) -> AnswerFraming {
        self.framing
    }

    /// True once the last byte has been fed.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// True if the end of the upstream connection ends this body.
    #[must_use]
    pub const fn ends_with_connection(&self) -> bool {
        matches!(self.inbound, Inbound::UntilClose)
    }

    /// Takes upstream bytes, appends the client's bytes to `out`. Returns the number of body bytes
    /// now at the front of `bytes`, and the number of bytes of `bytes` that belonged to this
    /// response. Not to be called after [`Self::is_done`].
    ///
    /// # Errors
    /// [`BodyError`] if the framing is broken.
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

    /// Like [`Self::feed`] without `out`: the caller emits data and end.
    ///
    /// # Errors
    /// [`BodyError`] if the framing is broken.
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

    /// Ends a body that ends with the upstream connection.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.done = true;
        self.framing.finish(out);
    }

    /// Appends data in the framing of the client.
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
