//! The id of a running router, for detecting requests that come back to it.

use std::fmt;

/// Identifies a router's own requests in `Via`. Random at each start, so that no two routers share
/// an id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RouterId([u8; RouterId::BYTES]);

impl RouterId {
    /// Prefix of all ids.
    pub const START: &'static str = "forebay-";
    const BYTES: usize = Self::START.len() + 16;

    /// From 64 random bits.
    #[must_use]
    pub fn from_random(bits: u64) -> Self {
        let mut name = [b'-'; Self::BYTES];
        let digits = (0..16).rev().map(|digit| {
            let value = (bits >> (4 * digit)) & 0xf;
            b"0123456789abcdef".get(usize::try_from(value).unwrap_or(0)).copied().unwrap_or(b'0')
        });
        let all = Self::START.bytes().chain(digits);
        name.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
        Self(name)
    }

    /// `forebay-` and 16 hexadecimal digits.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or(Self::START)
    }
}

impl fmt::Debug for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::RouterId;

    #[test]
    fn an_id_is_a_token_of_its_bits() {
        let id = RouterId::from_random(0x0123_4567_89ab_cdef);
        assert_eq!(id.as_str(), "forebay-0123456789abcdef");
        assert_ne!(id, RouterId::from_random(0));
    }
}
