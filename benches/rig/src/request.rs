//! Reads requests as a worker does, sans-IO: the length of each body, not the body.

use crate::answer::{decimal, field};
use std::io;

/// A longer head is a fault.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The request that a connection reads.
#[derive(Debug, Default)]
pub(crate) struct RequestReader {
    /// A head that is not complete.
    head: Vec<u8>,
    body: Option<Body>,
}

#[derive(Clone, Copy, Debug)]
struct Body {
    bytes: usize,
    left: usize,
}

/// A complete request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Post { body_bytes: usize },
    Get { path: String },
}

impl RequestReader {
    /// The first complete request, and what follows it; `None` when all bytes are taken.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8]) -> io::Result<Option<(Request, &'a [u8])>> {
        let mut rest = bytes;
        loop {
            if let Some(body) = &mut self.body {
                let part = body.left.min(rest.len());
                body.left -= part;
                rest = &rest[part..];
                if body.left > 0 {
                    return Ok(None);
                }
                let body_bytes = body.bytes;
                self.body = None;
                return Ok(Some((Request::Post { body_bytes }, rest)));
            }
            if rest.is_empty() {
                return Ok(None);
            }
            let before = self.head.len();
            if before > 0 {
                self.head.extend_from_slice(rest);
            }
            let head = if before > 0 { &self.head } else { rest };
            let Some(end) = memchr::memmem::find(head, b"\r\n\r\n") else {
                if before == 0 {
                    self.head.extend_from_slice(rest);
                }
                if self.head.len() > HEAD_BYTES_MAX {
                    return Err(io::Error::other("an endless head"));
                }
                return Ok(None);
            };
            rest = &rest[end + 4 - before..];
            let head = &head[..end];
            if !head.starts_with(b"POST ") {
                let path = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
                let path = String::from_utf8_lossy(path).into_owned();
                self.head.clear();
                return Ok(Some((Request::Get { path }, rest)));
            }
            let bytes = field(head, b"content-length").and_then(decimal);
            let bytes = bytes.ok_or_else(|| io::Error::other("a request without a length"))?;
            self.body = Some(Body { bytes, left: bytes });
            self.head.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, RequestReader};

    #[test]
    fn requests_are_read_wherever_they_are_cut() {
        let wire = b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody\
            GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
        for cut in 0..=wire.len() {
            let mut reader = RequestReader::default();
            let mut found = Vec::new();
            for part in [&wire[..cut], &wire[cut..]] {
                let mut rest = part;
                while let Some((request, after)) = reader.next(rest).unwrap() {
                    found.push(request);
                    rest = after;
                }
            }
            let get = Request::Get { path: "/a".to_owned() };
            assert_eq!(found, [Request::Post { body_bytes: 4 }, get], "cut at {cut}");
        }
    }
}
