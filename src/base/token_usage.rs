//! Tokens of a request.

/// Tokens that a request has used, as its engine counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompt, with cached tokens.
    pub prompt: u64,
    /// Tokens of the prompt that the cache held.
    pub cached: u64,
    /// Tokens of the answer.
    pub output: u64,
}
