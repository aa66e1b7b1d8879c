//! Responses that the router writes itself.

use super::decimal::push_decimal;
use super::encode::{finish, push_field, push_persistence};
use super::head::Version;
use super::status::reason_phrase;

/// Asks the client for the announced body (RFC 9110 section 10.1.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Ends a chunked body that has no trailer.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// A response of the router itself: refusals, the model list.
#[derive(Clone, Copy, Debug)]
pub struct OwnResponse<'a> {
    pub status: u16,
    /// `Content-Type`; none is sent when empty.
    pub content_type: &'a str,
    pub body: &'a [u8],
    /// Keep the client's connection.
    pub keep_alive: bool,
    /// For a HEAD request: length without the body.
    pub head_only: bool,
    /// Further fields; fields without a value are omitted. Values must be free of CR and LF.
    pub extra: &'a [(&'a str, &'a [u8])],
}

/// Appends the whole response to `out`.
pub fn encode_own(response: &OwnResponse<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(u64::from(response.status), out);
    out.push(b' ');
    out.extend_from_slice(reason_phrase(response.status).as_bytes());
    out.extend_from_slice(b"\r\n");
    if !response.content_type.is_empty() {
        push_field("content-type", response.content_type.as_bytes(), out);
    }
    // Sent to both versions: redundant in 1.1, required in 1.0.
    push_persistence(response.keep_alive, Version::Http10, out);
    let length = u64::try_from(response.body.len()).unwrap_or(u64::MAX);
    finish((response.status != 204).then_some(length), response.extra, out);
    if !response.head_only && response.status != 204 {
        out.extend_from_slice(response.body);
    }
}

/// Head of an event stream that the router begins before it has a worker's response.
#[derive(Clone, Copy, Debug)]
pub struct OwnStream<'a> {
    /// Client's version: HTTP/1.1 gets chunks; for HTTP/1.0 the end of the connection ends the
    /// stream.
    pub client_version: Version,
    /// Keep the client's connection; ignored (closed) for HTTP/1.0.
    pub keep_alive: bool,
    /// Further fields; fields without a value are omitted. Values must be free of CR and LF.
    pub extra: &'a [(&'a str, &'a [u8])],
}

/// Appends the head to `out`.
pub fn encode_own_stream(stream: &OwnStream<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n",
    );
    let chunked = stream.client_version == Version::Http11;
    if chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    push_persistence(stream.keep_alive && chunked, stream.client_version, out);
    finish(None, stream.extra, out);
}

#[cfg(test)]
mod tests {
    use super::{OwnResponse, OwnStream, encode_own, encode_own_stream, push_decimal};
    use crate::Version;

    #[test]
    fn own_responses() {
        let mut response = OwnResponse {
            status: 429,
            content_type: "application/json",
            body: b"{}",
            keep_alive: true,
            head_only: false,
            extra: &[("retry-after", b"1"), ("allow", b"")],
        };
        let text = |response: &OwnResponse<'_>| {
            let mut out = Vec::new();
            encode_own(response, &mut out);
            String::from_utf8(out).unwrap()
        };
        let head = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nconnection: keep-alive\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n";
        assert_eq!(text(&response), format!("{head}{{}}"));
        response.head_only = true;
        assert_eq!(text(&response), head);
        response.keep_alive = false;
        assert!(text(&response).contains("connection: close\r\n"));
    }

    #[test]
    fn own_streams() {
        let text = |client_version, keep_alive| {
            let mut out = Vec::new();
            let extra: &[(&str, &[u8])] = &[("x-request-id", b"id-7")];
            encode_own_stream(&OwnStream { client_version, keep_alive, extra }, &mut out);
            String::from_utf8(out).unwrap()
        };
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n";
        assert_eq!(
            text(Version::Http11, true),
            format!("{head}transfer-encoding: chunked\r\nx-request-id: id-7\r\n\r\n")
        );
        assert_eq!(
            text(Version::Http11, false),
            format!(
                "{head}transfer-encoding: chunked\r\nconnection: close\r\nx-request-id: id-7\r\n\r\n"
            )
        );
        for keep_alive in [false, true] {
            assert_eq!(
                text(Version::Http10, keep_alive),
                format!("{head}connection: close\r\nx-request-id: id-7\r\n\r\n")
            );
        }
    }

    #[test]
    fn decimals() {
        for value in [0, 7, 10, 999, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(value, &mut out);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
