//! Responses that engines store for later requests, and their ranks.

use forebay_base::limits::RESPONSE_ID_BYTES_MAX;
use forebay_base::{ModelIndex, RankIndex, TenantIndex};
use std::fmt::{self, Debug};

/// The id of a response, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResponseId([u8; RESPONSE_ID_BYTES_MAX]);

impl ResponseId {
    /// `None` if `text` is no id: empty, too long, or with other characters than letters, digits,
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

/// A stored response that an engine has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptResponse {
    /// Its id, as the engine reported it.
    pub id: ResponseId,
    /// Where later requests find it.
    pub place: KeptPlace,
}

/// Place of a stored response, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptPlace {
    /// The rank that made the response. All ranks at its address store it.
    pub rank: RankIndex,
    /// The model that made the response.
    pub model: ModelIndex,
    /// The tenant that owns the response: no other tenant can access it.
    pub tenant: TenantIndex,
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
