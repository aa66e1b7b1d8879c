//! How much of a prompt came from the cache, as the engine says in passing. It costs one search for
//! each read, where [`UsageScan`](forebay_json::UsageScan) reads objects; in return a number that is cut
//! by the end of a read is missed, and of a batch the last prompt counts.

use forebay_base::TokenUsage;
use forebay_json::UsageNumbers;
use memchr::memmem::Finder;

/// In text of an answer the quote is escaped, so no text can pass for a member.
const END_OF_NAME: &[u8] = b"_tokens\":";
/// Digits of a count; a longer number is none.
const DIGITS_MAX: usize = 12;

/// The prepared search, for all answers of a shard.
#[derive(Debug)]
pub struct HitFinder(Finder<'static>);

/// What one answer has told so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hits(UsageNumbers);

impl Default for HitFinder {
    fn default() -> Self {
        Self(Finder::new(END_OF_NAME))
    }
}

impl Hits {
    /// Takes the next bytes of the body.
    pub fn feed(&mut self, finder: &HitFinder, data: &[u8]) {
        let mut from = 0;
        while let Some(at) = data.get(from..).and_then(|rest| finder.0.find(rest)) {
            let at = from + at;
            let behind = at + END_OF_NAME.len();
            from = behind;
            // Most such members tell of something else, and end otherwise.
            if !data.get(..at).and_then(<[u8]>::last).is_some_and(|last| b"td".contains(last)) {
                continue;
            }
            let end = at + b"_tokens".len();
            let before = data.get(..end).unwrap_or_default();
            let name = before.rsplit(|byte| *byte == b'"').next().unwrap_or_default();
            if let Some(number) = data.get(behind..).and_then(number) {
                self.0.take(name, number);
            }
        }
    }

    /// Prompt and cached tokens, where told.
    #[must_use]
    pub fn usage(&self) -> Option<TokenUsage> {
        self.0.usage()
    }

    /// Cached tokens, where told.
    #[must_use]
    pub fn cached(&self) -> Option<u64> {
        self.0.cached_told()
    }
}

/// A whole number at the beginning. One that the read ends in may go on in the next.
fn number(data: &[u8]) -> Option<u64> {
    let digits = data.trim_ascii_start();
    let length = digits.iter().take(DIGITS_MAX + 1).take_while(|b| b.is_ascii_digit()).count();
    let is_whole = (1..=DIGITS_MAX).contains(&length) && length < digits.len();
    let digits = digits.get(..length).filter(|_| is_whole)?;
    Some(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(parts: &[&str]) -> Option<(u64, Option<u64>)> {
        let finder = HitFinder::default();
        let mut hits = Hits::default();
        for part in parts {
            hits.feed(&finder, part.as_bytes());
        }
        hits.usage().map(|usage| (usage.prompt, hits.cached()))
    }

    #[test]
    fn each_api_says_it_in_its_own_way() {
        let chat = r#"{"usage":{"prompt_tokens":64,"completion_tokens":3,
            "prompt_tokens_details":{"cached_tokens": 48}}}"#;
        assert_eq!(told(&[chat]), Some((64, Some(48))));
        let responses = r#"{"usage":{"input_tokens":9,"input_tokens_details":
            {"cached_tokens":4},"output_tokens":2}}"#;
        assert_eq!(told(&[responses]), Some((9, Some(4))));
        let messages = r#"{"usage":{"input_tokens":5,"cache_read_input_tokens":16,
            "cache_creation_input_tokens":1,"output_tokens":1}}"#;
        assert_eq!(told(&[messages]), Some((22, Some(16))));
        let silent = r#"{"usage":{"prompt_tokens":7,"total_tokens":9}}"#;
        assert_eq!(told(&[silent]), Some((7, None)), "nothing is said of a cache");
    }

    #[test]
    fn the_last_word_counts_and_text_is_none() {
        let early = r#"{"prompt_tokens":1,"cached_tokens":1}"#;
        let late = r#"{"prompt_tokens":12,"cached_tokens":8}"#;
        assert_eq!(told(&[early, late]), Some((12, Some(8))));
        let forged = r#"{"tools":[{"cache_creation_input_tokens":999,"cached_tokens":9}],
            "usage":{"input_tokens":9,"output_tokens":2}}"#;
        assert_eq!(told(&[forged]), Some((9, None)), "an object of the client's own");
        assert_eq!(told(&[r#"{"text":"\"prompt_tokens\":12,"}"#]), None);
        for body in ["", "_tokens\":", r#"{"prompt_tokens":12"#, r#"{"prompt_tokens":null}"#] {
            assert_eq!(told(&[body]), None, "{body}");
        }
        assert_eq!(told(&[r#"{"prompt_tokens":1234567890123,"#]), None, "no count is so long");
    }
}
