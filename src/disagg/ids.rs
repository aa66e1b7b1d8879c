//! Ids of KV transfers, used in SGLang's `rid`, the `X-Request-Id` of a push and Mooncake's
//! transfer id.

/// Number of characters of [`KvTransferId::rid`].
pub const RID_BYTES: usize = 19;

/// 64 random bits that identify a KV transfer at both engines.
///
/// SGLang aborts every request with an id that *starts* with the id in the abort (0.5.23,
/// `managers/scheduler.py`, `abort_request`). All ids of the router have the same length, so that
/// no id is a prefix of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTransferId([u8; RID_BYTES]);

impl KvTransferId {
    /// An id from a fresh random number.
    #[must_use]
    pub fn new(random: u64) -> Self {
        const DIGITS: [u8; 16] = *b"0123456789abcdef";
        let mut text = *b"fb-0000000000000000";
        let mut left = random;
        for byte in text.iter_mut().skip(3).rev() {
            let digit = usize::try_from(left & 15).ok().and_then(|digit| DIGITS.get(digit));
            *byte = digit.copied().unwrap_or(b'0');
            left >>= 4;
        }
        Self(text)
    }

    /// The id as `fb-` and 16 hexadecimal digits.
    #[must_use]
    pub fn rid(&self) -> &[u8] {
        &self.0
    }

    /// The 16 hexadecimal digits only.
    #[must_use]
    pub fn digits(&self) -> &[u8] {
        self.0.get(3..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_length() {
        assert_eq!(KvTransferId::new(0x0123_4567_89ab_cdef).rid(), b"fb-0123456789abcdef");
        assert_eq!(KvTransferId::new(7).rid(), b"fb-0000000000000007");
        assert_eq!(KvTransferId::new(u64::MAX).digits(), b"ffffffffffffffff");
    }
}
