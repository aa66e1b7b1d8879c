//! The opening handshake of WebSocket (RFC 6455 section 4): checks request and response. The
//! handshake's fields are forwarded unchanged; the relay checks the hash that joins them.

use super::chars::trim_blanks;
use super::error::HeadError;
use super::head::{
    BodyFraming, Field, FieldKind, Method, RequestHead, ResponseHead, Version, bytes_of,
};

/// Base64 of 16 bytes.
const KEY_BYTES: usize = 24;

/// True if the client asks for WebSocket. Other upgrades are not offered to workers.
#[must_use]
pub fn asks_for_websocket(head: &RequestHead, buffer: &[u8]) -> bool {
    head.method == Method::Get
        && head.version == Version::Http11
        && upgrades_to_websocket(&head.fields, buffer)
}

/// The key of a WebSocket request.
///
/// # Errors
/// The fault of the handshake. The router must find it before the engine: servers differ in what
/// they accept.
pub fn websocket_key<'a>(head: &RequestHead, buffer: &'a [u8]) -> Result<&'a [u8], HeadError> {
    if !matches!(head.body, BodyFraming::None | BodyFraming::Length(0)) {
        return Err(HeadError::WebSocketBody);
    }
    if only(&head.fields, buffer, b"sec-websocket-version") != Some(b"13") {
        return Err(HeadError::WebSocketVersion);
    }
    only(&head.fields, buffer, b"sec-websocket-key")
        .filter(|key| is_key(key))
        .ok_or(HeadError::WebSocketKey)
}

/// The accept value of a worker's head, if the head switches to WebSocket.
#[must_use]
pub fn websocket_accept<'a>(head: &ResponseHead, buffer: &'a [u8]) -> Option<&'a [u8]> {
    let switches = head.status == 101
        && head.version == Version::Http11
        && upgrades_to_websocket(&head.fields, buffer);
    if switches { only(&head.fields, buffer, b"sec-websocket-accept") } else { None }
}

fn upgrades_to_websocket(fields: &[Field], buffer: &[u8]) -> bool {
    // Without this, `Upgrade` only advertises protocols.
    has_member(fields, buffer, b"connection", b"upgrade")
        && has_member(fields, buffer, b"upgrade", b"websocket")
}

/// True if a list field of that name has the member, in any case.
fn has_member(fields: &[Field], buffer: &[u8], name: &[u8], member: &[u8]) -> bool {
    let named = fields.iter().filter(|field| is_named(field, buffer, name));
    let mut members =
        named.flat_map(|field| bytes_of(buffer, &field.value).split(|byte| *byte == b','));
    members.any(|candidate| trim_blanks(candidate).eq_ignore_ascii_case(member))
}

/// The value of the only field of that name, if the field is forwarded.
fn only<'a>(fields: &[Field], buffer: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut named = fields.iter().filter(|field| is_named(field, buffer, name));
    let first = named.next().filter(|field| field.kind == FieldKind::Other)?;
    named.next().is_none().then(|| bytes_of(buffer, &first.value))
}

fn is_named(field: &Field, buffer: &[u8], name: &[u8]) -> bool {
    bytes_of(buffer, &field.name).eq_ignore_ascii_case(name)
}

fn is_key(key: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    // 22 digits are 132 bits: the last digit has 4 unused bits, which may be set.
    key.len() == KEY_BYTES
        && key.strip_suffix(b"==").is_some_and(|digits| digits.iter().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeadLimits, Progress, parse_request, parse_switch};

    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

    fn asked(text: &str) -> (RequestHead, &[u8]) {
        let mut head = RequestHead::default();
        let parsed = parse_request(text.as_bytes(), &HeadLimits::default(), &mut head);
        assert_eq!(parsed, Ok(Progress::Complete), "{text}");
        (head, text.as_bytes())
    }

    fn asks(line: &str, fields: &str) -> bool {
        let text = format!("{line}\r\nHost: a\r\n{fields}\r\n\r\n");
        let (head, buffer) = asked(&text);
        asks_for_websocket(&head, buffer)
    }

    fn key(fields: &str) -> Result<String, HeadError> {
        let text = format!("GET /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let (head, buffer) = asked(&text);
        websocket_key(&head, buffer).map(|key| String::from_utf8_lossy(key).into_owned())
    }

    #[test]
    fn a_client_asks_with_both_fields() {
        let line = "GET /v1/realtime HTTP/1.1";
        for fields in [
            "Upgrade: websocket\r\nConnection: Upgrade",
            "upgrade: WebSocket\r\nconnection: keep-alive, upgrade",
            "Connection: keep-alive\r\nUpgrade: h2c, websocket\r\nConnection: UPGRADE",
        ] {
            assert!(asks(line, fields), "{fields}");
        }
        for fields in [
            "Upgrade: websocket",
            "Connection: upgrade",
            "Upgrade: h2c\r\nConnection: Upgrade",
            "Upgrade: websocket/13\r\nConnection: Upgrade",
            "Upgrade: websocket\r\nConnection: close",
            "X-Upgrade: websocket\r\nConnection: Upgrade",
        ] {
            assert!(!asks(line, fields), "{fields}");
        }
        let both = "Upgrade: websocket\r\nConnection: Upgrade";
        assert!(!asks("GET /v1/realtime HTTP/1.0", both) && !asks("POST / HTTP/1.1", both));
    }

    #[test]
    fn a_key_is_sixteen_bytes_and_stands_once() {
        let version = "Sec-WebSocket-Version: 13";
        assert_eq!(key(&format!("sec-websocket-key: {KEY}\r\n{version}")).as_deref(), Ok(KEY));
        for fields in [
            String::new(),
            format!("Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Key: {KEY}\r\n"),
            format!("Sec-WebSocket-Key: {KEY}, {KEY}\r\n"),
            format!("Connection: sec-websocket-key\r\nSec-WebSocket-Key: {KEY}\r\n"),
            "Sec-WebSocket-Key:\r\n".to_owned(),
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=\r\n".to_owned(),
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ\r\n".to_owned(),
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZWE=\r\n".to_owned(),
            "Sec-WebSocket-Key: dGhlIHNhbXBs-SBub25jZQ==\r\n".to_owned(),
        ] {
            assert_eq!(key(&format!("{fields}{version}")), Err(HeadError::WebSocketKey));
        }
        for wrong in ["", "Sec-WebSocket-Version: 8\r\n", "Sec-WebSocket-Version: 13, 8\r\n"] {
            let fields = format!("{wrong}Sec-WebSocket-Key: {KEY}");
            assert_eq!(key(&fields), Err(HeadError::WebSocketVersion), "{wrong}");
        }
        for body in ["Content-Length: 1", "Transfer-Encoding: chunked"] {
            let fields = format!("{body}\r\n{version}\r\nSec-WebSocket-Key: {KEY}");
            assert_eq!(key(&fields), Err(HeadError::WebSocketBody));
        }
    }

    #[test]
    fn a_worker_accepts_with_all_three_fields() {
        let accept = |line: &str, fields: &str| {
            let text = format!("{line}\r\n{fields}\r\n\r\n");
            let mut head = ResponseHead::default();
            let limits = HeadLimits::default();
            let parsed = parse_switch(text.as_bytes(), &Method::Get, &limits, &mut head);
            assert_eq!(parsed, Ok(Progress::Complete), "{text}");
            websocket_accept(&head, text.as_bytes()).map(<[u8]>::to_vec)
        };
        let line = "HTTP/1.1 101 Switching Protocols";
        let both = "Upgrade: websocket\r\nConnection: Upgrade";
        let good = format!("{both}\r\nSec-WebSocket-Accept: abc=");
        assert_eq!(accept(line, &good).as_deref(), Some(&b"abc="[..]));
        assert_eq!(accept("HTTP/1.1 200 OK", &good), None);
        assert_eq!(accept("HTTP/1.0 101 X", &good), None);
        for fields in [
            both,
            "Upgrade: websocket\r\nSec-WebSocket-Accept: abc=",
            "Connection: Upgrade\r\nSec-WebSocket-Accept: abc=",
            "Upgrade: h2c\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: abc=",
            &format!("{good}\r\nSec-WebSocket-Accept: abc="),
        ] {
            assert_eq!(accept(line, fields), None, "{fields}");
        }
    }
}
