//! Parsed heads: spans into the parsed buffer.

use super::error::HeadError;
use std::ops::Range;

/// Part of the parsed buffer.
pub type Span = Range<u32>;

/// The bytes of a span, empty when it does not lie in `buffer`.
#[must_use]
pub fn bytes_of<'a>(buffer: &'a [u8], span: &Span) -> &'a [u8] {
    let (Ok(start), Ok(end)) = (usize::try_from(span.start), usize::try_from(span.end)) else {
        return &[];
    };
    buffer.get(start..end).unwrap_or(&[])
}

/// A span from array positions. Heads are bounded far below 4 GiB ([`HeadLimits`]); larger
/// positions saturate.
pub(super) fn span(range: Range<usize>) -> Span {
    u32::try_from(range.start).unwrap_or(u32::MAX)..u32::try_from(range.end).unwrap_or(u32::MAX)
}

/// Limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Longest head in bytes, start line and final empty line included. Past it: 414 or 431.
    pub head_bytes_max: usize,
    /// Most field lines. Past it: 431.
    pub fields_max: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { head_bytes_max: 64 * 1024, fields_max: 100 }
    }
}

/// Protocol version of a message. Minor versions above 1 are parsed as 1.1 (RFC 9110 section 2.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    Http10,
    #[default]
    Http11,
}

impl Version {
    /// Parses `HTTP/1.x` at the front and returns it with its length; the byte that follows must
    /// already be there. `None`: more bytes are needed.
    pub(super) fn read(rest: &[u8]) -> Result<Option<(Self, usize)>, HeadError> {
        const NAME: &[u8] = b"HTTP/";
        let Some(digits) = rest.strip_prefix(NAME) else {
            return if NAME.starts_with(rest) { Ok(None) } else { Err(HeadError::Protocol) };
        };
        let run = digits
            .iter()
            .position(|byte| !matches!(byte, b'0'..=b'9' | b'.'))
            .unwrap_or(digits.len());
        if run > 3 {
            return Err(HeadError::Version);
        }
        match digits.get(run) {
            None => return Ok(None),
            Some(b'\r' | b' ') => {}
            Some(b'\n') => return Err(HeadError::LineEnd),
            Some(_) => return Err(HeadError::Protocol),
        }
        let version = match digits.get(..run) {
            Some(b"1.0") => Self::Http10,
            Some([b'1', b'.', b'1'..=b'9']) => Self::Http11,
            Some([b'0'..=b'9', b'.', b'0'..=b'9']) => return Err(HeadError::Version),
            _ => return Err(HeadError::Protocol),
        };
        Ok(Some((version, NAME.len() + run)))
    }
}

/// Request method, RFC 9110 section 9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Patch,
    /// `CONNECT`; the parser refuses it, so no parsed head contains it.
    Connect,
    Trace,
    /// Any other token; see [`RequestHead::method_span`].
    Other,
}

impl Method {
    /// From the token as sent; case matters.
    #[must_use]
    pub fn from_bytes(token: &[u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"PATCH" => Self::Patch,
            b"CONNECT" => Self::Connect,
            b"TRACE" => Self::Trace,
            _ => Self::Other,
        }
    }
}

/// How a body ends, RFC 9112 section 6.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyFraming {
    #[default]
    None,
    /// This many bytes follow.
    Length(u64),
    Chunked,
    /// Everything until the peer closes; responses only.
    UntilClose,
}

/// Role of a field for the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    Host,
    ContentLength,
    TransferEncoding,
    /// Hop-by-hop: `Connection`, `Keep-Alive`, `Proxy-*`, `TE`, `Trailer`, `Upgrade`,
    /// `HTTP2-Settings`, look-alikes of the framing fields spelt with `_`, and all fields that
    /// `Connection` names.
    HopByHop,
    ContentType,
    ContentEncoding,
    Authorization,
    Expect,
    /// `x-request-id`
    RequestId,
    /// `Via`: the previous proxies
    Via,
    /// `x-api-key`
    ApiKey,
    /// `x-data-parallel-rank`
    DpRank,
    /// `x-forebay-priority`
    Priority,
    /// `x-vllm-priority`
    VllmPriority,
    /// `x-forebay-timeout-ms`
    TimeoutMs,
    /// `x-stainless-read-timeout`
    ReadTimeout,
    /// `x-stainless-timeout`
    Timeout,
    RetryAfter,
    /// Anything else; forwarded.
    Other,
}

/// A parsed field line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: Span,
    /// Value without the whitespace around it.
    pub value: Span,
    /// Role of the field for the proxy.
    pub kind: FieldKind,
}

/// A parsed request head. Reused: parsing clears it and keeps its capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    pub method: Method,
    /// Method token as sent.
    pub method_span: Span,
    pub target: Span,
    /// Path without query; the absolute form is reduced. Empty for `http://host` and
    /// `http://host?q`, which mean `/`.
    pub path: Span,
    /// Query with its question mark, empty when there is none.
    pub query: Span,
    pub version: Version,
    /// Field lines in order.
    pub fields: Vec<Field>,
    /// How the body ends; never [`BodyFraming::UntilClose`].
    pub body: BodyFraming,
    /// False when the connection ends after the response (RFC 9112 section 9.3).
    pub keep_alive: bool,
    /// True when the client waits for `100 Continue` before it sends the body (RFC 9110 section
    /// 10.1.1).
    pub expect_continue: bool,
    /// The body has a content coding such as gzip (RFC 9110 section 8.4).
    pub is_coded: bool,
    /// Length of the head, empty lines before it included; the body starts here.
    pub head_bytes: usize,
}

impl RequestHead {
    /// True if the client sent credentials for the worker.
    #[must_use]
    pub fn has_credentials(&self) -> bool {
        let is_credential = |kind| matches!(kind, FieldKind::Authorization | FieldKind::ApiKey);
        self.fields.iter().any(|field| is_credential(field.kind))
    }

    /// Path for routing: `/` if the absolute form has none.
    #[must_use]
    pub fn path<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        match bytes_of(buffer, &self.path) {
            [] => b"/",
            path => path,
        }
    }

    /// Value of the first field of that kind.
    #[must_use]
    pub fn value_of<'a>(&self, kind: FieldKind, buffer: &'a [u8]) -> Option<&'a [u8]> {
        self.fields
            .iter()
            .find(|field| field.kind == kind)
            .map(|field| bytes_of(buffer, &field.value))
    }

    pub(super) fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::default() };
    }
}

/// A parsed response head. Reused: parsing clears it and keeps its capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    /// Status code, 100 to 599.
    pub status: u16,
    /// Reason phrase as sent, may be empty.
    pub reason: Span,
    pub version: Version,
    /// Field lines in order.
    pub fields: Vec<Field>,
    /// How the body ends.
    pub body: BodyFraming,
    /// `Content-Length` as sent, even without a body (HEAD, 304).
    pub content_length: Option<u64>,
    /// True if the connection may be reused after the body.
    pub keep_alive: bool,
    /// Length of the head; the body starts here.
    pub head_bytes: usize,
    /// Media type of the body, from `Content-Type`.
    pub media: MediaType,
}

/// Media types that answers of engines have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediaType {
    /// The head has no `Content-Type`.
    #[default]
    Unstated,
    Json,
    EventStream,
    /// Octets without a form: `application/octet-stream`.
    Bytes,
    Other,
}

impl ResponseHead {
    /// True for a stream of server-sent events.
    #[must_use]
    pub fn is_event_stream(&self) -> bool {
        self.media == MediaType::EventStream
    }

    /// True for 1xx: another head follows.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// Framing of this body for a client of that version: a length stays, everything else becomes
    /// chunks. HTTP/1.0 has no chunks, so there the connection's end ends the body.
    #[must_use]
    pub fn framing_for(&self, client_version: Version) -> BodyFraming {
        match (self.body, client_version) {
            (BodyFraming::Chunked | BodyFraming::UntilClose, Version::Http11) => {
                BodyFraming::Chunked
            }
            (BodyFraming::Chunked | BodyFraming::UntilClose, Version::Http10) => {
                BodyFraming::UntilClose
            }
            (framing, _) => framing,
        }
    }

    /// Value of the first field of that kind.
    #[must_use]
    pub fn value_of<'a>(&self, kind: FieldKind, buffer: &'a [u8]) -> Option<&'a [u8]> {
        self.fields
            .iter()
            .find(|field| field.kind == kind)
            .map(|field| bytes_of(buffer, &field.value))
    }

    pub(super) fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::default() };
    }
}

/// Progress of parsing a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The whole head was parsed.
    Complete,
    /// More bytes are needed; the bytes so far could still become a valid head.
    Partial,
}
