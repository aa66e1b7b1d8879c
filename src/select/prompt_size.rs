//! Bytes of a prompt, and the tokens that they are expected to be.

/// Length of one prompt. Made once, asked for each rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptSize {
    bytes: u64,
    bytes_per_token: f32,
    /// The same in hundredths: with integers, a question for each rank is a division.
    hundredths: u64,
    tokens: u64,
}

impl PromptSize {
    /// A ratio that cannot be is taken as the nearest that can.
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

    /// Bytes of the whole prompt, as the match counts them.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Tokens that it is expected to be.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The ratio that the size was made with.
    #[must_use]
    pub const fn bytes_per_token(&self) -> f32 {
        self.bytes_per_token
    }

    /// Tokens that so many bytes of it are expected to be, rounded up.
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
