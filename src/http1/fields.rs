//! Interprets fields: framing, persistence, expectations, and fields that must not be forwarded.

use super::chars::trim_blanks;
use super::error::HeadError;
use super::head::{Field, FieldKind, MediaType, Version, bytes_of};
use super::header;

/// Connection options read in a head; each costs a comparison with every field.
const CONNECTION_OPTIONS_MAX: usize = 64;

/// Fields that redirect an SGLang engine to another host or rank, like the members that
/// `parse::scan` refuses in bodies; or that change the request id for aborts, which must be the
/// body's (0.5.23, `entrypoints/request_headers.py`); or the priority. Only the router may set
/// these: the client's fields are dropped.
const FLEET_FIELDS: [&str; 7] = [
    "x-override-rid",
    "x-override-bootstrap-host",
    "x-override-bootstrap-port",
    "x-override-bootstrap-room",
    "x-override-routed-dp-rank",
    "x-override-disagg-prefill-dp-rank",
    "x-override-priority",
];
/// Their prefix: a name without it needs no comparison with the list.
const FLEET_PREFIX: &str = "x-override-";

/// Kind of a field with that name, `Connection` itself aside.
// Not inlined: the loop over lines keeps its values in registers.
#[inline(never)]
pub(super) fn classify(name: &[u8]) -> FieldKind {
    let is = |known: &str| is_named(name, known);
    match name.len() {
        2 if is("te") => FieldKind::HopByHop,
        3 if is(header::VIA) => FieldKind::Via,
        4 if is("host") => FieldKind::Host,
        6 if is("expect") => FieldKind::Expect,
        7 if is("trailer") || is("upgrade") => FieldKind::HopByHop,
        9 if is(header::API_KEY) => FieldKind::ApiKey,
        10 if is("connection") || is("keep-alive") => FieldKind::HopByHop,
        11 if is(header::RETRY_AFTER) => FieldKind::RetryAfter,
        12 if is("content-type") => FieldKind::ContentType,
        12 if is(header::REQUEST_ID) => FieldKind::RequestId,
        13 if is(header::AUTHORIZATION) => FieldKind::Authorization,
        14 if is("content-length") => FieldKind::ContentLength,
        14 if is("http2-settings") || is("content_length") => FieldKind::HopByHop,
        15 if is(header::VLLM_PRIORITY) => FieldKind::VllmPriority,
        16 if is("content-encoding") => FieldKind::ContentEncoding,
        17 if is("transfer-encoding") => FieldKind::TransferEncoding,
        17 if is("transfer_encoding") => FieldKind::HopByHop,
        18 if is(header::PRIORITY) => FieldKind::Priority,
        20 if is(header::DP_RANK) => FieldKind::DpRank,
        19 if is(header::TIMEOUT) => FieldKind::Timeout,
        20 if is(header::TIMEOUT_MS) => FieldKind::TimeoutMs,
        24 if is(header::READ_TIMEOUT) => FieldKind::ReadTimeout,
        14.. if has_prefix(name, FLEET_PREFIX) && FLEET_FIELDS.iter().any(|known| is(known)) => {
            FieldKind::HopByHop
        }
        7.. if has_prefix(name, "proxy-") => FieldKind::HopByHop,
        _ => FieldKind::Other,
    }
}

/// True if a token begins with that name, in any case.
#[inline]
fn has_prefix(token: &[u8], name: &str) -> bool {
    token.get(..name.len()).is_some_and(|start| is_named(start, name))
}

/// True if a token is that name, in any case. The name has letters, digits, hyphens and
/// underscores: among bytes of tokens, only two cases of a letter differ by the bit of the case.
#[inline]
fn is_named(token: &[u8], name: &str) -> bool {
    const CASE: u8 = 0x20;
    const CASES: u64 = u64::from_ne_bytes([CASE; 8]);
    let name = name.as_bytes();
    if token.len() != name.len() {
        return false;
    }
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes) | CASES;
    // The last word overlaps the word before it. No early end: words are compared without a branch.
    let (Some(last), Some(known_last)) = (token.last_chunk(), name.last_chunk()) else {
        let pairs = token.iter().zip(name);
        return pairs.fold(0, |differ, (byte, known)| differ | (byte | CASE) ^ (known | CASE)) == 0;
    };
    let words = token.as_chunks().0.iter().zip(name.as_chunks().0);
    let ends = word(last) ^ word(known_last);
    words.fold(ends, |differ, (token, known)| differ | word(token) ^ word(known)) == 0
}

/// The message's framing fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Framing {
    pub length: Option<u64>,
    pub chunked: bool,
    pub is_coded: bool,
}

/// Reads `Content-Length` and `Transfer-Encoding` (RFC 9112 sections 6.1 to 6.3): at most one of
/// them, once, with only digits or `chunked` as value. Also checks whether `Content-Encoding` names
/// a coding.
pub(super) fn framing(
    fields: &[Field],
    buffer: &[u8],
    version: Version,
) -> Result<Framing, HeadError> {
    let mut found = Framing::default();
    for field in fields {
        let value = || bytes_of(buffer, &field.value);
        match field.kind {
            FieldKind::ContentLength if found.length.is_some() => {
                return Err(HeadError::ContentLengthRepeated);
            }
            FieldKind::ContentLength => {
                found.length = Some(decimal(value()).ok_or(HeadError::ContentLength)?);
            }
            FieldKind::TransferEncoding
                if found.chunked || value().is_empty() || version == Version::Http10 =>
            {
                return Err(HeadError::TransferEncoding);
            }
            FieldKind::TransferEncoding if value().eq_ignore_ascii_case(b"chunked") => {
                found.chunked = true;
            }
            FieldKind::TransferEncoding => return Err(HeadError::Coding),
            FieldKind::ContentEncoding => {
                let coding = value();
                found.is_coded |= !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity");
            }
            _ => {}
        }
    }
    if found.chunked && found.length.is_some() {
        return Err(HeadError::FramingConflict);
    }
    Ok(found)
}

/// Parses a decimal number below 2^63; no sign, no list, no space.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    (value <= u64::MAX >> 1).then_some(value)
}

/// Reads `Connection`: marks the fields it names as hop-by-hop (RFC 9110 section 7.6.1) and returns
/// whether the connection persists (RFC 9112 section 9.3).
pub(super) fn connection(
    fields: &mut [Field],
    buffer: &[u8],
    version: Version,
) -> Result<bool, HeadError> {
    let mut close = false;
    let mut keep_alive = false;
    let mut options = 0_usize;
    for index in 0..fields.len() {
        let Some(field) = fields.get(index) else { break };
        if field.kind != FieldKind::HopByHop
            || !bytes_of(buffer, &field.name).eq_ignore_ascii_case(b"connection")
        {
            continue;
        }
        let value = field.value.clone();
        for option in bytes_of(buffer, &value).split(|byte| *byte == b',').map(trim_blanks) {
            options += 1;
            if options > CONNECTION_OPTIONS_MAX {
                return Err(HeadError::ConnectionOptions);
            }
            if option.eq_ignore_ascii_case(b"close") {
                close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                keep_alive = true;
            } else if !option.is_empty() {
                nominate(fields, buffer, option);
            }
        }
    }
    Ok(!close && (keep_alive || version == Version::Http11))
}

fn nominate(fields: &mut [Field], buffer: &[u8], option: &[u8]) {
    for field in fields {
        let framing = matches!(
            field.kind,
            FieldKind::Host | FieldKind::ContentLength | FieldKind::TransferEncoding
        );
        if !framing && bytes_of(buffer, &field.name).eq_ignore_ascii_case(option) {
            field.kind = FieldKind::HopByHop;
        }
    }
}

/// Reads `Expect` (RFC 9110 section 10.1.1): true for `100-continue`. HTTP/1.0 requests expect
/// nothing.
pub(super) fn expects_continue(
    fields: &[Field],
    buffer: &[u8],
    version: Version,
) -> Result<bool, HeadError> {
    let mut expects = false;
    if version == Version::Http10 {
        return Ok(false);
    }
    for field in fields.iter().filter(|field| field.kind == FieldKind::Expect) {
        for member in bytes_of(buffer, &field.value).split(|byte| *byte == b',').map(trim_blanks) {
            match member {
                [] => {}
                known if known.eq_ignore_ascii_case(b"100-continue") => expects = true,
                _ => return Err(HeadError::Expectation),
            }
        }
    }
    Ok(expects)
}

/// The media type of a `Content-Type` value.
pub(super) fn media_type(value: &[u8]) -> MediaType {
    let media = trim_blanks(value.split(|byte| *byte == b';').next().unwrap_or(&[]));
    match () {
        () if media.eq_ignore_ascii_case(b"application/json") => MediaType::Json,
        () if media.eq_ignore_ascii_case(b"text/event-stream") => MediaType::EventStream,
        () if media.eq_ignore_ascii_case(b"application/octet-stream") => MediaType::Bytes,
        () => MediaType::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::{FLEET_FIELDS, FLEET_PREFIX, has_prefix, is_named};
    use crate::chars::is_token;

    #[test]
    fn fields_of_the_fleet_have_its_prefix() {
        assert!(FLEET_FIELDS.iter().all(|name| has_prefix(name.as_bytes(), FLEET_PREFIX)));
        assert!(has_prefix(b"Proxy-A", "proxy-") && !has_prefix(b"Prox", "proxy-"));
    }

    /// Each name with each byte of a token in each place: no byte but another case is taken for it.
    #[test]
    fn names_are_the_same_in_any_case_only() {
        let names = ["host", "te", "content-length", "content_length", "http2-settings"];
        for name in names.into_iter().chain(FLEET_FIELDS) {
            for place in 0..name.len() {
                for byte in (0..=u8::MAX).filter(|byte| is_token(*byte)) {
                    let mut token = name.as_bytes().to_vec();
                    token[place] = byte;
                    let expected = token.eq_ignore_ascii_case(name.as_bytes());
                    assert_eq!(is_named(&token, name), expected, "{byte:#x} at {place} of {name}");
                }
            }
            assert!(!is_named(&name.as_bytes()[1..], name), "{name} without its first byte");
        }
    }
}
