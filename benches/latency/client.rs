//! One keep-alive connection of the load: sends a request, reads one answer.

use crate::poll::{Poller, Token, prepare, read_into};
use crate::stub::{DUE_DIGITS, DUE_MARK, content_length};
use forebay::http1::{BodyLimits, ChunkedDecoder};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};

const HEADERS_MAX: usize = 64;
const OVERLAP_FIELD: &str = "x-forebay-overlap-tokens";

/// What is known of an answer once its head is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerHead {
    pub(crate) status: u16,
    /// Tokens of the prompt that the router found in its index, where it tells.
    pub(crate) overlap_tokens: Option<u64>,
    head_bytes: usize,
    /// `None` for chunked bodies.
    body_bytes: Option<usize>,
}

/// A connection.
pub(crate) struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    body: Option<ChunkedDecoder>,
    text: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr, poller: &Poller, number: u32) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        prepare(&stream)?;
        poller.add(&stream, Token::Client(number))?;
        Ok(Self { stream, input: Vec::new(), body: None, text: Vec::new() })
    }

    pub(crate) fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request)
    }

    /// Reads; the answer to a unary request once it is complete.
    pub(crate) fn read_answer(&mut self, scratch: &mut [u8]) -> io::Result<Option<AnswerHead>> {
        self.read(scratch)?;
        let Some(head) = answer_head(&self.input)? else { return Ok(None) };
        let body_bytes = head.body_bytes.ok_or_else(|| io::Error::other("unexpected stream"))?;
        let whole = head.head_bytes + body_bytes;
        if self.input.len() < whole {
            return Ok(None);
        }
        self.input.drain(..whole);
        Ok(Some(head))
    }

    /// Reads a part of a stream; gives the due time of every event in it to `event`. True at the
    /// end of the stream.
    pub(crate) fn read_events(
        &mut self,
        scratch: &mut [u8],
        mut event: impl FnMut(u64),
    ) -> io::Result<bool> {
        self.read(scratch)?;
        if self.body.is_none() {
            let Some(head) = answer_head(&self.input)? else { return Ok(false) };
            if head.status != 200 || head.body_bytes.is_some() {
                return Err(io::Error::other(format!("status {} for a stream", head.status)));
            }
            self.input.drain(..head.head_bytes);
            self.body = Some(ChunkedDecoder::new(&BodyLimits::default()));
        }
        let Some(decoder) = &mut self.body else { return Ok(false) };
        let decoded = decoder.decode(&mut self.input).map_err(io::Error::other)?;
        self.text.extend_from_slice(self.input.get(..decoded.data_bytes).unwrap_or_default());
        self.input.drain(..decoded.consumed_bytes);
        if decoded.done {
            self.body = None;
        }
        let mut seen = 0;
        for at in memchr::memmem::find_iter(&self.text, DUE_MARK) {
            let digits = at + DUE_MARK.len()..at + DUE_MARK.len() + DUE_DIGITS;
            let end = digits.end;
            let Some(digits) = self.text.get(digits) else { break };
            let due = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            event(due.ok_or_else(|| io::Error::other("an event without its time"))?);
            seen = end;
        }
        // A mark may be cut in two by the end of a read.
        let kept = if decoded.done { 0 } else { self.text.len() - seen };
        self.text.drain(..self.text.len() - kept.min(DUE_MARK.len() + DUE_DIGITS));
        Ok(decoded.done)
    }

    fn read(&mut self, scratch: &mut [u8]) -> io::Result<()> {
        if read_into(&mut self.stream, scratch, &mut self.input)? {
            return Ok(());
        }
        Err(io::Error::other("a connection was closed before its answer was complete"))
    }
}

fn answer_head(input: &[u8]) -> io::Result<Option<AnswerHead>> {
    if input.is_empty() {
        return Ok(None);
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head_bytes) = head.parse(input).map_err(io::Error::other)?
    else {
        return Ok(None);
    };
    let overlap = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(OVERLAP_FIELD));
    let overlap = overlap.and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
    Ok(Some(AnswerHead {
        status: head.code.unwrap_or(0),
        overlap_tokens: overlap,
        head_bytes,
        body_bytes: content_length(head.headers),
    }))
}
