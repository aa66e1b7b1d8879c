//! Faults of a head, and their statuses.

use thiserror::Error;

/// Reason to refuse a head. The connection must not be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeadError {
    /// RFC 9112 section 2.2 tolerates an empty line before a request, not a stream of them.
    #[error("too many empty lines before the request line")]
    EmptyLines,
    /// Method is not a token.
    #[error("the method is not a token")]
    Method,
    /// Method longer than any known method.
    #[error("the method is too long")]
    MethodTooLong,
    /// `CONNECT`: the proxy opens no tunnels.
    #[error("CONNECT is not supported")]
    Connect,
    /// Start line does not have its three parts.
    #[error("the start line is malformed")]
    StartLine,
    /// Target of a form that the method does not allow, or with bytes no URI may hold.
    #[error("the request target is malformed")]
    Target,
    /// Line ends without CR, or CR without LF.
    #[error("a line does not end with CR LF")]
    LineEnd,
    #[error("the protocol is not HTTP/1.1")]
    Protocol,
    /// HTTP, but not 1.x.
    #[error("this HTTP version is not supported; use HTTP/1.1")]
    Version,
    /// Status code is not three digits from 100 to 599.
    #[error("the status code is malformed")]
    Status,
    /// 101 in response to a request without `Upgrade`.
    #[error("the server switched protocols unasked")]
    Switched,
    /// Whitespace at the start of a field line.
    #[error("a field line starts with whitespace (obsolete line folding)")]
    Folded,
    /// Field name is empty or not a token, or whitespace stands before the colon.
    #[error("a field name is malformed")]
    FieldName,
    /// Control character in a field value or reason phrase.
    #[error("a field value holds a control character")]
    FieldValue,
    /// More field lines than [`super::HeadLimits::fields_max`].
    #[error("too many header fields")]
    TooManyFields,
    /// Start line longer than the limit.
    #[error("the request target is too long")]
    TargetTooLong,
    /// Head longer than the limit.
    #[error("the header section is too large")]
    HeadTooLarge,
    /// HTTP/1.1 request without a `Host` field.
    #[error("the Host field is missing")]
    HostMissing,
    #[error("there is more than one Host field")]
    HostRepeated,
    /// `Host` is not a host with an optional port.
    #[error("the Host field is malformed")]
    Host,
    /// `Content-Length` is no decimal number below 2^63.
    #[error("the Content-Length field is malformed")]
    ContentLength,
    #[error("there is more than one Content-Length field")]
    ContentLengthRepeated,
    /// `Transfer-Encoding` and `Content-Length` in the same head.
    #[error("Content-Length and Transfer-Encoding exclude each other")]
    FramingConflict,
    /// `Transfer-Encoding` empty, repeated, or in HTTP/1.0.
    #[error("the Transfer-Encoding field is malformed")]
    TransferEncoding,
    /// A coding other than `chunked` alone.
    #[error("only the transfer coding chunked is supported")]
    Coding,
    /// `Content-Encoding` with anything but `identity`: the body could not be routed.
    #[error("Content-Encoding is not supported: send the body without compression")]
    ContentCoding,
    /// More connection options than the limit.
    #[error("the Connection field names too many options")]
    ConnectionOptions,
    /// `Expect` with anything but `100-continue`.
    #[error("only the expectation 100-continue is supported")]
    Expectation,
    /// `Sec-WebSocket-Key` is missing, repeated, or not 16 bytes in base64.
    #[error("the Sec-WebSocket-Key field is missing or malformed")]
    WebSocketKey,
    /// `Sec-WebSocket-Version` is missing or not 13.
    #[error("only version 13 of WebSocket is supported")]
    WebSocketVersion,
    /// A body before the frames of a WebSocket.
    #[error("a request for WebSocket must not have a body")]
    WebSocketBody,
}

impl HeadError {
    /// Status for the client: 400, 414, 415, 417, 431, 501 or 505. (A bad response head is the
    /// worker's fault: 502.)
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::TargetTooLong => 414,
            Self::ContentCoding => 415,
            Self::Expectation => 417,
            Self::TooManyFields | Self::HeadTooLarge => 431,
            Self::MethodTooLong | Self::Connect | Self::Coding => 501,
            Self::Version => 505,
            _ => 400,
        }
    }
}
