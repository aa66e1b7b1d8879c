//! Heads of answers, as far as clients need them.

use std::io;

const HEADERS_MAX: usize = 64;

/// What the head of an answer tells.
#[derive(Clone, Debug)]
pub(crate) struct AnswerHead {
    pub(crate) status: u16,
    pub(crate) head_bytes: usize,
    /// `None` for chunked bodies.
    pub(crate) body_bytes: Option<usize>,
    pub(crate) keep_alive: bool,
    pub(crate) retry_after_s: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
    /// Why the router refused.
    pub(crate) reason: String,
}

/// The head at the start of the input, once it is all there.
pub(crate) fn parse_head(input: &[u8]) -> io::Result<Option<AnswerHead>> {
    if input.is_empty() {
        return Ok(None);
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head_bytes) = head.parse(input).map_err(io::Error::other)?
    else {
        return Ok(None);
    };
    let value = |name: &str| {
        let field = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(field.value).ok()
    };
    let number = |name: &str| value(name).and_then(|text| text.trim().parse::<u64>().ok());
    Ok(Some(AnswerHead {
        status: head.code.unwrap_or(0),
        head_bytes,
        body_bytes: number("content-length").and_then(|bytes| usize::try_from(bytes).ok()),
        keep_alive: !value("connection").is_some_and(|text| text.eq_ignore_ascii_case("close")),
        retry_after_s: number("retry-after"),
        retry_after_ms: number("retry-after-ms"),
        reason: value("x-forebay-reason").unwrap_or_default().to_owned(),
    }))
}
