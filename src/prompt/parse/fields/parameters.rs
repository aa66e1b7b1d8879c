//! Parameters of header fields, as forms have them.

use memchr::{memchr_iter, memchr2};

/// The parameters behind a value: `; name=value` and `; name="value"`, with escapes kept raw. An
/// ambiguous value is `None`.
pub(crate) struct Parameters<'a> {
    rest: &'a [u8],
}

impl<'a> Parameters<'a> {
    pub(crate) fn behind(value: &'a [u8]) -> Self {
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
        // Some clients write a semicolon after the last parameter.
        if rest.is_empty() {
            return None;
        }
        let Some(equals) = rest.iter().position(|byte| *byte == b'=') else { return unread };
        let (name, value) = rest.split_at(equals);
        if name.is_empty() || !name.iter().all(is_token) {
            return unread;
        }
        let value = value.get(1..).unwrap_or_default();
        let (value, end) = match value.strip_prefix(b"\"") {
            Some(quoted) => {
                let Some(end) = quoted_bytes(quoted) else { return unread };
                (quoted.get(..end).unwrap_or_default(), quoted.get(end + 1..).unwrap_or_default())
            }
            None => {
                let end = value.iter().position(|byte| !is_token(byte)).unwrap_or(value.len());
                value.split_at(end)
            }
        };
        self.rest = end;
        // Some parsers read a backslash before the last quote as an escape, even after another
        // backslash.
        let is_plain =
            value.iter().all(|byte| !byte.is_ascii_control()) && value.last() != Some(&b'\\');
        Some((name, Some(value).filter(|_| is_plain)))
    }
}

/// Bytes up to the quote that ends the text. A backslash takes the byte behind it along.
fn quoted_bytes(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text.get(at) == Some(&b'"') {
            return Some(at);
        }
        at += 2;
    }
}

/// Places at which a parser could begin to read a name: `name=`, `filename*=`, also within quotes.
pub(crate) fn names_in(value: &[u8]) -> usize {
    let is_between = |byte: &&u8| !b" \t*0123456789\"\\'".contains(byte);
    let is_name = |equals: &usize| {
        let before = value.get(..*equals).unwrap_or_default();
        let end = before.iter().rev().position(|byte| is_between(&byte));
        let word = before.get(..before.len() - end.unwrap_or(before.len())).unwrap_or_default();
        word.last_chunk::<4>().is_some_and(|word| word.eq_ignore_ascii_case(b"name"))
    };
    memchr_iter(b'=', value).filter(is_name).count()
}

/// RFC 9110 section 5.6.2.
pub(crate) fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}
