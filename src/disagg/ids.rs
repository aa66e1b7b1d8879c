//! Names of one KV transfer: what SGLang's `rid`, the `X-Request-Id` of a push and Mooncake's
//! transfer id are made of.

/// Characters of [`KvTransferId::rid`].
pub const RID_BYTES: usize = 19;

/// 64 random bits that name one KV transfer at both engines.
///
/// SGLang aborts every request whose id *begins* with what it is told (0.5.23,
/// `managers/scheduler.py`, `abort_request`). All our ids have one length, so that none is the
/// beginning of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTransferId([u8; RID_BYTES]);

impl KvTransferId {
    /// `random`: a fresh random number.
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

    /// `fb-` and 16 hexadecimal digits.
    #[must_use]
    pub fn rid(&self) -> &[u8] {
        &self.0
    }

    /// The digits alone.
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
