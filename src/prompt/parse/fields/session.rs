//! The session that a request belongs to, by the fields and members that `[session]` names.

use crate::parse::request::ApiRequest;
use forebay_config::SessionConfig;
use forebay_fleet::worker::SessionKey;
use forebay_http1::{Field, FieldKind, RequestHead, bytes_of};
use forebay_json::unescaped;
use std::ops::Range;

/// The first field in the order of the configuration, else the first member. Of duplicate names the
/// first field and the last member count, as engines read them. A session name that is empty or too
/// long counts as absent.
#[must_use]
pub fn session_key(
    names: &SessionConfig,
    head: &RequestHead,
    buffer: &[u8],
    scanned: (&ApiRequest, &[u8]),
) -> Option<SessionKey> {
    let in_head = names.fields.iter().find_map(|name| {
        let field = head.fields.iter().find(|field| is_named(field, buffer, name))?;
        SessionKey::of(bytes_of(buffer, &field.value))
    });
    in_head.or_else(|| {
        let (request, body) = scanned;
        names.members.iter().find_map(|name| member(name, request, body))
    })
}

fn is_named(field: &Field, buffer: &[u8], name: &str) -> bool {
    // The length first, since it differs for most names.
    let is_other = field.name.len() != name.len() || field.kind == FieldKind::HopByHop;
    !is_other && bytes_of(buffer, &field.name).eq_ignore_ascii_case(name.as_bytes())
}

fn member(name: &str, request: &ApiRequest, body: &[u8]) -> Option<SessionKey> {
    let mut texts = request.text_members.iter().rev();
    let found = texts.find(|text| part(body, &text.name) == Some(name.as_bytes()))?;
    let value = part(body, &found.value)?;
    if value.contains(&b'\\') {
        return SessionKey::of(unescaped(std::str::from_utf8(value).ok()?).as_bytes());
    }
    SessionKey::of(value)
}

fn part<'a>(body: &'a [u8], span: &Range<u32>) -> Option<&'a [u8]> {
    body.get(usize::try_from(span.start).ok()?..usize::try_from(span.end).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Endpoint, scan};
    use forebay_http1::{HeadLimits, Progress, parse_request};

    fn key(fields: &str, body: &str) -> Option<SessionKey> {
        key_by(&SessionConfig::default(), fields, body)
    }

    fn key_by(names: &SessionConfig, fields: &str, body: &str) -> Option<SessionKey> {
        let text = format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        let parsed = parse_request(text.as_bytes(), &HeadLimits::default(), &mut head);
        assert_eq!(parsed, Ok(Progress::Complete), "{fields}");
        let mut request = ApiRequest::default();
        scan(body.as_bytes(), Endpoint::Completions, &mut request).unwrap();
        session_key(names, &head, text.as_bytes(), (&request, body.as_bytes()))
    }

    fn named(name: &str) -> Option<SessionKey> {
        SessionKey::of(name.as_bytes())
    }

    #[test]
    fn fields_come_before_members_and_each_in_the_order_of_the_configuration() {
        assert_eq!(key("", "{}"), None);
        assert_eq!(key("X-Session-ID: a\r\n", "{}"), named("a"));
        let both = "x-smg-routing-key: b\r\nx-session-id: a\r\n";
        assert_eq!(key(both, r#"{"prompt_cache_key": "c"}"#), named("a"));
        assert_eq!(key("", r#"{"session_id": "d", "prompt_cache_key": "c"}"#), named("c"));
        assert_eq!(key("", r#"{"session_id": "d"}"#), named("d"));
        assert_eq!(key("x-session-id:\r\n", r#"{"session_id": "d"}"#), named("d"), "empty");
    }

    #[test]
    fn texts_are_read_as_engines_read_them() {
        assert_eq!(key("", r#"{"session_id": "d", "session_id": "e"}"#), named("e"));
        assert_eq!(key("", r#"{"session_id": "\u0064"}"#), named("d"));
        for none in [r#"{"session_id": 5}"#, r#"{"a": {"session_id": "d"}}"#] {
            assert_eq!(key("", none), None, "{none}");
        }
        let long = "x".repeat(257);
        assert_eq!(key("", &format!(r#"{{"session_id": "{long}"}}"#)), None);
        assert_eq!(key("Connection: x-session-id\r\nx-session-id: a\r\n", "{}"), None);
    }

    #[test]
    fn names_are_configured() {
        let names = SessionConfig { fields: vec!["x-user".into()], members: vec!["user".into()] };
        assert_eq!(key_by(&names, "x-session-id: a\r\nx-user: u\r\n", "{}"), named("u"));
        assert_eq!(key_by(&names, "", r#"{"user": "v", "session_id": "d"}"#), named("v"));
        let many: String = (0..20).map(|n| format!(r#""k{n}": "v","#)).collect();
        let body = format!(r#"{{{many} "user": "late"}}"#);
        assert_eq!(key_by(&names, "", &body), None, "the first 16 texts are looked at");
    }
}
