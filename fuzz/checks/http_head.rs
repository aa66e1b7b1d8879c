//! Any bytes as a request head and as a response head. Must hold: a head that was accepted is found
//! at the same place however the bytes arrive; what is forwarded parses again to the same message,
//! and nothing that belongs to one connection is left in it; `httparse` accepts whatever this
//! parser accepts. A key of a WebSocket is one; a model that a query names is named there once.

use forebay_http1::{
    BodyFraming, DownstreamHead, FieldKind, HeadError, HeadLimits, Method, Progress, RequestHead,
    ResponseHead, UpstreamHead, Version, bytes_of, encode_request, encode_response, parse_request,
    parse_response, parse_switch, websocket_accept, websocket_key,
};
use forebay_prompt::parse::query_model;

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 2_048, fields_max: 32 };

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    request(data);
    for method in [Method::Get, Method::Head] {
        response(data, method);
    }
}

/// Where a stream may be cut: everywhere when it is short, near the ends and in steps otherwise.
fn cuts(bytes: usize) -> impl Iterator<Item = usize> {
    (0..bytes).filter(move |at| bytes < 300 || at % 37 == 0 || bytes - at < 8)
}

/// `parse` returns the length of a complete head.
fn same_at_every_cut(
    data: &[u8],
    parse: impl Fn(&[u8]) -> Result<Option<usize>, HeadError>,
) -> Option<usize> {
    let whole = parse(data);
    let mut failed = None;
    for cut in cuts(data.len()) {
        let part = parse(&data[..cut]);
        match (part, whole) {
            (Ok(None), Ok(Some(end))) => {
                assert!(cut < end, "complete at {end}, still partial at {cut}");
            }
            (Ok(Some(end)), _) => assert_eq!(Ok(Some(end)), whole, "complete at {cut}"),
            (Ok(None), _) => assert_eq!(failed, None, "an error was taken back at {cut}"),
            (Err(error), _) => {
                assert_eq!(Err(error), whole, "another error at {cut}");
                failed = Some(error);
            }
        }
    }
    whole.ok().flatten()
}

fn request(data: &[u8]) {
    let mut head = RequestHead::default();
    let end = same_at_every_cut(data, |bytes| {
        let mut head = RequestHead::default();
        let progress = parse_request(bytes, &LIMITS, &mut head)?;
        Ok((progress == Progress::Complete).then_some(head.head_bytes))
    });
    if end.is_none() {
        return;
    }
    assert_eq!(parse_request(data, &LIMITS, &mut head), Ok(Progress::Complete));
    assert!(head.head_bytes <= LIMITS.head_bytes_max && head.fields.len() <= LIMITS.fields_max);
    assert_ne!(head.body, BodyFraming::UntilClose);
    handshake(&head, data);

    let mut slots = [httparse::EMPTY_HEADER; 64];
    let mut other = httparse::Request::new(&mut slots);
    let status = other.parse(data);
    if other.version.is_some() || status.is_ok() {
        assert!(
            matches!(status, Ok(httparse::Status::Complete(end)) if end == head.head_bytes),
            "httparse: {status:?}"
        );
        assert_eq!(other.headers.len(), head.fields.len());
        for (theirs, ours) in other.headers.iter().zip(&head.fields) {
            assert_eq!(theirs.name.as_bytes(), bytes_of(data, &ours.name));
            assert_eq!(theirs.value, bytes_of(data, &ours.value));
        }
    }

    let upstream = UpstreamHead {
        authority: "w:8000",
        via: b"forebay",
        content_length: Some(5),
        request_id: b"r",
        authorization: None,
        extra: &[("x-own", b"1")],
    };
    let mut out = Vec::new();
    encode_request(&head, data, &upstream, &mut out);
    let mut again = RequestHead::default();
    let limits = HeadLimits { head_bytes_max: 8_192, fields_max: 64 };
    assert_eq!(parse_request(&out, &limits, &mut again), Ok(Progress::Complete));
    assert_eq!(
        (again.head_bytes, again.version, again.body),
        (out.len(), Version::Http11, BodyFraming::Length(5))
    );
    assert!(again.keep_alive && !again.expect_continue);
    assert_eq!(bytes_of(&out, &again.method_span), bytes_of(data, &head.method_span));
    assert_eq!(again.path(&out), head.path(data));
    assert_eq!(bytes_of(&out, &again.query), bytes_of(data, &head.query));
    assert_eq!(again.value_of(FieldKind::Host, &out), Some(&b"w:8000"[..]));
    assert_eq!(again.value_of(FieldKind::RequestId, &out), Some(&b"r"[..]));
    assert!(again.fields.iter().all(|field| !matches!(
        field.kind,
        FieldKind::HopByHop | FieldKind::Expect | FieldKind::TransferEncoding
    )));
    let kept = head.fields.iter().filter(|field| {
        !matches!(
            field.kind,
            FieldKind::Host
                | FieldKind::DpRank
                | FieldKind::ContentLength
                | FieldKind::TransferEncoding
                | FieldKind::HopByHop
                | FieldKind::Expect
                | FieldKind::RequestId
        )
    });
    let kept = kept.filter(|field| !bytes_of(data, &field.name).eq_ignore_ascii_case(b"x-own"));
    assert_eq!(kept.count() + 5, again.fields.len());
}

fn handshake(head: &RequestHead, data: &[u8]) {
    if let Ok(key) = websocket_key(head, data) {
        assert!(key.len() == 24 && key.ends_with(b"=="));
        assert!(matches!(head.body, BodyFraming::None | BodyFraming::Length(0)));
    }
    model(bytes_of(data, &head.query));
}

/// The first value and the last one are the same where one is read.
fn model(query: &[u8]) {
    let Ok(Some(name)) = query_model(query) else { return };
    assert!(!name.is_empty());
    let query = query.strip_prefix(b"?").unwrap_or(query);
    let is_plain = !query.iter().any(|byte| b"%+".contains(byte));
    let values = query.split(|byte| *byte == b'&').filter_map(|part| part.strip_prefix(b"model="));
    if is_plain {
        assert_eq!(values.collect::<Vec<_>>(), [name.as_bytes()]);
    }
}

fn response(data: &[u8], method: Method) {
    let switch = same_at_every_cut(data, |bytes| {
        let mut head = ResponseHead::default();
        let progress = parse_switch(bytes, &method, &LIMITS, &mut head)?;
        let accept = websocket_accept(&head, bytes);
        assert!(accept.is_none() || head.status == 101);
        Ok((progress == Progress::Complete).then_some(head.head_bytes))
    });
    let mut head = ResponseHead::default();
    let end = same_at_every_cut(data, |bytes| {
        let mut head = ResponseHead::default();
        let progress = parse_response(bytes, &method, &LIMITS, &mut head)?;
        Ok((progress == Progress::Complete).then_some(head.head_bytes))
    });
    if end.is_none() {
        return;
    }
    assert_eq!(switch, end, "but for a 101 they are the same");
    assert_eq!(parse_response(data, &method, &LIMITS, &mut head), Ok(Progress::Complete));
    assert!((100..600).contains(&head.status));
    if method == Method::Head || head.is_interim() || matches!(head.status, 204 | 304) {
        assert_eq!(head.body, BodyFraming::None);
    }
    for (client_version, keep_alive) in
        [(Version::Http11, true), (Version::Http10, true), (Version::Http11, false)]
    {
        let framing = head.framing_for(client_version);
        let downstream =
            DownstreamHead { framing, keep_alive, client_version, extra: &[("x-own", b"1")] };
        let mut out = Vec::new();
        encode_response(&head, data, &downstream, &mut out);
        let mut again = ResponseHead::default();
        let limits = HeadLimits { head_bytes_max: 8_192, fields_max: 64 };
        assert_eq!(parse_response(&out, &method, &limits, &mut again), Ok(Progress::Complete));
        assert_eq!((again.head_bytes, again.status, again.body), (out.len(), head.status, framing));
        if !head.is_interim() {
            assert_eq!(again.keep_alive, keep_alive && framing != BodyFraming::UntilClose);
            assert_eq!(
                again.is_event_stream(),
                head.is_event_stream() && again.value_of(FieldKind::ContentType, &out).is_some()
            );
        }
    }
}
