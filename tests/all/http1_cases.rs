//! Plays the recorded HTTP/1.1 cases against the codec, as far as a codec without sockets can be
//! judged: what it accepts, what status it refuses with, and that every byte it would forward is
//! beyond doubt.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops where it finds a fault"
)]

use forebay::http1::{
    BodyFraming, BodyLimits, ChunkedDecoder, HeadLimits, Method, Progress, RequestHead,
    ResponseHead, UpstreamHead, Version, encode_request, parse_request, parse_response,
};
use serde_json::Value;

const BODY: &str = r#"{"model":"m","prompt":"hi"}"#;

fn cases(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(format!("tests/data/http/{file}")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn words<'a>(case: &'a Value, key: &str) -> Vec<&'a str> {
    case[key]
        .as_array()
        .map(|list| list.iter().map(|word| word.as_str().unwrap()).collect())
        .unwrap_or_default()
}

/// Text of a case as bytes: macros filled in, one byte per character.
fn bytes_of_text(text: &str) -> Vec<u8> {
    let half = BODY.len() / 2;
    let macros = [
        ("{{STD}}", "Host: {{HOST}}\r\nContent-Type: application/json\r\n".to_owned()),
        ("{{XH}}", "Content-Type: application/json\r\n".to_owned()),
        ("{{HOST}}", "localhost".to_owned()),
        ("{{PATH}}", "/v1/models".to_owned()),
        ("{{POST}}", "/v1/completions".to_owned()),
        ("{{LEN}}", BODY.len().to_string()),
        ("{{HLEN}}", format!("{:x}", BODY.len())),
        ("{{B1}}", BODY[..half].to_owned()),
        ("{{H1}}", format!("{half:x}")),
        ("{{B2}}", BODY[half..].to_owned()),
        ("{{H2}}", format!("{:x}", BODY.len() - half)),
        ("{{BODY}}", BODY.to_owned()),
    ];
    let filled =
        macros.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
    filled.chars().map(|character| u8::try_from(u32::from(character)).unwrap()).collect()
}

/// All bytes of a case, and whether the sender closes its side.
fn stream(case: &Value) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let mut closed = false;
    for step in case["send"].as_array().unwrap() {
        match step {
            Value::String(text) => bytes.extend(bytes_of_text(text)),
            Value::Array(pair) => {
                bytes.extend(
                    bytes_of_text(pair[0].as_str().unwrap())
                        .repeat(usize::try_from(pair[1].as_u64().unwrap()).unwrap()),
                );
            }
            Value::Object(step) if step.contains_key("bytewise") => {
                bytes.extend(bytes_of_text(step["bytewise"].as_str().unwrap()));
            }
            Value::Object(step) if step.contains_key("shut") => closed = true,
            Value::Object(_) => {}
            _ => panic!("unknown step {step}"),
        }
    }
    (bytes, closed)
}

#[derive(Debug, Default, PartialEq)]
struct Connection {
    /// Forwarded head and decoded body of every complete request.
    requests: Vec<(Vec<u8>, Vec<u8>)>,
    refused: Option<u16>,
    kept: bool,
}

/// What a server made of the codec would do with the bytes of one connection, `step` of them at a
/// time.
fn serve(bytes: &[u8], step: usize) -> Connection {
    let mut done = Connection { kept: true, ..Connection::default() };
    let mut buffer = Vec::new();
    let mut rest = bytes;
    let mut head = RequestHead::default();
    loop {
        // Head.
        loop {
            match parse_request(&buffer, &HeadLimits::default(), &mut head) {
                Ok(Progress::Complete) => break,
                Ok(Progress::Partial) if rest.is_empty() => return done,
                Ok(Progress::Partial) => {
                    let (now, later) = rest.split_at(step.min(rest.len()));
                    buffer.extend_from_slice(now);
                    rest = later;
                }
                Err(error) => {
                    done.refused = Some(error.status());
                    done.kept = false;
                    return done;
                }
            }
        }
        let mut forwarded = Vec::new();
        let upstream = UpstreamHead {
            authority: "worker:8000",
            via: b"forebay",
            content_length: None,
            request_id: b"id-1",
            authorization: None,
            extra: &[("x-extra", b"1")],
        };
        encode_request(&head, &buffer, &upstream, &mut forwarded);
        // Body.
        let mut raw: Vec<u8> = buffer.drain(..).skip(head.head_bytes).collect();
        raw.extend_from_slice(rest);
        rest = &[];
        let body = match head.body {
            BodyFraming::None => Vec::new(),
            BodyFraming::Length(length) if length > 32 << 20 => {
                done.refused = Some(413);
                done.kept = false;
                return done;
            }
            BodyFraming::Length(length) => {
                let length = usize::try_from(length).unwrap();
                if raw.len() < length {
                    return done;
                }
                raw.drain(..length).collect()
            }
            BodyFraming::Chunked => match unchunk(&mut raw, step) {
                Ok(Some(body)) => body,
                Ok(None) => return done,
                Err(status) => {
                    done.refused = Some(status);
                    done.kept = false;
                    return done;
                }
            },
            BodyFraming::UntilClose => panic!("requests are never close-delimited"),
        };
        done.requests.push((forwarded, body));
        done.kept = head.keep_alive;
        if !head.keep_alive {
            return done;
        }
        buffer = raw;
    }
}

/// Decodes a chunked body at the front of `raw`, fed in pieces; what follows it stays.
fn unchunk(raw: &mut Vec<u8>, step: usize) -> Result<Option<Vec<u8>>, u16> {
    let mut decoder =
        ChunkedDecoder::new(&BodyLimits { body_bytes_max: 32 << 20, ..BodyLimits::default() });
    let mut body = Vec::new();
    let mut at = 0;
    while at < raw.len() {
        let mut piece = raw[at..(at + step).min(raw.len())].to_vec();
        let decoded = decoder.decode(&mut piece).map_err(|error| error.status())?;
        body.extend_from_slice(&piece[..decoded.data_bytes]);
        at += decoded.consumed_bytes;
        if decoded.done {
            raw.drain(..at);
            return Ok(Some(body));
        }
    }
    Ok(None)
}

/// Everything doubtful in a forwarded head.
fn doubts(forwarded: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let text: String = forwarded.iter().copied().map(char::from).collect();
    let Some(text) = text.strip_suffix("\r\n\r\n") else { return vec!["no end".to_owned()] };
    let mut lines = text.split("\r\n");
    let start = lines.next().unwrap();
    let parts: Vec<_> = start.split(' ').collect();
    if parts.len() != 3
        || parts[2] != "HTTP/1.1"
        || parts[1].bytes().any(|byte| byte <= b' ' || byte >= 0x7f)
    {
        found.push(format!("start line {start:?}"));
    }
    if text
        .replace("\r\n", "")
        .bytes()
        .any(|byte| matches!(byte, b'\r' | b'\n' | 0..=8 | 11..=31 | 127))
    {
        found.push("control bytes".to_owned());
    }
    let mut hosts = 0;
    for line in lines {
        let Some((name, _)) = line.split_once(':') else {
            found.push(format!("no colon: {line:?}"));
            continue;
        };
        if name.is_empty()
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
        {
            found.push(format!("name {name:?}"));
        }
        let name = name.to_ascii_lowercase();
        hosts += usize::from(name == "host");
        let framing =
            ["content-length", "transfer-encoding", "content_length", "transfer_encoding"]
                .contains(&name.as_str());
        let hop =
            ["connection", "keep-alive", "te", "trailer", "upgrade", "expect", "http2-settings"]
                .contains(&name.as_str());
        if framing || hop || name.starts_with("proxy-") {
            found.push(format!("{name} travelled"));
        }
    }
    if hosts != 1 {
        found.push(format!("{hosts} Host lines"));
    }
    found
}

fn names_of(forwarded: &[u8]) -> Vec<String> {
    let text: String = forwarded.iter().copied().map(char::from).collect();
    text.split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect()
}

/// Faults of the codec in one request case; empty when it meets the verdict.
fn judge(case: &Value) -> Vec<String> {
    if case["slow"] == true {
        return Vec::new(); // turns on time-outs
    }
    let (bytes, closed) = stream(case);
    let served = serve(&bytes, usize::MAX);
    let mut faults = Vec::new();
    if bytes.len() < 2_000 && serve(&bytes, 1) != served {
        faults.push(format!("byte by byte differs: {:?}", serve(&bytes, 1)));
    }
    let wanted = usize::try_from(case["n"].as_u64().unwrap_or(1)).unwrap();
    let outcome = match (served.requests.len(), served.refused) {
        (0, None) if closed => "close".to_owned(),
        (0, None) => "wait".to_owned(),
        (0, Some(status)) => status.to_string(),
        (_, _) => "accept".to_owned(),
    };
    let mut allowed = words(case, "hard_ok");
    if allowed.is_empty() {
        allowed = words(case, "rfc_ok");
    }
    // 405 and 404 are the router's to say; the codec accepts.
    let routed = allowed.iter().any(|word| ["405", "404"].contains(word));
    let meets = allowed.contains(&outcome.as_str()) || (outcome == "accept" && routed);
    if !meets {
        faults.push(format!("{outcome}, allowed are {allowed:?}"));
    }
    if outcome == "accept" {
        if served.requests.len() < wanted {
            faults.push(format!("{} requests, {wanted} expected", served.requests.len()));
        }
        if case["closes"] == true && served.kept {
            faults.push("connection kept".to_owned());
        }
        if let (Some(body), Some((_, got))) = (case["body"].as_str(), served.requests.first())
            && bytes_of_text(body) != *got
        {
            faults.push(format!("body {got:?}"));
        }
    }
    for (forwarded, _) in &served.requests {
        faults.extend(doubts(forwarded));
        let names = names_of(forwarded);
        faults.extend(
            words(case, "fwd_absent")
                .iter()
                .filter(|name| names.contains(&(**name).to_owned()))
                .map(|name| format!("{name} travelled")),
        );
        faults.extend(
            words(case, "fwd_present")
                .iter()
                .filter(|name| !names.contains(&(**name).to_owned()))
                .map(|name| format!("{name} is gone")),
        );
        for unwanted in words(case, "never") {
            if String::from_utf8_lossy(forwarded).lines().next().unwrap().contains(unwanted) {
                faults.push(format!("{unwanted} got through"));
            }
        }
    }
    if let (Some(target), Some((forwarded, _))) =
        (words(case, "targets").first(), served.requests.first())
    {
        let line = String::from_utf8_lossy(forwarded).lines().next().unwrap().to_owned();
        let wanted = String::from_utf8(bytes_of_text(target)).unwrap();
        if line.split(' ').nth(1) != Some(&wanted) {
            faults.push(format!("target {line}"));
        }
    }
    faults
}

fn report(file: &str, judge: impl Fn(&Value) -> Vec<String>) {
    let all = cases(file);
    assert!(all.len() > 20, "{file} is nearly empty");
    let failed: Vec<_> = all
        .iter()
        .map(|case| (case, judge(case)))
        .filter(|(_, faults)| !faults.is_empty())
        .map(|(case, faults)| format!("{} {}: {}", case["id"], case["title"], faults.join("; ")))
        .collect();
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), all.len(), failed.join("\n"));
}

#[test]
fn request_cases() {
    report("http1_request_cases.jsonl", judge);
}

#[test]
fn transfer_encoding_obfuscation() {
    report("http1_te_obfuscation.jsonl", judge);
}

/// What a client would see of a response: status, body, whether it is whole. `None`: nothing usable
/// (502).
fn relay(bytes: &[u8], method: Method, closed: bool) -> Option<(u16, Vec<u8>, bool)> {
    let mut head = ResponseHead::default();
    let mut rest = bytes.to_vec();
    loop {
        match parse_response(&rest, &method, &HeadLimits::default(), &mut head) {
            Ok(Progress::Complete) => {}
            Ok(Progress::Partial) | Err(_) => return None,
        }
        rest.drain(..head.head_bytes);
        if !head.is_interim() {
            break;
        }
    }
    match head.body {
        BodyFraming::None => Some((head.status, Vec::new(), true)),
        BodyFraming::Length(length) => {
            let length = usize::try_from(length).unwrap();
            let whole = rest.len() >= length;
            rest.truncate(length);
            Some((head.status, rest, whole))
        }
        BodyFraming::UntilClose => Some((head.status, rest, closed)),
        BodyFraming::Chunked => match unchunk(&mut rest, 3) {
            Ok(Some(body)) => Some((head.status, body, true)),
            Ok(None) | Err(_) => Some((head.status, Vec::new(), false)),
        },
    }
}

#[test]
fn response_cases() {
    report("http1_response_cases.jsonl", |case| {
        let (bytes, closed) = stream(case);
        let method = if case["method"] == "HEAD" { Method::Head } else { Method::Get };
        let allowed = words(case, if case["hard_ok"].is_array() { "hard_ok" } else { "rfc_ok" });
        let seen = relay(&bytes, method, closed);
        let outcome = match &seen {
            None => "502".to_owned(),
            Some((_, _, false)) => "truncated".to_owned(),
            Some((200..400, _, true)) => "accept".to_owned(),
            Some((status, _, true)) => status.to_string(),
        };
        let mut faults = Vec::new();
        if !allowed.contains(&outcome.as_str()) {
            faults.push(format!("{outcome}, allowed are {allowed:?}"));
        }
        if let (Some(body), Some((_, got, true))) = (case["rbody"].as_str(), seen)
            && body.as_bytes() != got
        {
            faults.push(format!("body {got:?}"));
        }
        faults
    });
}

/// Where this codec is stricter than llhttp on purpose, or does not speak the protocol.
fn stricter_than_llhttp(raw: &str, is_request: bool) -> bool {
    let line = raw.trim_start().lines().next().unwrap_or("");
    let lower = raw.to_ascii_lowercase();
    if is_request {
        line.starts_with("CONNECT ")
            || line.starts_with("PRI ")
            || ["ICE/1.0", "RTSP/1.0", "GET /"].iter().any(|end| line.ends_with(end))
            || line.contains('#')
            || line.contains("b!&*$@")
            || line.contains(" * ")
            || lower.contains("transfer-encoding: deflate")
            || (line.ends_with("/1.1") && !lower.contains("\r\nhost:"))
            // Recorded for a parser that leaves bodies to its caller.
            || lower.contains("content-length: 123\r\n\r\npost")
    } else {
        // An empty line before a response, a switch of protocols, and the body left to the caller,
        // or cut short.
        line != raw.lines().next().unwrap_or("")
            || line.starts_with("HTTP/1.1 101")
            || lower.contains("\r\n\r\n\r\nhttp/1.1")
            || lower.contains("content-length: 123\r\n\r\nhttp")
            || lower.ends_with("content-length: 17\r\n\r\nresponse content")
    }
}

#[test]
fn llhttp_verdicts() {
    report("llhttp_cases.jsonl", |case| {
        let raw = case["raw_with_host"].as_str().or(case["raw"].as_str()).unwrap();
        let bytes: Vec<u8> =
            raw.chars().map(|character| u8::try_from(u32::from(character)).unwrap()).collect();
        let is_request = case["kind"] == "request";
        let good = if is_request {
            serve(&bytes, usize::MAX).requests.len()
        } else {
            usize::from(relay(&bytes, Method::Get, true).is_some_and(|seen| seen.2))
        };
        match case["verdict"].as_str().unwrap() {
            "accept" if good == 0 && !stricter_than_llhttp(raw, is_request) => {
                vec!["refused".to_owned()]
            }
            // Bytes after `Connection: close` are no fault of the request before them, and a method
            // llhttp does not know is the route's to refuse.
            "reject"
                if good > 0 && !case["llhttp_error"].as_str().unwrap().contains("Data after") =>
            {
                match case["llhttp_error"].as_str() {
                    Some(
                        "8 Invalid method for HTTP/x.x request" | "6 Expected space after method",
                    ) => Vec::new(),
                    error => vec![format!("accepted, llhttp says {error:?}")],
                }
            }
            "incomplete" if is_request && good > 0 => vec!["complete".to_owned()],
            _ => Vec::new(),
        }
    });
}

#[test]
fn http10_and_absolute_form_are_forwarded_as_own() {
    let mut head = RequestHead::default();
    let request = b"GET http://other.example:81?x=%41 HTTP/1.0\r\nHost: a\r\nTE: trailers\r\nVia: 1.0 z\r\n\r\n";
    assert_eq!(parse_request(request, &HeadLimits::default(), &mut head), Ok(Progress::Complete));
    assert_eq!((head.version, head.keep_alive), (Version::Http10, false));
    let mut out = Vec::new();
    let upstream = UpstreamHead {
        authority: "w:1",
        via: b"forebay",
        content_length: Some(3),
        request_id: b"",
        authorization: Some("Bearer k"),
        extra: &[],
    };
    encode_request(&head, request, &upstream, &mut out);
    let wanted = "GET /?x=%41 HTTP/1.1\r\nhost: w:1\r\nVia: 1.0 z\r\nvia: 1.0 forebay\r\nauthorization: Bearer k\r\ncontent-length: 3\r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), wanted);
}
