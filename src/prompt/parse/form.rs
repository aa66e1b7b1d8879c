//! A form with files (`multipart/form-data`, RFC 7578), as audio comes. One pass finds the model
//! and checks the rest.
//!
//! Stricter than the standard, so that no engine's parser finds another model in the same bytes:
//! lines end with CRLF, nothing stands before the first boundary, one `Content-Disposition` says
//! one plain name, no part is in a transfer coding, and `model` stands once.

use super::json::ScanError;
use super::owned::is_owned;
use super::prompt::narrow;
use super::request::{ApiRequest, Endpoint, TEXTS_MAX, TextMember};
use super::scan::MODEL_BYTES_MAX;
use forebay_fleet::worker::SESSION_NAME_BYTES_MAX;
use forebay_http1::{Field, FieldKind, RequestHead, bytes_of};
use memchr::memmem;
use std::ops::Range;

/// Parts of one form.
const PARTS_MAX: usize = 128;
/// Bytes of the fields of one part.
const PART_HEAD_BYTES_MAX: usize = 4_096;
/// RFC 2046 section 5.1.1.
const BOUNDARY_BYTES_MAX: usize = 70;

/// The boundary of a form, if the head promises one; `None` for JSON.
///
/// # Errors
/// [`ScanError::Form`] for a form of another kind, and for one whose boundary cannot be told.
pub fn form_boundary<'a>(
    head: &RequestHead,
    buffer: &'a [u8],
) -> Result<Option<&'a [u8]>, ScanError> {
    let is_type = |field: &&Field| field.kind == FieldKind::ContentType;
    let mut types = head.fields.iter().filter(is_type);
    let Some(first) = types.next() else { return Ok(None) };
    let first = bytes_of(buffer, &first.value);
    let others = types.map(|field| bytes_of(buffer, &field.value));
    match (kind(first), others.map(kind).find(|kind| *kind != TypeKind::Other)) {
        (TypeKind::Other, None) => Ok(None),
        (TypeKind::FormData, None) => boundary(first).map(Some),
        (TypeKind::OtherForm, _) => Err(form("it is a form of another type")),
        // Which of two counts differs between servers.
        (_, Some(_)) => Err(form("its type is given twice")),
    }
}

/// What a content type stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TypeKind {
    FormData,
    /// A server might read a form in what is JSON to the router.
    OtherForm,
    Other,
}

fn kind(value: &[u8]) -> TypeKind {
    let value = value.to_ascii_lowercase();
    match value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii() {
        b"multipart/form-data" => TypeKind::FormData,
        // Anywhere: some read a list of types, and one of them may be a form.
        _ if [&b"multipart/"[..], b"form-urlencoded"]
            .iter()
            .any(|word| memmem::find(&value, word).is_some()) =>
        {
            TypeKind::OtherForm
        }
        _ => TypeKind::Other,
    }
}

/// The one parameter of the type. A `charset` would change what names mean: starlette decodes the
/// names of parts by it, and UTF-7 hides `model` from everybody else.
fn boundary(value: &[u8]) -> Result<&[u8], ScanError> {
    let mut found = None;
    for (name, value) in Parameters::behind(value) {
        let value = value.ok_or(form("its type cannot be read"))?;
        if !name.eq_ignore_ascii_case(b"boundary") {
            return Err(form("its type has a parameter beside boundary"));
        }
        if found.replace(value).is_some() {
            return Err(form("it has two boundaries"));
        }
    }
    let found = found.filter(|boundary| (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()));
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(byte);
    found.filter(|boundary| boundary.iter().all(is_plain)).ok_or(form("it has no plain boundary"))
}

/// Reads a form into `request`, which is cleared first.
///
/// # Errors
/// [`ScanError`], where the form is not one that all engines read alike.
pub fn scan_form(
    body: &[u8],
    boundary: &[u8],
    endpoint: Endpoint,
    request: &mut ApiRequest,
) -> Result<(), ScanError> {
    request.clear();
    request.endpoint = Some(endpoint);
    request.is_form = true;
    if u32::try_from(body.len()).is_err() {
        return Err(ScanError::TooLong);
    }
    let delimiter = [b"\r\n--", boundary].concat();
    let find = memmem::Finder::new(&delimiter);
    // The first boundary has no line end before it.
    let first = delimiter.get(2..).unwrap_or_default();
    if !body.starts_with(first) {
        return Err(form("it does not begin with its boundary"));
    }
    let mut at = first.len();
    for _ in 0..=PARTS_MAX {
        match body.get(at..).unwrap_or_default() {
            [b'-', b'-'] | [b'-', b'-', b'\r', b'\n'] => return Ok(()),
            [b'\r', b'\n', ..] => at += 2,
            _ => return Err(form("a boundary is not alone on its line")),
        }
        let rest = body.get(at..).unwrap_or_default();
        // The line end of one boundary would be that of the next: an empty part to some.
        if rest.starts_with(first) {
            return Err(form("a part has no head"));
        }
        let length = find.find(rest).ok_or(form("its end is missing"))?;
        part(body, at..at + length, request)?;
        at += length + delimiter.len();
    }
    Err(form("it has too many parts"))
}

/// One part: fields, an empty line, the content.
fn part(body: &[u8], span: Range<usize>, request: &mut ApiRequest) -> Result<(), ScanError> {
    let bytes = body.get(span.clone()).unwrap_or_default();
    let head = bytes.get(..bytes.len().min(PART_HEAD_BYTES_MAX)).unwrap_or_default();
    let head_bytes = memmem::find(head, b"\r\n\r\n").ok_or(form("a part has no head"))?;
    let (name, is_file) = disposition(bytes.get(..head_bytes).unwrap_or_default())?;
    let content = span.start + head_bytes + 4..span.end;
    let value = body.get(content.clone()).unwrap_or_default();
    if is_file {
        request.data_count = request.data_count.saturating_add(1);
        let data_bytes = u64::try_from(value.len()).unwrap_or(u64::MAX);
        request.data_bytes = request.data_bytes.saturating_add(data_bytes);
    }
    match name {
        b"model" if is_file => return Err(form("`model` is a file")),
        b"model" if request.has_model => return Err(form("`model` is given twice")),
        b"model" if value.len() > MODEL_BYTES_MAX => return Err(ScanError::ModelTooLong),
        b"model" => {
            let model = std::str::from_utf8(value).map_err(|_| form("`model` is not UTF-8"))?;
            request.has_model = true;
            request.model_span = narrow(&content);
            request.model.push_str(model);
        }
        // No form of an engine has it, and in JSON it names what a key may not use.
        b"lora_path" => return Err(form("it names an adapter")),
        b"stream" => request.stream = value.eq_ignore_ascii_case(b"true") || value == b"1",
        _ => {
            if let Some(key) = is_owned(name) {
                return Err(ScanError::Owned { key });
            }
            let is_text = !is_file && value.len() <= SESSION_NAME_BYTES_MAX;
            if is_text && request.texts.len() < TEXTS_MAX {
                let place = memmem::find(bytes, name).unwrap_or(0) + span.start;
                let name = narrow(&(place..place + name.len()));
                request.texts.push(TextMember { name, value: narrow(&content) });
            }
        }
    }
    Ok(())
}

/// The name of a part, and whether it is a file.
fn disposition(head: &[u8]) -> Result<(&[u8], bool), ScanError> {
    let mut found = None;
    for line in lines(head) {
        let (field, value) = line
            .iter()
            .position(|byte| *byte == b':')
            .map(|colon| line.split_at(colon))
            .filter(|(field, _)| !field.is_empty() && field.iter().all(is_token))
            .filter(|_| line.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control()))
            .ok_or(form("a part has a field that cannot be read"))?;
        let value = value.get(1..).unwrap_or_default();
        if field.eq_ignore_ascii_case(b"content-transfer-encoding") {
            return Err(form("a part is in a transfer coding"));
        }
        if field.eq_ignore_ascii_case(b"content-disposition") {
            if found.is_some() {
                return Err(form("a part has two names"));
            }
            found = Some(named(value)?);
        }
    }
    found.ok_or(form("a part has no name"))
}

fn named(value: &[u8]) -> Result<(&[u8], bool), ScanError> {
    let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
    if !kind.trim_ascii().eq_ignore_ascii_case(b"form-data") {
        return Err(form("a part is no form data"));
    }
    let (mut name, mut is_file) = (None, false);
    for (parameter, value) in Parameters::behind(value) {
        let value = value.ok_or(form("the name of a part cannot be read"))?;
        if parameter.eq_ignore_ascii_case(b"name") {
            if name.replace(value).is_some() {
                return Err(form("a part has two names"));
            }
        } else if parameter.eq_ignore_ascii_case(b"filename")
            || parameter.eq_ignore_ascii_case(b"filename*")
        {
            is_file = true;
        } else {
            // `name*` among them: some read it as the name.
            return Err(form("a part has a parameter beside name and filename"));
        }
    }
    let name = name.filter(|name| !name.is_empty()).ok_or(form("a part has no name"))?;
    // Engines' fields are named so, and no parser makes another name of such a one.
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-[]".contains(byte);
    if !name.iter().all(is_plain) {
        return Err(form("a part has a name that is not plain"));
    }
    Ok((name, is_file))
}

/// Lines that end with CRLF. A lone CR or LF stays in its line, which cannot be read then.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(head).filter(|head| !head.is_empty());
    std::iter::from_fn(move || {
        let head = rest?;
        let end = memmem::find(head, b"\r\n").unwrap_or(head.len());
        rest = head.get(end + 2..);
        head.get(..end)
    })
}

/// The parameters behind a value: `; name=value` and `; name="value"`. A value without one plain
/// reading is `None`.
struct Parameters<'a> {
    rest: &'a [u8],
}

impl<'a> Parameters<'a> {
    fn behind(value: &'a [u8]) -> Self {
        let start = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
        Self { rest: value.get(start..).unwrap_or_default() }
    }
}

impl<'a> Iterator for Parameters<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.trim_ascii();
        self.rest = &[];
        if rest.is_empty() {
            return None;
        }
        let unread: Option<Self::Item> = Some((&[], None));
        let Some(rest) = rest.strip_prefix(b";") else { return unread };
        let rest = rest.trim_ascii_start();
        let Some(equals) = rest.iter().position(|byte| *byte == b'=') else { return unread };
        let (name, value) = rest.split_at(equals);
        if name.is_empty() || !name.iter().all(is_token) {
            return unread;
        }
        let value = value.get(1..).unwrap_or_default();
        let (value, end) = match value.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = quoted.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                let Some(end) = end.filter(|&end| quoted.get(end) == Some(&b'"')) else {
                    return unread;
                };
                (quoted.get(..end).unwrap_or_default(), quoted.get(end + 1..).unwrap_or_default())
            }
            None => {
                let end = value.iter().position(|byte| !is_token(byte)).unwrap_or(value.len());
                value.split_at(end)
            }
        };
        self.rest = end;
        // Who splits at every `;` reads a parameter in a file name that holds one.
        let is_plain = value.iter().all(|byte| !byte.is_ascii_control())
            && !(value.contains(&b';') && value.contains(&b'='));
        Some((name, Some(value).filter(|_| is_plain)))
    }
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

const fn form(what: &'static str) -> ScanError {
    ScanError::Form { what }
}

#[cfg(test)]
#[path = "form_tests.rs"]
mod tests;
