//! Encodes heads: the router's own framing and `Host`, no hop-by-hop fields.

use super::decimal::push_decimal;
use super::head::{BodyFraming, Field, FieldKind, RequestHead, ResponseHead, Version, bytes_of};
use super::header;
use super::status::reason_phrase;

/// Fields that the proxy itself sets in an upstream request.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamHead<'a> {
    /// `Host` of the worker.
    pub authority: &'a str,
    /// The proxy's name in `Via`.
    pub via: &'a [u8],
    /// Body length; `None` sends no framing field, which means no body.
    pub content_length: Option<u64>,
    /// `x-request-id`; the client's own is dropped unless this is empty.
    pub request_id: &'a [u8],
    /// Whole `Authorization` value for the worker in place of the client's; `None` forwards the
    /// client's.
    pub authorization: Option<&'a str>,
    /// Further fields; each replaces the client's fields of the same name. Values must be free of
    /// CR and LF.
    pub extra: &'a [(&'a str, &'a [u8])],
}

/// Appends the request head for a worker to `out`: always HTTP/1.1 in origin form, the client's
/// end-to-end fields byte for byte, `Via` (RFC 9110 section 7.6.3) and the fields of `upstream`.
pub fn encode_request(
    head: &RequestHead,
    buffer: &[u8],
    upstream: &UpstreamHead<'_>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(bytes_of(buffer, &head.method_span));
    out.push(b' ');
    out.extend_from_slice(head.path(buffer));
    out.extend_from_slice(bytes_of(buffer, &head.query));
    out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    out.extend_from_slice(upstream.authority.as_bytes());
    out.extend_from_slice(b"\r\n");
    for field in &head.fields {
        let travels = match field.kind {
            FieldKind::Other
            | FieldKind::ContentType
            | FieldKind::ContentEncoding
            | FieldKind::RetryAfter
            | FieldKind::Via
            | FieldKind::ApiKey
            | FieldKind::Priority
            | FieldKind::TimeoutMs
            | FieldKind::ReadTimeout
            | FieldKind::Timeout => true,
            FieldKind::Authorization => upstream.authorization.is_none(),
            FieldKind::RequestId => upstream.request_id.is_empty(),
            FieldKind::Host
            // The router chooses the rank, and sends it itself if the engine needs it.
            | FieldKind::DpRank
            // The router clamps the priority to the tenant's limit, and sends the result itself.
            | FieldKind::VllmPriority
            | FieldKind::ContentLength
            | FieldKind::TransferEncoding
            | FieldKind::HopByHop
            | FieldKind::Expect => false,
        };
        if travels {
            push_unless_replaced(field, buffer, upstream.extra, out);
        }
    }
    out.extend_from_slice(match head.version {
        Version::Http10 => b"via: 1.0 ",
        Version::Http11 => b"via: 1.1 ",
    });
    out.extend_from_slice(upstream.via);
    out.extend_from_slice(b"\r\n");
    if let Some(authorization) = upstream.authorization {
        push_field(header::AUTHORIZATION, authorization.as_bytes(), out);
    }
    if !upstream.request_id.is_empty() {
        push_field(header::REQUEST_ID, upstream.request_id, out);
    }
    finish(upstream.content_length, upstream.extra, out);
}

/// Fields that the proxy itself sets in a forwarded response.
#[derive(Clone, Copy, Debug)]
pub struct DownstreamHead<'a> {
    /// Body framing to the client, see [`ResponseHead::framing_for`]. [`BodyFraming::None`] keeps
    /// the worker's `Content-Length` where RFC 9110 section 8.6 allows it (responses to HEAD, 304).
    pub framing: BodyFraming,
    /// Keep the client's connection; ignored (closed) with [`BodyFraming::UntilClose`].
    pub keep_alive: bool,
    /// Client's version: HTTP/1.0 needs `Connection: keep-alive` for a connection that persists.
    pub client_version: Version,
    /// Further fields; each but `vary` replaces the worker's fields of the same name, even if it
    /// has no value and is not sent. Values must be free of CR and LF.
    pub extra: &'a [(&'a str, &'a [u8])],
}

/// Appends the response head for the client to `out`: the worker's status and end-to-end fields
/// byte for byte, then the fields of `downstream`.
pub fn encode_response(
    head: &ResponseHead,
    buffer: &[u8],
    downstream: &DownstreamHead<'_>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(u64::from(head.status), out);
    out.push(b' ');
    match bytes_of(buffer, &head.reason) {
        [] => out.extend_from_slice(reason_phrase(head.status).as_bytes()),
        reason => out.extend_from_slice(reason),
    }
    out.extend_from_slice(b"\r\n");
    for field in &head.fields {
        match field.kind {
            FieldKind::ContentLength | FieldKind::TransferEncoding | FieldKind::HopByHop => {}
            _ if is_of_router(bytes_of(buffer, &field.name)) => {}
            _ => push_unless_replaced(field, buffer, downstream.extra, out),
        }
    }
    if head.is_interim() {
        finish(None, downstream.extra, out);
        return;
    }
    let content_length = match downstream.framing {
        BodyFraming::Length(bytes) => Some(bytes),
        BodyFraming::None if head.status != 204 => head.content_length,
        _ => None,
    };
    if downstream.framing == BodyFraming::Chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    push_persistence(
        downstream.keep_alive && downstream.framing != BodyFraming::UntilClose,
        downstream.client_version,
        out,
    );
    finish(content_length, downstream.extra, out);
}

/// Worker and router both add members to this field.
const VARY: &str = "vary";

/// Fields that only the router may set. A worker's field would look like the router's.
fn is_of_router(name: &[u8]) -> bool {
    const START: &[u8] = b"x-forebay-";
    name.get(..START.len()).is_some_and(|start| start.eq_ignore_ascii_case(START))
}

fn push_unless_replaced(field: &Field, buffer: &[u8], extra: &[(&str, &[u8])], out: &mut Vec<u8>) {
    let name = bytes_of(buffer, &field.name);
    if let Some(own) = extra.iter().find(|(own, _)| is_named(name, own.as_bytes())) {
        return push_beside(name, bytes_of(buffer, &field.value), own, out);
    }
    push_line(name, bytes_of(buffer, &field.value), out);
}

/// Appends what stays of a field beside the router's field of that name: nothing, or of `Vary` the
/// members that the router's field lacks. `Vary` fields accumulate (RFC 9110 section 12.5.5).
#[cold]
fn push_beside(name: &[u8], value: &[u8], own: &(&str, &[u8]), out: &mut Vec<u8>) {
    let (VARY, own) = *own else { return };
    let members = |list: &'_ [u8]| -> Vec<Vec<u8>> {
        let trimmed = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        trimmed.filter(|member| !member.is_empty()).map(<[u8]>::to_ascii_lowercase).collect()
    };
    let own = members(own);
    let (known, further): (Vec<_>, Vec<_>) =
        members(value).into_iter().partition(|member| own.contains(member));
    if known.is_empty() {
        push_line(name, value, out);
    } else if !further.is_empty() {
        push_line(name, &further.join(&b", "[..]), out);
    }
}

#[inline(always)]
fn push_line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// True if the names are the same to a server that reads an underscore as a hyphen.
fn is_named(name: &[u8], own: &[u8]) -> bool {
    let folded = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == own.len() && name.iter().map(folded).eq(own.iter().map(folded))
}

pub(super) fn push_persistence(keep_alive: bool, client_version: Version, out: &mut Vec<u8>) {
    match (keep_alive, client_version) {
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
        (true, Version::Http10) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (true, Version::Http11) => {}
    }
}

pub(super) fn push_field(name: &str, value: &[u8], out: &mut Vec<u8>) {
    debug_assert!(
        !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)),
        "own field values hold no line ends"
    );
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends own fields that have a value, the length, and the empty line.
pub(super) fn finish(content_length: Option<u64>, extra: &[(&str, &[u8])], out: &mut Vec<u8>) {
    for (name, value) in extra.iter().filter(|(_, value)| !value.is_empty()) {
        push_field(name, value, out);
    }
    if let Some(bytes) = content_length {
        out.extend_from_slice(b"content-length: ");
        push_decimal(bytes, out);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes a chunk header (size in hexadecimal, CR LF) right-aligned into `out` and returns its
/// start, so that the header can directly precede the data in one buffer. `data_bytes` must be from
/// 1 to 2^32 - 1.
pub fn encode_chunk_header(data_bytes: usize, out: &mut [u8; 10]) -> usize {
    forebay_base::invariant!(data_bytes > 0 && data_bytes <= 0xffff_ffff, out.len());
    let mut left = data_bytes;
    let mut start = out.len();
    for (index, slot) in out.iter_mut().enumerate().rev() {
        *slot = match index {
            9 => b'\n',
            8 => b'\r',
            _ if left == 0 => break,
            _ => {
                let digit = b"0123456789abcdef".get(left & 0xf).copied().unwrap_or(b'0');
                left >>= 4;
                digit
            }
        };
        start = index;
    }
    start
}

#[cfg(test)]
mod tests {
    use super::{
        DownstreamHead, UpstreamHead, encode_chunk_header, encode_request, encode_response,
    };
    use crate::{
        BodyFraming, HeadLimits, Method, RequestHead, ResponseHead, Version, parse_request,
        parse_response,
    };

    /// With them a client could let a decode engine fetch its KV from any host.
    #[test]
    fn fields_that_steer_the_fleet_do_not_travel() {
        let request = b"POST /generate HTTP/1.1\r\nHost: x\r\nX-Override-Rid: a\r\nX-Override-Bootstrap-Host: 10.0.0.1\r\nx-override-bootstrap-port: 1\r\nx-override-bootstrap-room: 1\r\nx-override-routed-dp-rank: 1\r\nx-override-disagg-prefill-dp-rank: 1\r\nx-override-priority: 1\r\nx-override-conversation-id: 1\r\nContent-Length: 0\r\n\r\n";
        let mut head = RequestHead::default();
        parse_request(request, &HeadLimits::default(), &mut head).unwrap();
        let upstream = UpstreamHead {
            authority: "w",
            via: b"forebay",
            content_length: Some(0),
            request_id: b"",
            authorization: None,
            extra: &[],
        };
        let mut out = Vec::new();
        encode_request(&head, request, &upstream, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "POST /generate HTTP/1.1\r\nhost: w\r\nx-override-conversation-id: 1\r\nvia: 1.1 forebay\r\ncontent-length: 0\r\n\r\n"
        );
    }

    #[test]
    fn requests_leave_with_own_framing() {
        let request = b"POST /a?b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer c\r\nX-Request-ID: theirs\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\nTE: trailers\r\nContent_Length: 9\r\nProxy-Foo: 1\r\nExpect: 100-continue\r\nX-Rank: 9\r\nX-Keep: \xe9\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut head = RequestHead::default();
        parse_request(request, &HeadLimits::default(), &mut head).unwrap();
        let mut upstream = UpstreamHead {
            authority: "w:1",
            via: b"forebay",
            content_length: Some(3),
            request_id: b"ours",
            authorization: Some("Bearer w"),
            extra: &[("x-rank", b"2")],
        };
        let mut out = Vec::new();
        encode_request(&head, request, &upstream, &mut out);
        let wanted = b"POST /a?b HTTP/1.1\r\nhost: w:1\r\nX-Keep: \xe9\r\nvia: 1.1 forebay\r\nauthorization: Bearer w\r\nx-request-id: ours\r\nx-rank: 2\r\ncontent-length: 3\r\n\r\n";
        assert_eq!(out, wanted);
        upstream.request_id = b"";
        upstream.authorization = None;
        upstream.content_length = None;
        out.clear();
        encode_request(&head, request, &upstream, &mut out);
        let text = String::from_utf8_lossy(&out);
        assert!(
            text.contains("X-Request-ID: theirs\r\n")
                && text.contains("Authorization: Bearer c\r\n")
        );
        assert!(!text.contains("ength"));
    }

    fn passed_on(
        response: &[u8],
        method: Method,
        framing: BodyFraming,
        client_version: Version,
        keep_alive: bool,
    ) -> String {
        let mut head = ResponseHead::default();
        parse_response(response, &method, &HeadLimits::default(), &mut head).unwrap();
        let mut out = Vec::new();
        encode_response(
            &head,
            response,
            &DownstreamHead { framing, keep_alive, client_version, extra: &[("server", b"f")] },
            &mut out,
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn responses_reach_the_client_with_own_framing() {
        let response = b"HTTP/1.1 200 \r\nServer: s\r\nConnection: x-a\r\nX-A: 1\r\nKeep-Alive: timeout=5\r\nX-B: 2\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(
            passed_on(response, Method::Get, BodyFraming::Chunked, Version::Http11, true),
            "HTTP/1.1 200 OK\r\nX-B: 2\r\ntransfer-encoding: chunked\r\nserver: f\r\n\r\n"
        );
        assert_eq!(
            passed_on(response, Method::Get, BodyFraming::UntilClose, Version::Http10, true),
            "HTTP/1.1 200 OK\r\nX-B: 2\r\nconnection: close\r\nserver: f\r\n\r\n"
        );
        assert_eq!(
            passed_on(response, Method::Get, BodyFraming::Length(4), Version::Http10, true),
            "HTTP/1.1 200 OK\r\nX-B: 2\r\nconnection: keep-alive\r\nserver: f\r\ncontent-length: 4\r\n\r\n"
        );
    }

    /// F10: a worker's field reached the client as the router's.
    #[test]
    fn a_worker_does_not_speak_for_the_router() {
        let response = b"HTTP/1.1 200 OK\r\nX-Forebay-Reason: a\r\nx-forebay-worker: b\r\nX-FOREBAY-: c\r\nX-Forebay: d\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(
            passed_on(response, Method::Get, BodyFraming::Length(0), Version::Http11, true),
            "HTTP/1.1 200 OK\r\nX-Forebay: d\r\nserver: f\r\ncontent-length: 0\r\n\r\n"
        );
    }

    #[test]
    fn lengths_without_a_body() {
        let response = |status: &str| format!("HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\n");
        let of = |status: &str, method| {
            passed_on(response(status).as_bytes(), method, BodyFraming::None, Version::Http11, true)
                .contains("content-length: 5")
        };
        assert!(of("200", Method::Head) && of("304", Method::Get));
        assert!(!of("204", Method::Get) && !of("103", Method::Get));
    }

    #[test]
    fn chunk_headers_are_right_aligned() {
        for (bytes, wanted) in
            [(1, "1\r\n"), (0x10, "10\r\n"), (16_384, "4000\r\n"), (0xffff_ffff, "ffffffff\r\n")]
        {
            let mut out = [0; 10];
            let start = encode_chunk_header(bytes, &mut out);
            assert_eq!(&out[start..], wanted.as_bytes());
        }
    }
}
