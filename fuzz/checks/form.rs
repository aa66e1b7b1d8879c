//! Any bytes as a form. Must hold: an accepted form has the model of its one part of that name,
//! found again by splitting at the boundary, and under another name the rest stays. Parsers that
//! know no quotes, no escapes, or other ones find the same part.

use forebay_prompt::parse::{ApiRequest, Endpoint, FormType, scan_form};

const FORM: FormType<'_> = FormType { boundary: b"b", is_utf8: true };

/// How a parser finds the name of a part in the parameters behind `form-data`.
type NameReader = fn(&str) -> Option<String>;

/// Kinds of parsers that servers have.
const READERS: [NameReader; 4] = [split_at_semicolons, by_parity, by_search, without_escapes];

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let mut request = ApiRequest::default();
    if scan_form(data, FORM, Endpoint::Other, &mut request).is_err() {
        return;
    }
    for read in READERS {
        let models = models(data, read);
        assert_eq!(request.has_model, !models.is_empty());
        assert!(models.len() <= 1, "two models");
        assert!(models.iter().all(|model| *model == request.model.as_bytes()));
    }
    assert!(request.media_bytes <= data.len() as u64);
    if request.has_model {
        renamed(data, request);
    }
}

/// What stands in the parts that are named `model` in any way.
fn models(data: &[u8], read: NameReader) -> Vec<&[u8]> {
    let mut models = Vec::new();
    let mut rest = data;
    while let Some(behind) = rest.strip_prefix(b"\r\n") {
        rest = behind;
    }
    rest = &rest[3..];
    while let Some(end) = memchr::memmem::find(rest, b"\r\n--b") {
        let part = &rest[..end];
        let blank = memchr::memmem::find(part, b"\r\n\r\n").expect("a part has a head");
        let head = String::from_utf8_lossy(&part[..blank]);
        let is_name = |line: &&str| line.to_ascii_lowercase().starts_with("content-disposition:");
        let mut lines = head.split("\r\n").filter(is_name);
        let is_model = |line: &str| {
            let parameters = line.split_once(';').map_or("", |(_, parameters)| parameters);
            read(parameters).as_deref() == Some("model")
        };
        if lines.any(is_model) {
            models.push(&part[blank + 4..]);
        }
        rest = &rest[end + 5..];
    }
    models
}

fn named<'a>(mut parameters: impl Iterator<Item = &'a str>) -> Option<String> {
    parameters.find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        key.trim().eq_ignore_ascii_case("name").then(|| value.trim().to_owned())
    })
}

/// Knows no quotes.
fn split_at_semicolons(text: &str) -> Option<String> {
    named(text.split(';')).map(|name| name.trim_matches('"').to_owned())
}

/// A semicolon ends a parameter where as many quotes stand before it that have no backslash as make
/// pairs, as Python's `email` counts.
fn by_parity(text: &str) -> Option<String> {
    let mut start = 0;
    let mut parts = Vec::new();
    for (at, _) in text.match_indices(';') {
        let part = &text[start..at];
        let quotes = part.matches('"').count() - part.matches("\\\"").count();
        if quotes.is_multiple_of(2) {
            parts.push(part);
            start = at + 1;
        }
    }
    parts.push(&text[start..]);
    let name = named(parts.into_iter())?;
    let plain = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
    Some(plain.map_or(name.clone(), |plain| plain.replace("\\\\", "\\").replace("\\\"", "\"")))
}

/// Looks for `name=` behind a space or a semicolon, wherever that stands.
fn by_search(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let is_begin = |at: usize| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|before| before == ';' || before.is_ascii_whitespace())
    };
    let at = lower.match_indices("name=").map(|(at, _)| at).find(|at| is_begin(*at))?;
    let value = &text[at + "name=".len()..];
    let end = match value.strip_prefix('"') {
        Some(quoted) => return Some(quoted.split('"').next().unwrap_or_default().to_owned()),
        None => value.find([';', ' ', '\t']).unwrap_or(value.len()),
    };
    Some(value[..end].to_owned())
}

/// A quote ends a text, whatever stands before it.
fn without_escapes(text: &str) -> Option<String> {
    let mut start = 0;
    let mut is_quoted = false;
    let mut parts = Vec::new();
    for (at, found) in text.char_indices() {
        is_quoted ^= found == '"';
        if found == ';' && !is_quoted {
            parts.push(&text[start..at]);
            start = at + 1;
        }
    }
    parts.push(&text[start..]);
    named(parts.into_iter()).map(|name| name.trim_matches('"').to_owned())
}

fn renamed(data: &[u8], mut request: ApiRequest) {
    let mut body = data.to_vec();
    let mut found = ApiRequest::default();
    request.rename("a-longer-name");
    request.write_model(&mut body, 0);
    assert_eq!(scan_form(&body, FORM, Endpoint::Other, &mut found), Ok(()));
    assert_eq!((&found.model, &found.model_span), (&request.model, &request.model_span));
    assert_eq!(
        (&found.text_members, found.media_bytes),
        (&request.text_members, request.media_bytes)
    );
}
