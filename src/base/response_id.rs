//! The id of a response of `/v1/responses`.

use crate::limits::RESPONSE_ID_BYTES_MAX;
use std::fmt::{self, Debug};

/// The id of a response, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResponseId([u8; RESPONSE_ID_BYTES_MAX]);

impl ResponseId {
    /// `None` for what is no id: empty, too long, or with other characters than letters, digits,
    /// `-` and `_`.
    #[must_use]
    pub fn of(text: &[u8]) -> Option<Self> {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        let mut padded = [0; RESPONSE_ID_BYTES_MAX];
        padded.get_mut(..text.len())?.copy_from_slice(text);
        (!text.is_empty() && text.iter().all(is_plain)).then_some(Self(padded))
    }
}

impl Debug for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(String::from_utf8_lossy(&self.0).trim_end_matches('\0'))
    }
}

#[cfg(test)]
mod tests {
    use super::ResponseId;

    #[test]
    fn ids_are_short_and_plain() {
        assert_ne!(ResponseId::of(b"resp_1"), ResponseId::of(b"resp_12"));
        assert!(ResponseId::of(&[b'a'; 64]).is_some() && ResponseId::of(&[b'a'; 65]).is_none());
        for odd in [&b""[..], b"a/b", b"a%2f", b"a.b", b"a\0", b"a b"] {
            assert_eq!(ResponseId::of(odd), None);
        }
        assert_eq!(format!("{:?}", ResponseId::of(b"resp_1").unwrap()), "resp_1");
    }
}
