//! A mirrored body becomes the keys of its prompt's blocks. Keys are hashes with a random seed of
//! the process. The text is dropped.

use crate::limits::UNIT_BYTES;
use forebay_prompt::parse::{ApiRequest, Endpoint, scan};
use forebay_prompt::render::canonical;
use twox_hash::XxHash3_64;

/// A prompt without its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirroredPrompt {
    /// Model name of the request.
    pub model: String,
    /// A key for each full block, which covers the block with all blocks before.
    pub keys: Vec<u64>,
    /// Bytes of the prompt's text.
    pub text_bytes: u64,
    /// Limit of the answer, in tokens.
    pub tokens_max: Option<u32>,
}

/// Reads bodies. Reuses its memory.
#[derive(Debug, Default)]
pub struct PromptReader {
    seed: u64,
    request: ApiRequest,
    text: Vec<u8>,
}

impl PromptReader {
    /// A reader with that seed for its keys.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The prompt of a body in blocks of `block_bytes`; `None` without a prompt. With 0, the prompt
    /// has no keys.
    pub fn read(
        &mut self,
        endpoint: Endpoint,
        body: &[u8],
        block_bytes: usize,
    ) -> Option<MirroredPrompt> {
        let Self { seed, request, text } = self;
        request.clear();
        text.clear();
        scan(body, endpoint, request).ok()?;
        let text_bytes = canonical(request, body, text);
        if text_bytes == 0 {
            return None;
        }
        let space = XxHash3_64::oneshot_with_seed(*seed, request.cache_salt.as_bytes());
        let mut before = XxHash3_64::oneshot_with_seed(space, request.lora.as_bytes());
        let key = |block: &[u8]| {
            before = XxHash3_64::oneshot_with_seed(before, block);
            before
        };
        let blocks = if block_bytes > 0 { text.as_slice() } else { &[] };
        let keys = blocks.chunks_exact(block_bytes.max(1)).map(key).collect();
        let tokens_max = request.max_tokens;
        Some(MirroredPrompt { model: request.model.clone(), keys, text_bytes, tokens_max })
    }
}

impl MirroredPrompt {
    /// Length in units of the simulation, at least 1.
    #[must_use]
    pub fn units(&self) -> u32 {
        u32::try_from(self.text_bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &str) -> Option<MirroredPrompt> {
        PromptReader::new(7).read(Endpoint::ChatCompletions, body.as_bytes(), 64)
    }

    fn chat(messages: &[&str], more: &str) -> String {
        let message = |text: &&str| format!(r#"{{"role":"user","content":"{text}"}}"#);
        let messages: Vec<String> = messages.iter().map(message).collect();
        format!(r#"{{"model":"m","messages":[{}]{more}}}"#, messages.join(","))
    }

    #[test]
    fn a_next_turn_has_the_keys_of_the_turn_before() {
        let long = "word ".repeat(60);
        let first = read(&chat(&[&long], r#","max_tokens":9"#)).unwrap();
        assert_eq!((first.keys.len(), first.tokens_max), (4, Some(9)));
        assert_eq!((first.text_bytes, first.units()), (306, 77));
        let second = read(&chat(&[&long, &long], "")).unwrap();
        assert_eq!(second.keys[..4], first.keys[..]);
        let other = read(&chat(&["word", &long], "")).unwrap();
        assert!(!other.keys.iter().any(|key| first.keys.contains(key)));
        let salted = read(&chat(&[&long], r#","cache_salt":"s""#)).unwrap();
        assert!(!salted.keys.iter().any(|key| first.keys.contains(key)));
        assert_eq!(PromptReader::new(7).read(Endpoint::ChatCompletions, b"{}", 64), None);
        assert_eq!(read("{\"messages\":"), None);
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = PromptReader::new(1);
            for block_bytes in [0, 1, 64] {
                if let Some(prompt) = reader.read(Endpoint::Completions, &body, block_bytes) {
                    prop_assert!(prompt.keys.len() * block_bytes <= body.len() + 64);
                }
            }
        }
    }
}
