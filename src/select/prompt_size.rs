//! Size of a prompt in bytes and in estimated tokens.

/// Size of a prompt. Computed once, read for each rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptSize {
    bytes: u64,
    bytes_per_token: f32,
    /// The ratio in hundredths: with integers, the estimate for each rank is a single division.
    hundredths: u64,
    tokens: u64,
}

impl PromptSize {
    /// Clamps an impossible ratio to the nearest possible ratio.
    #[must_use]
    pub fn new(bytes: u64, bytes_per_token: f32) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to 1..=10 first; a NaN becomes 0 and then 100"
        )]
        let hundredths = ((bytes_per_token.clamp(1.0, 10.0) * 100.0) as u64).max(100);
        let size = Self { bytes, bytes_per_token, hundredths, tokens: 0 };
        let tokens = size.tokens_of(bytes);
        Self { tokens, ..size }
    }

    /// Bytes of the whole prompt, in the units of the match.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Estimated tokens of the whole prompt.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    #[must_use]
    pub const fn bytes_per_token(&self) -> f32 {
        self.bytes_per_token
    }

    /// Estimated tokens of `bytes` of the prompt, rounded up.
    #[must_use]
    pub fn tokens_of(&self, bytes: u64) -> u64 {
        let tokens = bytes.saturating_mul(100).div_ceil(self.hundredths);
        debug_assert!(tokens <= bytes, "a token has a byte at least");
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_rounded_up_and_survive_nonsense() {
        let tokens = |bytes, ratio| PromptSize::new(bytes, ratio).tokens();
        assert_eq!((tokens(9, 4.0), tokens(0, 4.0), tokens(10, f32::NAN)), (3, 0, 10));
        assert_eq!((tokens(10, 0.0), tokens(100, 1e9), tokens(10, -1.0)), (10, 10, 10));
        assert_eq!(PromptSize::new(90, 4.0).tokens_of(9), 3);
    }
}
