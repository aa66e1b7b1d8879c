//! The model of a request without a body: its query names it.

use crate::parse::refusals::refuse::Refusal;
use crate::parse::scan::MODEL_BYTES_MAX;
use std::borrow::Cow;

/// The value of `model` in a query, question mark included; `None` without `model`.
///
/// # Errors
/// A refusal where servers may read different names: two values, or a value that is no text.
pub fn query_model(query: &[u8]) -> Result<Option<String>, Refusal> {
    let mut found = None;
    let query = query.strip_prefix(b"?").unwrap_or(query);
    for part in query.split(|byte| *byte == b'&') {
        let at = part.iter().position(|byte| *byte == b'=').unwrap_or(part.len());
        let (name, value) = part.split_at(at);
        if decoded(name).is_none_or(|name| *name != b"model"[..]) {
            continue;
        }
        let text = decoded(value.get(1..).unwrap_or_default())
            .and_then(|value| String::from_utf8(value.into_owned()).ok())
            .filter(|text| text.len() <= MODEL_BYTES_MAX);
        if found.is_some() || text.is_none() {
            return Err(Refusal::no_model_in_query());
        }
        found = text;
    }
    Ok(found.filter(|text| !text.is_empty()))
}

fn decoded(raw: &[u8]) -> Option<Cow<'_, [u8]>> {
    unescaped(raw, b' ')
}

/// Decodes percent escapes; `None` where an escape is malformed. `plus`: the byte that `+` decodes
/// to.
pub(crate) fn unescaped(raw: &[u8], plus: u8) -> Option<Cow<'_, [u8]>> {
    if !raw.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(Cow::Borrowed(raw));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw;
    loop {
        match rest {
            [] => return Some(Cow::Owned(text)),
            [b'%', high, low, behind @ ..] => {
                text.push(digit(*high)? << 4 | digit(*low)?);
                rest = behind;
            }
            [b'%', ..] => return None,
            [byte, behind @ ..] => {
                text.push(if *byte == b'+' { plus } else { *byte });
                rest = behind;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::query_model;

    #[test]
    fn the_name_is_read_as_servers_read_it() {
        for (query, model) in [
            ("", None),
            ("?", None),
            ("?model", None),
            ("?model=", None),
            ("?models=a&xmodel=b&m%zz=c", None),
            ("?model=m", Some("m")),
            ("?intent=t&model=org%2Fm-8b%3alora&x", Some("org/m-8b:lora")),
            ("?mod%65l=a+b=c", Some("a b=c")),
            ("?model=%C3%A9", Some("é")),
        ] {
            assert_eq!(query_model(query.as_bytes()).as_ref().map(|m| m.as_deref()), Ok(model));
        }
        let long = format!("?model={}", "a".repeat(8_192));
        for query in
            ["?model=a&model=a", "?model=&mod%65l=a", "?model=%", "?model=%g0", "?model=%FF", &long]
        {
            let refusal = query_model(query.as_bytes()).unwrap_err();
            assert_eq!((refusal.status(), refusal.reason().as_str()), (400, "missing-model"));
        }
    }
}
