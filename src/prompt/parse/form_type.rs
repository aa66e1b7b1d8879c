//! The content type of a form: `multipart/form-data` with its boundary.

use super::ScanError;
use super::fields::parameters::{Parameters, is_token};
use forebay_http1::{Field, FieldKind, RequestHead, bytes_of};
use memchr::memmem;

/// RFC 2046 section 5.1.1.
const BOUNDARY_BYTES_MAX: usize = 70;

/// Boundary and charset of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormType<'a> {
    /// The delimiter between parts, without the leading dashes.
    pub boundary: &'a [u8],
    /// The type names no charset but UTF-8. In other charsets only ASCII text is read.
    pub is_utf8: bool,
}

/// The type of a form, if the head declares a form; `None` for JSON.
///
/// # Errors
/// [`ScanError::Form`] for a form of another type, or with an ambiguous boundary.
pub fn form_type<'a>(
    head: &RequestHead,
    buffer: &'a [u8],
) -> Result<Option<FormType<'a>>, ScanError> {
    let is_type = |field: &&Field| field.kind == FieldKind::ContentType;
    let mut types = head.fields.iter().filter(is_type);
    let Some(first) = types.next() else { return Ok(None) };
    let first = bytes_of(buffer, &first.value);
    let others = types.map(|field| bytes_of(buffer, &field.value));
    match (kind(first), others.map(kind).find(|kind| *kind != TypeKind::Other)) {
        (TypeKind::Other, None) => Ok(None),
        (TypeKind::FormData, None) => read(first).map(Some),
        (TypeKind::OtherForm, _) => Err(form("it is a form of another type")),
        // Servers differ in which of two types counts.
        (_, Some(_)) => Err(form("its type is given twice")),
    }
}

/// The body format that a content type declares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TypeKind {
    FormData,
    /// A server might read a form where the router reads JSON.
    OtherForm,
    Other,
}

fn kind(value: &[u8]) -> TypeKind {
    let value = value.to_ascii_lowercase();
    match value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii() {
        b"multipart/form-data" => TypeKind::FormData,
        // Searched anywhere: some servers read a list of types, which may include a form.
        _ if [&b"multipart/"[..], b"form-urlencoded"]
            .iter()
            .any(|word| memmem::find(&value, word).is_some()) =>
        {
            TypeKind::OtherForm
        }
        _ => TypeKind::Other,
    }
}

/// Reads the parameters of the type. Other parameters are ignored, as in all parsers: no parser
/// finds another boundary in them.
fn read(value: &[u8]) -> Result<FormType<'_>, ScanError> {
    let mut boundary = None;
    let mut charset = None;
    for (name, value) in Parameters::behind(value) {
        let value = value.filter(|value| !value.iter().any(|byte| b"\\;".contains(byte)));
        let value = value.ok_or(form("its type cannot be read"))?;
        if name.eq_ignore_ascii_case(b"boundary") {
            if boundary.replace(value).is_some() {
                return Err(form("it has two boundaries"));
            }
        } else if is_charset_parameter(name) && charset.replace(value).is_some() {
            return Err(form("its type names two charsets"));
        }
    }
    // `boundary*0` and similar parameters, or text that a parser that searches takes for a
    // boundary.
    let word = b"boundary";
    let words = value.windows(word.len()).filter(|at| at.eq_ignore_ascii_case(word));
    if words.count() > 1 {
        return Err(form("it has two boundaries"));
    }
    // The charset decodes the names of parts: in UTF-7 another parser would not see `model`.
    if charset.is_some_and(|charset| !is_known(charset)) {
        return Err(form("its charset is not known"));
    }
    let boundary = boundary.filter(|boundary| (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()));
    let is_plain = |byte: &u8| is_token(byte) || b"(),/:=?".contains(byte);
    let boundary = boundary.filter(|boundary| boundary.iter().all(is_plain));
    let boundary = boundary.ok_or(form("it has no plain boundary"))?;
    Ok(FormType { boundary, is_utf8: charset.is_none_or(is_utf8) })
}

/// Does the parameter name a charset (`charset`, `charset*`, `charset*0`)?
pub(super) fn is_charset_parameter(parameter: &[u8]) -> bool {
    parameter
        .split(|byte| *byte == b'*')
        .next()
        .unwrap_or_default()
        .eq_ignore_ascii_case(b"charset")
}

pub(super) fn is_utf8(charset: &[u8]) -> bool {
    [&b"utf-8"[..], b"utf8"].iter().any(|name| charset.eq_ignore_ascii_case(name))
}

/// Is the charset known to be a superset of ASCII?
fn is_known(charset: &[u8]) -> bool {
    let names = [&b"us-ascii"[..], b"ascii", b"iso-8859-1", b"latin1", b"windows-1252"];
    is_utf8(charset) || names.iter().any(|name| charset.eq_ignore_ascii_case(name))
}

pub(super) const fn form(what: &'static str) -> ScanError {
    ScanError::Form { what }
}
