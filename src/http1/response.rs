//! Response heads from workers.

use super::chars::value_run;
use super::error::HeadError;
use super::fields::{connection, framing, media_type};
use super::head::{
    BodyFraming, FieldKind, HeadLimits, Method, Progress, ResponseHead, Version, span,
};
use super::lines::{field_lines, line_end};

/// Parses the response head at the front of `buffer`; `request_method` decides whether a body
/// follows.
///
/// Interim responses (1xx) are returned like final responses, without body; 101 is an error, since
/// the request did not ask for an upgrade. As strict as [`super::parse_request`]; an error means
/// that the worker's response is unusable.
pub fn parse_response(
    buffer: &[u8],
    request_method: &Method,
    limits: &HeadLimits,
    head: &mut ResponseHead,
) -> Result<Progress, HeadError> {
    let parsed = parse_switch(buffer, request_method, limits, head);
    if head.status == 101 { Err(HeadError::Switched) } else { parsed }
}

/// Like [`parse_response`], for a request that asks for an upgrade: the head may be a 101.
pub fn parse_switch(
    buffer: &[u8],
    request_method: &Method,
    limits: &HeadLimits,
    head: &mut ResponseHead,
) -> Result<Progress, HeadError> {
    head.clear();
    let window = buffer.get(..limits.head_bytes_max).unwrap_or(buffer);
    let end = match status_line(window, head)? {
        Some(fields_start) => {
            field_lines(window, fields_start, limits.fields_max, &mut head.fields)?
        }
        None => None,
    };
    let Some(end) = end else {
        return if buffer.len() < limits.head_bytes_max {
            Ok(Progress::Partial)
        } else {
            Err(HeadError::HeadTooLarge)
        };
    };
    finish(window, end, request_method, head)?;
    Ok(Progress::Complete)
}

fn status_line(window: &[u8], head: &mut ResponseHead) -> Result<Option<usize>, HeadError> {
    let Some((version, protocol_bytes)) = Version::read(window)? else { return Ok(None) };
    head.version = version;
    if window.get(protocol_bytes) != Some(&b' ') {
        return Err(HeadError::StartLine);
    }
    let rest = window.get(protocol_bytes + 1..).unwrap_or(&[]);
    for index in 0..3 {
        match rest.get(index) {
            None => return Ok(None),
            Some(digit @ b'0'..=b'9') => head.status = head.status * 10 + u16::from(digit - b'0'),
            Some(_) => return Err(HeadError::Status),
        }
    }
    if !(100..600).contains(&head.status) {
        return Err(HeadError::Status);
    }
    let after_status = protocol_bytes + 4;
    match window.get(after_status) {
        None => Ok(None),
        // Some servers omit the space together with the phrase.
        Some(b'\r') => line_end(window, after_status),
        Some(b' ') => {
            let phrase = window.get(after_status + 1..).unwrap_or(&[]);
            let phrase_bytes = value_run(phrase);
            let phrase_end = after_status + 1 + phrase_bytes;
            head.reason = span(after_status + 1..phrase_end);
            match phrase.get(phrase_bytes) {
                None => Ok(None),
                Some(b'\r') => line_end(window, phrase_end),
                Some(b'\n') => Err(HeadError::LineEnd),
                Some(_) => Err(HeadError::FieldValue),
            }
        }
        Some(_) => Err(HeadError::StartLine),
    }
}

/// RFC 9112 section 6.3, in its order.
fn finish(
    window: &[u8],
    end: usize,
    request_method: &Method,
    head: &mut ResponseHead,
) -> Result<(), HeadError> {
    let framing = framing(&head.fields, window, head.version)?;
    head.content_length = framing.length;
    let no_body = *request_method == Method::Head || matches!(head.status, 100..=199 | 204 | 304);
    head.body = match framing.length {
        _ if no_body => BodyFraming::None,
        Some(bytes) => BodyFraming::Length(bytes),
        None if framing.chunked => BodyFraming::Chunked,
        None => BodyFraming::UntilClose,
    };
    head.keep_alive =
        connection(&mut head.fields, window, head.version)? && head.body != BodyFraming::UntilClose;
    head.media = head.value_of(FieldKind::ContentType, window).map(media_type).unwrap_or_default();
    head.head_bytes = end;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse_response;
    use crate::{
        BodyFraming, HeadError, HeadLimits, MediaType, Method, Progress, ResponseHead, Version,
    };

    fn parsed(text: &str, method: Method) -> Result<ResponseHead, HeadError> {
        let mut head = ResponseHead::default();
        match parse_response(text.as_bytes(), &method, &HeadLimits::default(), &mut head)? {
            Progress::Complete => Ok(head),
            Progress::Partial => panic!("{text:?} is partial"),
        }
    }

    #[test]
    fn framing_in_the_order_of_the_rfc() {
        let framing =
            |text: &str, method| parsed(text, method).map(|head| (head.body, head.keep_alive));
        let none = Ok((BodyFraming::None, true));
        assert_eq!(framing("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Method::Head), none);
        assert_eq!(
            framing("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", Method::Get),
            none
        );
        assert_eq!(
            framing("HTTP/1.1 304 \r\nTransfer-Encoding: chunked\r\n\r\n", Method::Get),
            none
        );
        assert_eq!(framing("HTTP/1.1 103 Early Hints\r\n\r\n", Method::Get), none);
        assert_eq!(
            framing("HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n", Method::Get),
            Ok((BodyFraming::Chunked, true))
        );
        assert_eq!(
            framing("HTTP/1.1 200 OK\r\n\r\n", Method::Get),
            Ok((BodyFraming::UntilClose, false))
        );
        assert_eq!(
            framing("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", Method::Get),
            Ok((BodyFraming::Length(0), false))
        );
        for fields in [
            "Content-Length: 5\r\nContent-Length: 2",
            "Content-Length: 5\r\nContent-Length: 5",
            "Content-Length: ",
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: gzip, chunked",
        ] {
            assert!(
                framing(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n"), Method::Get).is_err(),
                "{fields}"
            );
        }
    }

    #[test]
    fn junk_is_no_status_line() {
        for line in [
            "HTTP/1.1 20 OK",
            "HTTP/1.1 2000",
            "HTTP/1.1  200 OK",
            "HTTP/1.1 600 X",
            "HTTP/1.1 099 X",
            "HTTP/1.1 200 a\u{1}b",
            "HTTP/2 200 OK",
            "ICY 200 OK",
            "hello",
            "HTTP/1.1 101 Switching Protocols",
            "\r\nHTTP/1.1 200 OK",
        ] {
            assert!(
                parsed(&format!("{line}\r\nContent-Length: 0\r\n\r\n"), Method::Get).is_err(),
                "{line}"
            );
        }
    }

    #[test]
    fn media_types_are_recognised() {
        let media = |fields: &str| {
            parsed(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), Method::Post).unwrap().media
        };
        let named = |kind: &str| media(&format!("Content-Type: {kind}\r\n"));
        assert_eq!(named("text/event-stream"), MediaType::EventStream);
        assert_eq!(named("Text/Event-Stream ; charset=utf-8"), MediaType::EventStream);
        assert_eq!(named("application/JSON; charset=utf-8"), MediaType::Json);
        assert_eq!(named("application/octet-stream"), MediaType::Bytes);
        for other in ["", "text/event-streams", "text/html", "application/json5"] {
            assert_eq!(named(other), MediaType::Other, "{other}");
        }
        assert_eq!(media(""), MediaType::Unstated);
    }

    #[test]
    fn old_clients_get_no_chunks() {
        let head =
            parsed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Method::Get).unwrap();
        assert_eq!(head.framing_for(Version::Http11), BodyFraming::Chunked);
        assert_eq!(head.framing_for(Version::Http10), BodyFraming::UntilClose);
    }
}
