//! A form with files (`multipart/form-data`, RFC 7578), as audio requests use. A single pass finds
//! the model and checks the rest.
//!
//! Stricter than the standard, so that no engine's parser finds another model in the same bytes:
//! lines end with CRLF, only empty lines precede the first boundary, each part has a single
//! `Content-Disposition` with a single plain name, no part has a transfer coding that changes its
//! bytes, and `model` appears once.

use super::ScanError;
use super::fields::parameters::{Parameters, is_token, names_in};
use super::fields::router_members::is_owned;
use super::form_type::{FormType, form, is_charset_parameter, is_utf8};
use super::prompt::narrow;
use super::request::{ApiRequest, Endpoint, TEXTS_MAX, TextMember};
use super::scan::MODEL_BYTES_MAX;
use forebay_fleet::worker::SESSION_NAME_BYTES_MAX;
use forebay_json::JsonError;
use memchr::memmem;
use std::ops::Range;

/// Parts of a form.
const PARTS_MAX: usize = 128;
/// Bytes of the header fields of a part.
const PART_HEAD_BYTES_MAX: usize = 4_096;
/// Transfer codings that leave the bytes unchanged (RFC 2045 section 6.2).
const IDENTITIES: [&[u8]; 3] = [b"7bit", b"8bit", b"binary"];
/// Escapes of a quote or a line end inside a quoted name: a backslash before the quote, or the
/// percent codes that browsers write.
const NAME_ESCAPES: [&[u8]; 4] = [b"\\\"", b"%22", b"%0D", b"%0A"];

/// Reads a form into `request`, which is cleared first.
///
/// # Errors
/// [`ScanError`], where engines may read the form in different ways.
pub fn scan_form(
    body: &[u8],
    kind: FormType<'_>,
    endpoint: Endpoint,
    request: &mut ApiRequest,
) -> Result<(), ScanError> {
    request.clear();
    request.endpoint = Some(endpoint);
    request.is_form = true;
    if u32::try_from(body.len()).is_err() {
        return Err(JsonError::TooLong.into());
    }
    let delimiter = [b"\r\n--", kind.boundary].concat();
    let find = memmem::Finder::new(&delimiter);
    // The first boundary needs no line end before it.
    let first = delimiter.get(2..).unwrap_or_default();
    let mut at = 0;
    while body.get(at..).is_some_and(|rest| rest.starts_with(b"\r\n")) {
        at += 2;
    }
    if !body.get(at..).is_some_and(|rest| rest.starts_with(first)) {
        return Err(form("it does not begin with its boundary"));
    }
    at += first.len();
    for _ in 0..=PARTS_MAX {
        match body.get(at..).unwrap_or_default() {
            [b'-', b'-', rest @ ..] if rest.iter().all(u8::is_ascii_whitespace) => return Ok(()),
            [b'\r', b'\n', ..] => at += 2,
            _ => return Err(form("a boundary is not alone on its line")),
        }
        let rest = body.get(at..).unwrap_or_default();
        // Two boundaries would share a line end, which some parsers read as an empty part.
        if rest.starts_with(first) {
            return Err(form("a part has no head"));
        }
        let length = find.find(rest).ok_or(form("its end is missing"))?;
        part(body, at..at + length, kind.is_utf8, request)?;
        at += length + delimiter.len();
    }
    Err(form("it has too many parts"))
}

/// Reads a part: fields, an empty line, the content.
fn part(
    body: &[u8],
    span: Range<usize>,
    is_utf8: bool,
    request: &mut ApiRequest,
) -> Result<(), ScanError> {
    let bytes = body.get(span.clone()).unwrap_or_default();
    let head = bytes.get(..bytes.len().min(PART_HEAD_BYTES_MAX)).unwrap_or_default();
    let head_bytes = memmem::find(head, b"\r\n\r\n").ok_or(form("a part has no head"))?;
    let head = PartHead::read(bytes.get(..head_bytes).unwrap_or_default())?;
    let PartHead { name, is_file, .. } = head;
    let content = span.start + head_bytes + 4..span.end;
    let value = body.get(content.clone()).unwrap_or_default();
    if is_file {
        request.media_count = request.media_count.saturating_add(1);
        let data_bytes = u64::try_from(value.len()).unwrap_or(u64::MAX);
        request.media_bytes = request.media_bytes.saturating_add(data_bytes);
    }
    match name {
        b"model" if is_file => return Err(form("`model` is a file")),
        b"model" if request.has_model => return Err(form("`model` is given twice")),
        b"model" if value.len() > MODEL_BYTES_MAX => return Err(ScanError::ModelTooLong),
        b"model" if !(value.is_ascii() || is_utf8 && head.is_utf8) => {
            return Err(form("`model` is not UTF-8"));
        }
        b"model" => {
            let model = std::str::from_utf8(value).map_err(|_| form("`model` is not UTF-8"))?;
            request.has_model = true;
            request.model_span = narrow(&content);
            request.model.push_str(model);
        }
        // No engine has this field in a form. In JSON the key names an adapter, which the API key
        // may not allow.
        b"lora_path" => return Err(form("it names an adapter")),
        b"stream" => request.stream = value.eq_ignore_ascii_case(b"true") || value == b"1",
        _ => {
            if let Some(key) = is_owned(name) {
                return Err(ScanError::Owned { key });
            }
            let is_text = !is_file && value.len() <= SESSION_NAME_BYTES_MAX;
            if is_text && request.text_members.len() < TEXTS_MAX {
                let place = memmem::find(bytes, name).unwrap_or(0) + span.start;
                let name = narrow(&(place..place + name.len()));
                request.text_members.push(TextMember { name, value: narrow(&content) });
            }
        }
    }
    Ok(())
}

/// Contents of the header fields of a part.
#[derive(Clone, Copy)]
struct PartHead<'a> {
    /// The raw name, without quotes.
    name: &'a [u8],
    is_file: bool,
    /// The part names no charset but UTF-8.
    is_utf8: bool,
}

impl<'a> PartHead<'a> {
    fn read(head: &'a [u8]) -> Result<Self, ScanError> {
        let mut found = None;
        let mut is_utf8 = true;
        for line in lines(head) {
            let (field, value) = line
                .iter()
                .position(|byte| *byte == b':')
                .map(|colon| line.split_at(colon))
                .filter(|(field, _)| !field.is_empty() && field.iter().all(is_token))
                .filter(|_| line.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control()))
                .ok_or(form("a part has a field that cannot be read"))?;
            let value = value.get(1..).unwrap_or_default();
            if field.eq_ignore_ascii_case(b"content-transfer-encoding") && !is_identity(value) {
                return Err(form("a part is in a transfer coding"));
            }
            is_utf8 &= !field.eq_ignore_ascii_case(b"content-type") || has_utf8_charset(value);
            if field.eq_ignore_ascii_case(b"content-disposition") {
                if found.is_some() {
                    return Err(form("a part has two names"));
                }
                found = Some(part_name(value)?);
            }
        }
        let (name, is_file) = found.ok_or(form("a part has no name"))?;
        Ok(Self { name, is_file, is_utf8 })
    }
}

fn is_identity(coding: &[u8]) -> bool {
    IDENTITIES.iter().any(|identity| coding.trim_ascii().eq_ignore_ascii_case(identity))
}

/// Does the content type name no charset, or only UTF-8?
fn has_utf8_charset(value: &[u8]) -> bool {
    let mut charsets = Parameters::behind(value).filter(|(name, _)| is_charset_parameter(name));
    charsets.all(|(_, charset)| charset.is_some_and(is_utf8))
}

/// The name of a part, and whether it is a file.
fn part_name(value: &[u8]) -> Result<(&[u8], bool), ScanError> {
    let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
    if !kind.trim_ascii().eq_ignore_ascii_case(b"form-data") {
        return Err(form("a part is no form data"));
    }
    let mut name = None;
    let mut file_names = 0;
    let mut has_escape = false;
    for (parameter, value) in Parameters::behind(value) {
        // A parser that ignores escapes may find the name in quotes behind an escape.
        let value = value.filter(|_| !has_escape || name.is_some());
        let value = value.ok_or(form("the name of a part cannot be read"))?;
        has_escape |= value.contains(&b'\\');
        if parameter.eq_ignore_ascii_case(b"name") {
            if name.replace(value).is_some() {
                return Err(form("a part has two names"));
            }
        } else if parameter.eq_ignore_ascii_case(b"filename")
            || parameter.eq_ignore_ascii_case(b"filename*")
        {
            file_names += 1;
        } else if parameter.contains(&b'*') {
            // Includes `name*`, which some parsers read as the name.
            return Err(form("a part has a parameter beside name and filename"));
        }
    }
    let name = name.filter(|name| !name.is_empty()).ok_or(form("a part has no name"))?;
    // A parser without quotes, or with other escapes, may read a part of the file name as the name.
    if names_in(value) != file_names + 1 {
        return Err(form("the name of a part cannot be read"));
    }
    if !is_plain_name(name) {
        return Err(form("a part has a name that is not plain"));
    }
    Ok((name, file_names > 0))
}

/// Engines name their fields with these characters, and all parsers read such names alike. Quotes
/// appear as escapes, which parsers read in different ways: no reading may yield a name that the
/// router checks.
fn is_plain_name(name: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-[]".contains(byte);
    if name.iter().all(is_plain) {
        return true;
    }
    let mut rest = name;
    let mut pieces = vec![Vec::new()];
    while let [first, behind @ ..] = rest {
        let escape = NAME_ESCAPES.iter().find(|escape| {
            rest.get(..escape.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(escape))
        });
        match (escape, pieces.last_mut()) {
            (Some(escape), _) => {
                pieces.push(Vec::new());
                rest = rest.get(escape.len()..).unwrap_or_default();
            }
            (None, Some(piece)) if is_plain(first) => {
                piece.push(*first);
                rest = behind;
            }
            (None, _) => return false,
        }
    }
    let counts = |name: &[u8]| matches!(name, b"model" | b"lora_path") || is_owned(name).is_some();
    !counts(&pieces.concat()) && !pieces.iter().any(|piece| counts(piece))
}

/// Lines that end with CRLF. A lone CR or LF stays in its line and makes the line malformed.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(head).filter(|head| !head.is_empty());
    std::iter::from_fn(move || {
        let head = rest?;
        let end = memmem::find(head, b"\r\n").unwrap_or(head.len());
        rest = head.get(end + 2..);
        head.get(..end)
    })
}

#[cfg(test)]
mod tests;
