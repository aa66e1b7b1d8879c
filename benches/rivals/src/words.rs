//! Text like that of prompts, made of words whose tokens are known: about four bytes a token,
//! sixteen tokens in 45 to 90 bytes. Every word begins what the tokenizer looks at as one piece, so
//! the tokens of a text are those of its words.

use fastokens::{Tokenizer, tiktoken};
use fastrand::Rng;
use forebay::kv_events::BlockText;
use std::sync::Arc;

/// Words of the dictionary; the early ones are drawn more often.
const WORDS: usize = 12_000;
/// One word in so many is of several tokens.
const COMPOUND_ONE_IN: usize = 6;

/// The vocabulary cl100k, its tokenizer and a dictionary.
pub(crate) struct Words {
    pub tokenizer: Tokenizer,
    pub vocabulary: Arc<TokenBytes>,
    words: Vec<Word>,
    stops: [Word; 2],
}

/// What each token stands for, as one arena: what the router's own vocabulary does.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

struct Word {
    bytes: Vec<u8>,
    tokens: Vec<u32>,
}

impl TokenBytes {
    pub(crate) fn of(&self, token: u32) -> Option<&[u8]> {
        let token = token as usize;
        let start = if token == 0 { 0 } else { *self.ends.get(token - 1)? };
        self.bytes.get(start as usize..*self.ends.get(token)? as usize)
    }
}

impl BlockText for TokenBytes {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        token_ids
            .iter()
            .all(|token| self.of(*token).map(|bytes| out.extend_from_slice(bytes)).is_some())
    }
}

impl Words {
    /// Builds all from the vocabulary in the package `bpe-openai`.
    pub(crate) fn new() -> Self {
        let bpe = &bpe_openai::cl100k_base().bpe;
        let ranks: Vec<(Vec<u8>, u32)> =
            (0..bpe.num_tokens() as u32).map(|id| (bpe.token_bytes(id).to_vec(), id)).collect();
        let config = tiktoken::TiktokenConfig::new(tiktoken::CL100K_BASE_PATTERN, Vec::new());
        let tokenizer = Tokenizer::from_tiktoken_ranks(&ranks, config).expect("a tokenizer");
        let mut vocabulary = TokenBytes { bytes: Vec::new(), ends: Vec::new() };
        for (bytes, _) in &ranks {
            vocabulary.bytes.extend_from_slice(bytes);
            vocabulary.ends.push(vocabulary.bytes.len() as u32);
        }
        let word = |text: &str| Word {
            bytes: text.as_bytes().to_vec(),
            tokens: tokenizer.encode(text).expect("tokens"),
        };
        let single: Vec<&str> = ranks
            .iter()
            .filter_map(|(bytes, _)| std::str::from_utf8(bytes).ok())
            .filter(|text| {
                text.len() >= 2
                    && text.len() <= 9
                    && text.starts_with(' ')
                    && text[1..].bytes().all(|byte| byte.is_ascii_lowercase())
            })
            .collect();
        let mut rng = Rng::with_seed(5);
        let words = (0..WORDS.min(single.len()))
            .map(|at| match at % COMPOUND_ONE_IN {
                0 => word(&format!("{}{}", single[at], single[rng.usize(..2_000)].trim_start())),
                _ => word(single[at]),
            })
            .collect();
        let stops = [word(","), word(".")];
        Self { tokenizer, vocabulary: Arc::new(vocabulary), words, stops }
    }

    /// True when the text ends as its tokens do, so that a word can follow.
    pub(crate) fn is_whole(&self, text: &[u8], ids: &[u32]) -> bool {
        let start = text.iter().rposition(|byte| *byte == b' ').unwrap_or(0);
        let last = std::str::from_utf8(&text[start..]).expect("the text is ASCII");
        self.tokenizer.encode(last).is_ok_and(|last| ids.ends_with(&last))
    }

    /// Appends text of at least that many tokens, starting with a word.
    pub(crate) fn write(
        &self,
        rng: &mut Rng,
        tokens: usize,
        text: &mut Vec<u8>,
        ids: &mut Vec<u32>,
    ) {
        let until = ids.len() + tokens;
        while ids.len() < until {
            // Word frequencies fall with the rank, though less steeply than in prose.
            let at = (rng.f64().powi(3) * self.words.len() as f64) as usize;
            for word in
                [Some(&self.words[at]), (rng.u8(..8) == 0).then(|| &self.stops[rng.usize(..2)])]
            {
                let Some(word) = word else { continue };
                text.extend_from_slice(&word.bytes);
                ids.extend_from_slice(&word.tokens);
            }
        }
    }
}
