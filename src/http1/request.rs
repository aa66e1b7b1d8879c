//! Parses and checks request heads.

use super::chars::{target_run, token_run};
use super::error::HeadError;
use super::fields::{connection, expects_continue, framing};
use super::head::{
    BodyFraming, FieldKind, HeadLimits, Method, Progress, RequestHead, Version, bytes_of, span,
};
use super::host::is_authority;
use super::lines::{field_lines, line_end};

/// Empty lines tolerated before a request line (RFC 9112 section 2.2 requires at least 1).
const EMPTY_LINES_MAX: usize = 4;
/// Longest method token to scan; longer than any registered method.
const METHOD_BYTES_MAX: usize = 32;

/// Parses the request head at the front of `buffer`.
///
/// No state is kept between calls: after [`Progress::Partial`], call again with the longer buffer
/// when [`HeadDue`](super::HeadDue) is due. Wrong bytes are refused as soon as they are scanned,
/// not only at the end of the head. After an error the contents of `head` are meaningless.
pub fn parse_request(
    buffer: &[u8],
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<Progress, HeadError> {
    head.clear();
    let window = buffer.get(..limits.head_bytes_max).unwrap_or(buffer);
    let Some(line_start) = skip_empty_lines(window)? else {
        return within(buffer, limits, HeadError::EmptyLines);
    };
    let Some(fields_start) = request_line(window, line_start, head)? else {
        return within(buffer, limits, HeadError::TargetTooLong);
    };
    let Some(end) = field_lines(window, fields_start, limits.fields_max, &mut head.fields)? else {
        return within(buffer, limits, HeadError::HeadTooLarge);
    };
    finish(window, end, head)?;
    Ok(Progress::Complete)
}

/// Partial, unless the buffer is full.
fn within(buffer: &[u8], limits: &HeadLimits, past: HeadError) -> Result<Progress, HeadError> {
    if buffer.len() < limits.head_bytes_max { Ok(Progress::Partial) } else { Err(past) }
}

fn skip_empty_lines(window: &[u8]) -> Result<Option<usize>, HeadError> {
    let mut at = 0;
    loop {
        match window.get(at) {
            None => return Ok(None),
            Some(b'\r') if at >= 2 * EMPTY_LINES_MAX => return Err(HeadError::EmptyLines),
            Some(b'\r') => match line_end(window, at)? {
                Some(next) => at = next,
                None => return Ok(None),
            },
            Some(b'\n') => return Err(HeadError::LineEnd),
            Some(_) => return Ok(Some(at)),
        }
    }
}

fn request_line(
    window: &[u8],
    start: usize,
    head: &mut RequestHead,
) -> Result<Option<usize>, HeadError> {
    let line = window.get(start..).unwrap_or(&[]);
    let method_bytes = token_run(line);
    if method_bytes > METHOD_BYTES_MAX {
        return Err(HeadError::MethodTooLong);
    }
    match line.get(method_bytes) {
        None => return Ok(None),
        Some(b' ') if method_bytes > 0 => {}
        Some(_) => return Err(HeadError::Method),
    }
    head.method = Method::from_bytes(line.get(..method_bytes).unwrap_or(&[]));
    head.method_span = span(start..start + method_bytes);
    if head.method == Method::Connect {
        return Err(HeadError::Connect);
    }
    let target_at = start + method_bytes + 1;
    let rest = window.get(target_at..).unwrap_or(&[]);
    let target_bytes = target_run(rest);
    let target = rest.get(..target_bytes).unwrap_or(&[]);
    match rest.get(target_bytes) {
        None => return Ok(None),
        Some(b' ') if target_bytes > 0 => {}
        // HTTP/0.9 knew only `GET /path`.
        Some(b'\r') if target.first() == Some(&b'/') => return Err(HeadError::Version),
        Some(b' ' | b'\r') => return Err(HeadError::StartLine),
        Some(b'\n') => return Err(HeadError::LineEnd),
        Some(_) => return Err(HeadError::Target),
    }
    let protocol_at = target_at + target_bytes + 1;
    let Some((version, protocol_bytes)) = Version::read(window.get(protocol_at..).unwrap_or(&[]))?
    else {
        return Ok(None);
    };
    let line_end_at = protocol_at + protocol_bytes;
    if window.get(line_end_at) != Some(&b'\r') {
        return Err(HeadError::StartLine);
    }
    head.version = version;
    split_target(target, target_at, head)?;
    line_end(window, line_end_at)
}

/// RFC 9112 section 3.2: origin-form, absolute-form, and `*` for OPTIONS. Authority-form belongs to
/// CONNECT.
fn split_target(target: &[u8], at: usize, head: &mut RequestHead) -> Result<(), HeadError> {
    let end = at + target.len();
    head.target = span(at..end);
    let path_at = match target {
        [b'/', ..] => at,
        b"*" if head.method == Method::Options => at,
        _ => {
            let scheme_bytes = [&b"http://"[..], b"https://"]
                .into_iter()
                .find(|scheme| {
                    target
                        .get(..scheme.len())
                        .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
                })
                .map(<[u8]>::len)
                .ok_or(HeadError::Target)?;
            let rest = target.get(scheme_bytes..).unwrap_or(&[]);
            let authority_bytes =
                rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            if !is_authority(rest.get(..authority_bytes).unwrap_or(&[])) {
                return Err(HeadError::Target);
            }
            at + scheme_bytes + authority_bytes
        }
    };
    let path_and_query = target.get(path_at - at..).unwrap_or(&[]);
    let path_bytes =
        path_and_query.iter().position(|byte| *byte == b'?').unwrap_or(path_and_query.len());
    head.path = span(path_at..path_at + path_bytes);
    head.query = span(path_at + path_bytes..end);
    Ok(())
}

fn finish(window: &[u8], end: usize, head: &mut RequestHead) -> Result<(), HeadError> {
    host(window, head)?;
    let framing = framing(&head.fields, window, head.version)?;
    head.body = match framing.length {
        Some(bytes) => BodyFraming::Length(bytes),
        None if framing.chunked => BodyFraming::Chunked,
        None => BodyFraming::None,
    };
    head.is_coded = framing.is_coded;
    let expects = expects_continue(&head.fields, window, head.version)?;
    head.expect_continue =
        expects && !matches!(head.body, BodyFraming::None | BodyFraming::Length(0));
    head.keep_alive = connection(&mut head.fields, window, head.version)?;
    head.head_bytes = end;
    Ok(())
}

/// RFC 9112 section 3.2: exactly 1 valid `Host` in HTTP/1.1, at most 1 in HTTP/1.0. It may be empty
/// only if the target has no authority of its own (`*`). In absolute form the target's authority
/// counts and `Host` is ignored.
fn host(window: &[u8], head: &RequestHead) -> Result<(), HeadError> {
    let mut hosts = head.fields.iter().filter(|field| field.kind == FieldKind::Host);
    let Some(first) = hosts.next() else {
        return if head.version == Version::Http10 { Ok(()) } else { Err(HeadError::HostMissing) };
    };
    if hosts.next().is_some() {
        return Err(HeadError::HostRepeated);
    }
    let value = bytes_of(window, &first.value);
    let may_be_empty = bytes_of(window, &head.target) == b"*";
    if is_authority(value) || (value.is_empty() && may_be_empty) {
        Ok(())
    } else {
        Err(HeadError::Host)
    }
}

#[cfg(test)]
mod tests {
    use super::parse_request;
    use crate::{
        BodyFraming, FieldKind, HeadError, HeadLimits, Method, Progress, RequestHead, Version,
        bytes_of,
    };

    const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 512, fields_max: 8 };

    fn parsed(text: &str) -> Result<RequestHead, HeadError> {
        let mut head = RequestHead::default();
        match parse_request(text.as_bytes(), &LIMITS, &mut head)? {
            Progress::Complete => Ok(head),
            Progress::Partial => panic!("{text:?} is partial"),
        }
    }

    fn refused(text: &str) -> HeadError {
        parsed(text).expect_err(text)
    }

    #[test]
    fn a_request_of_a_usual_client() {
        let text = "POST /v1/completions?a=1 HTTP/1.1\r\nHost: a:80\r\nContent-Type: application/json\r\nX-Request-Id: \t7 \r\nContent-Length: 2\r\n\r\n{}";
        let head = parsed(text).unwrap();
        assert_eq!(
            (head.method, head.version, head.body),
            (Method::Post, Version::Http11, BodyFraming::Length(2))
        );
        assert!(head.keep_alive && !head.expect_continue);
        assert_eq!(head.path(text.as_bytes()), b"/v1/completions");
        assert_eq!(bytes_of(text.as_bytes(), &head.query), b"?a=1");
        assert_eq!(head.value_of(FieldKind::RequestId, text.as_bytes()), Some(&b"7"[..]));
        assert_eq!(&text[head.head_bytes..], "{}");
    }

    #[test]
    fn targets() {
        for (line, path) in [
            ("GET / HTTP/1.1", "/"),
            ("GET http://h:1/p?q HTTP/1.1", "/p"),
            ("GET HTTPS://[::1] HTTP/1.1", "/"),
            ("OPTIONS * HTTP/1.1", "*"),
        ] {
            let text = format!("{line}\r\nHost: other\r\n\r\n");
            let head = parsed(&text).unwrap();
            assert_eq!(head.path(text.as_bytes()), path.as_bytes(), "{line}");
        }
        for target in
            ["*", "h:80", "p", "http://", "http:///p", "http://u@h/", "ftp://h/", "/a#b", "/\u{e9}"]
        {
            assert_eq!(
                refused(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")),
                HeadError::Target,
                "{target}"
            );
        }
        assert_eq!(refused("CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n"), HeadError::Connect);
    }

    #[test]
    fn versions() {
        for (version, wanted) in [
            ("HTTP/2.0", HeadError::Version),
            ("HTTP/1.10", HeadError::Version),
            ("HTTP/0.9", HeadError::Version),
            ("HTTP/01.1", HeadError::Version),
            ("HTTP/11", HeadError::Protocol),
            ("http/1.1", HeadError::Protocol),
            ("HTTP/1.1 HTTP/1.1", HeadError::StartLine),
            ("HTTP/1.1 ", HeadError::StartLine),
        ] {
            assert_eq!(
                refused(&format!("GET / {version}\r\nHost: a\r\n\r\n")),
                wanted,
                "{version}"
            );
        }
        assert_eq!(refused("GET /\r\n\r\n"), HeadError::Version);
        assert_eq!(refused("GET HTTP/1.1\r\n\r\n"), HeadError::StartLine);
        assert_eq!(parsed("GET / HTTP/1.7\r\nHost: a\r\n\r\n").unwrap().version, Version::Http11);
    }

    #[test]
    fn connections() {
        let keeps = |version: &str, fields: &str| {
            parsed(&format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n")).unwrap().keep_alive
        };
        assert!(keeps("1.1", ""));
        assert!(!keeps("1.1", "Connection: x,  CLOSE\r\n"));
        assert!(!keeps("1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
        assert!(!keeps("1.0", ""));
        assert!(keeps("1.0", "Connection: Keep-Alive\r\n"));
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n", "a,".repeat(70));
        assert_eq!(refused(&many), HeadError::ConnectionOptions);
    }

    #[test]
    fn what_connection_names_is_hop_by_hop_but_never_the_framing() {
        let head = parsed("POST / HTTP/1.1\r\nHost: a\r\nConnection: host, x-a, content-length\r\nX-A: 1\r\nX-B: 2\r\nContent-Length: 3\r\n\r\n").unwrap();
        let kinds: Vec<_> = head.fields.iter().map(|field| field.kind).collect();
        let wanted = [
            FieldKind::Host,
            FieldKind::HopByHop,
            FieldKind::HopByHop,
            FieldKind::Other,
            FieldKind::ContentLength,
        ];
        assert_eq!((kinds.as_slice(), head.body), (&wanted[..], BodyFraming::Length(3)));
    }

    #[test]
    fn framing_is_said_once() {
        let framing = |fields: &str| {
            parsed(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")).map(|head| head.body)
        };
        assert_eq!(framing("Content-Length: 007"), Ok(BodyFraming::Length(7)));
        assert_eq!(framing("Transfer-Encoding: CHUNKED"), Ok(BodyFraming::Chunked));
        assert_eq!(framing("Content_Length: 5"), Ok(BodyFraming::None));
        for (fields, wanted) in [
            ("Content-Length: 5\r\nContent-Length: 5", HeadError::ContentLengthRepeated),
            ("Content-Length: 5\r\ncontent-length: 6", HeadError::ContentLengthRepeated),
            ("Content-Length: 5, 5", HeadError::ContentLength),
            ("Content-Length: +5", HeadError::ContentLength),
            ("Content-Length:", HeadError::ContentLength),
            ("Content-Length: 9223372036854775808", HeadError::ContentLength),
            ("Content-Length: 18446744073709551621", HeadError::ContentLength),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked", HeadError::FramingConflict),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5", HeadError::FramingConflict),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                HeadError::TransferEncoding,
            ),
            ("Transfer-Encoding:", HeadError::TransferEncoding),
            ("Transfer-Encoding: chunked, chunked", HeadError::Coding),
            ("Transfer-Encoding: gzip, chunked", HeadError::Coding),
            ("Transfer-Encoding: identity", HeadError::Coding),
        ] {
            assert_eq!(framing(fields), Err(wanted), "{fields}");
        }
        let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(refused(old), HeadError::TransferEncoding);
    }

    #[test]
    fn field_lines_are_taken_to_the_letter() {
        for (line, wanted) in [
            ("X-A: a\r\n b", HeadError::Folded),
            (" X-A: a", HeadError::Folded),
            ("X-A : a", HeadError::FieldName),
            (": a", HeadError::FieldName),
            ("X(A: a", HeadError::FieldName),
            ("X-A", HeadError::FieldName),
            ("X-A: a\nX-B: b", HeadError::LineEnd),
            ("X-A: a\rX-B: b", HeadError::LineEnd),
            ("X-A: a\r\r", HeadError::LineEnd),
            ("X-A: a\0b", HeadError::FieldValue),
            ("X-A: a\u{7f}b", HeadError::FieldValue),
            ("Host: b", HeadError::HostRepeated),
        ] {
            assert_eq!(
                refused(&format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n")),
                wanted,
                "{line}"
            );
        }
        assert_eq!(refused("GET / HTTP/1.1\r\nA: b\r\n\r\n"), HeadError::HostMissing);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost:\r\n\r\n"), HeadError::Host);
        assert_eq!(
            parsed("OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n").map(|head| head.fields.len()),
            Ok(1)
        );
    }

    #[test]
    fn expectations() {
        let expects = |text: &str| parsed(text).map(|head| head.expect_continue);
        assert_eq!(
            expects(
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-Continue\r\n\r\n"
            ),
            Ok(true)
        );
        assert_eq!(
            expects("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"),
            Ok(false)
        );
        assert_eq!(
            expects("POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"),
            Ok(false)
        );
        assert_eq!(
            expects("POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n"),
            Err(HeadError::Expectation)
        );
    }

    #[test]
    fn limits_are_inclusive() {
        let mut head = RequestHead::default();
        let exact = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "v".repeat(512 - 32));
        assert_eq!(exact.len(), 512);
        assert_eq!(parse_request(exact.as_bytes(), &LIMITS, &mut head), Ok(Progress::Complete));
        let over = exact.replace("X: v", "X: vv");
        assert_eq!(
            parse_request(over.as_bytes(), &LIMITS, &mut head),
            Err(HeadError::HeadTooLarge)
        );
        let target = format!("GET /{}", "a".repeat(600));
        assert_eq!(
            parse_request(target.as_bytes(), &LIMITS, &mut head),
            Err(HeadError::TargetTooLong)
        );
        let fields = |count: usize| {
            parsed(&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: v\r\n".repeat(count)))
                .map(|head| head.fields.len())
        };
        assert_eq!((fields(7), fields(8)), (Ok(8), Err(HeadError::TooManyFields)));
        assert_eq!(refused(&"\r\n".repeat(5)), HeadError::EmptyLines);
        assert_eq!(refused(&"A".repeat(33)), HeadError::MethodTooLong);
    }

    #[test]
    fn statuses_for_clients() {
        for (error, status) in [
            (HeadError::TargetTooLong, 414),
            (HeadError::Expectation, 417),
            (HeadError::HeadTooLarge, 431),
            (HeadError::TooManyFields, 431),
            (HeadError::Coding, 501),
            (HeadError::Connect, 501),
            (HeadError::Version, 505),
            (HeadError::FramingConflict, 400),
            (HeadError::HostMissing, 400),
        ] {
            assert_eq!(error.status(), status);
        }
    }
}
