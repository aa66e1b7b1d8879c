//! Finds the engine's own `cached_tokens` in an answer as it passes, without parsing it.

use memchr::memmem::Finder;

/// The last value seen in one answer. OpenAI's shape: `usage.prompt_tokens_details.cached_tokens`.
#[derive(Debug)]
pub struct CachedTokens {
    finder: Finder<'static>,
}

const KEY: &[u8] = b"\"cached_tokens\":";

impl CachedTokens {
    /// Prepares the search; one per shard.
    #[must_use]
    pub fn new() -> Self {
        Self { finder: Finder::new(KEY) }
    }

    /// The last value in these body bytes. A value cut by the end of a read is missed: engines send
    /// the usage in one write, and this is a statistic.
    #[must_use]
    pub fn find(&self, data: &[u8]) -> Option<u64> {
        let mut found = None;
        let mut rest = data;
        while let Some(at) = self.finder.find(rest) {
            rest = rest.get(at + KEY.len()..)?;
            let digits = rest.trim_ascii_start();
            let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
            // A number that the chunk ends in may go on in the next one.
            if (1..=12).contains(&length) && length < digits.len() {
                found =
                    digits.get(..length).and_then(|d| std::str::from_utf8(d).ok()?.parse().ok());
            }
        }
        found
    }
}

impl Default for CachedTokens {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_last_complete_number() {
        let search = CachedTokens::new();
        let body = br#"{"usage":{"prompt_tokens_details":{"cached_tokens": 48}},"x":{"cached_tokens":64}}"#;
        assert_eq!(search.find(body), Some(64));
        assert_eq!(search.find(br#"{"cached_tokens":null}"#), None);
        assert_eq!(search.find(br#"{"cached_tokens":12"#), None);
    }
}
