//! The engine's tokenizer: built in, or a `tokenizer.json`, and the words of which answers are
//! made. Immutable after loading, shared by reference. Encoding is slow (milliseconds
//! for long prompts) and belongs on the encode thread; everything else is cheap.
//!
//! Files like GPT-2's, such as the built-in file, are read here. All other files need the library
//! `tokenizers`, which takes longer to compile than the engine: the feature `tokenizers`.

mod byte_bpe;
mod error;
#[cfg(feature = "tokenizers")]
mod library;
mod words;

use ahash::AHashMap;
use byte_bpe::ByteBpe;
pub use error::TokenizerError;
#[cfg(feature = "tokenizers")]
use library::LibraryTokenizer;
use std::path::Path;
use twox_hash::XxHash3_64;

/// Text to token ids and back, and made-up answers.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: TokenEncoder,
    /// Added tokens that always split the text, longest first; empty when splitting there is not
    /// exact.
    splitters: Vec<(String, u32)>,
    /// Distinct first bytes of the splitters; 1 or 2 in practice.
    splitter_starts: Vec<u8>,
    words: AHashMap<u32, Box<str>>,
    first_words: Vec<u32>,
    next_words: Vec<u32>,
}

/// A part of a text that is tokenized by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextSegment<'a> {
    /// An added token, by its id.
    Token(u32),
    /// Text between two added tokens.
    Text(&'a str),
}

impl Tokenizer {
    /// The small tokenizer that is part of the program.
    pub fn built_in() -> Result<Self, TokenizerError> {
        Self::from_json(BUILT_IN)
    }

    /// Writes the small tokenizer and its chat template as a model folder, for a router in front of
    /// the engine.
    pub fn write_built_in(dir: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("tokenizer.json"), BUILT_IN)?;
        std::fs::write(dir.join("tokenizer_config.json"), BUILT_IN_CONFIG)
    }

    /// `tokenizer.json` of a model folder.
    pub fn from_model_dir(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| TokenizerError::Read { path: path.display().to_string(), source })?;
        Self::from_json(&text)
    }

    /// The text of a `tokenizer.json`.
    pub fn from_json(text: &str) -> Result<Self, TokenizerError> {
        Self::with_encoder(TokenEncoder::from_json(text)?)
    }

    fn with_encoder(encoder: TokenEncoder) -> Result<Self, TokenizerError> {
        let mut splitters = encoder.splitters();
        splitters.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
        let mut splitter_starts: Vec<u8> =
            splitters.iter().filter_map(|(token, _)| token.bytes().next()).collect();
        splitter_starts.sort_unstable();
        splitter_starts.dedup();
        let mut tokenizer = Self {
            encoder,
            splitters,
            splitter_starts,
            words: AHashMap::new(),
            first_words: Vec::new(),
            next_words: Vec::new(),
        };
        if !tokenizer.splits_exactly() {
            tokenizer.splitters.clear();
            tokenizer.splitter_starts.clear();
        }
        tokenizer.find_words()?;
        Ok(tokenizer)
    }

    /// Token ids of a text. `special` adds what the tokenizer puts around a whole prompt (BOS).
    #[cfg_attr(
        not(feature = "tokenizers"),
        expect(unused_variables, reason = "files like GPT-2's put nothing around a prompt")
    )]
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        match &self.encoder {
            TokenEncoder::ByteBpe(bpe) => {
                let mut ids = Vec::with_capacity(text.len() / 3);
                self.segments(text, |segment| match segment {
                    TextSegment::Token(id) => ids.push(id),
                    TextSegment::Text(part) => bpe.encode_plain(part, &mut ids),
                });
                Ok(ids)
            }
            #[cfg(feature = "tokenizers")]
            TokenEncoder::Library(library) => library.encode(text, special),
        }
    }

    /// Splits a text into parts. The joined token ids of the parts are the ids of the text (without
    /// BOS).
    pub fn segments<'a>(&self, text: &'a str, mut each: impl FnMut(TextSegment<'a>)) {
        let mut rest = text;
        while let Some((offset, length, id)) = self.next_splitter(rest) {
            let (before, after) = rest.split_at(offset);
            if !before.is_empty() {
                each(TextSegment::Text(before));
            }
            each(TextSegment::Token(id));
            rest = after.get(length..).unwrap_or_default();
        }
        if !rest.is_empty() {
            each(TextSegment::Text(rest));
        }
    }

    /// Text of token ids, special tokens included. Unknown ids give nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.encoder {
            TokenEncoder::ByteBpe(bpe) => bpe.decode(ids),
            #[cfg(feature = "tokenizers")]
            TokenEncoder::Library(library) => library.decode(ids),
        }
    }

    /// The spelling of a token in the vocabulary.
    #[must_use]
    pub fn spelling(&self, id: u32) -> Option<String> {
        match &self.encoder {
            TokenEncoder::ByteBpe(bpe) => bpe.spelling(id).map(str::to_owned),
            #[cfg(feature = "tokenizers")]
            TokenEncoder::Library(library) => library.spelling(id),
        }
    }

    /// Bound above all token ids.
    #[must_use]
    pub fn vocabulary_size(&self) -> usize {
        match &self.encoder {
            TokenEncoder::ByteBpe(bpe) => bpe.vocabulary_size(),
            #[cfg(feature = "tokenizers")]
            TokenEncoder::Library(library) => library.vocabulary_size(),
        }
    }

    /// Text of a token of an answer.
    #[must_use]
    pub fn word(&self, id: u32) -> &str {
        self.words.get(&id).map_or("", |text| text)
    }

    /// The answer to a prompt: the same for the same prompt, choice and count. Whole words, so that
    /// the text of the answer, sent back in a later turn, becomes the same token ids again.
    #[must_use]
    pub fn answer(&self, prompt: &[u32], choice_index: u32, token_count: usize) -> Vec<u32> {
        let mut bytes = Vec::with_capacity(prompt.len() * 4);
        prompt.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
        let mut random =
            fastrand::Rng::with_seed(XxHash3_64::oneshot_with_seed(choice_index.into(), &bytes));
        let mut pick = |words: &[u32]| {
            let at = random.usize(0..words.len().max(1));
            words.get(at).copied().unwrap_or_default()
        };
        (0..token_count)
            .map(|at| pick(if at == 0 { &self.first_words } else { &self.next_words }))
            .collect()
    }

    fn next_splitter(&self, text: &str) -> Option<(usize, usize, u32)> {
        let candidates = text.bytes().enumerate();
        let candidates = candidates.filter(|(_, byte)| self.splitter_starts.contains(byte));
        candidates.map(|(offset, _)| offset).find_map(|offset| {
            let tail = text.get(offset..)?;
            let found = self.splitters.iter().find(|(token, _)| tail.starts_with(token.as_str()));
            found.map(|(token, id)| (offset, token.len(), *id))
        })
    }

    fn splits_exactly(&self) -> bool {
        let mut probe = String::from(" First  words,\n\nsecond ");
        for (token, _) in self.splitters.iter().take(16) {
            probe.push_str(token);
            probe.push_str("user\nHello, World! 12345\t<|x|> é\n");
            probe.push_str(token);
            probe.push('\n');
        }
        let mut ids = Vec::new();
        self.segments(&probe, |segment| match segment {
            TextSegment::Token(id) => ids.push(id),
            TextSegment::Text(text) => ids.extend(self.encode(text, false).unwrap_or_default()),
        });
        self.encode(&probe, false).is_ok_and(|whole| whole == ids)
    }

    fn find_words(&mut self) -> Result<(), TokenizerError> {
        let size = u32::try_from(self.vocabulary_size()).unwrap_or(u32::MAX);
        let mut fallback = Vec::new();
        for id in 0..size {
            if self.next_words.len() >= WORDS_MAX && self.first_words.len() >= WORDS_MAX {
                break;
            }
            // Decoded after another token: some decoders drop the space at the start of a text.
            let text = self.text_after_first(id);
            let word = text.strip_prefix(' ').unwrap_or(&text);
            if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
                continue;
            }
            fallback.push((id, text.clone()));
            let list = if word.len() < text.len() { &self.next_words } else { &self.first_words };
            let wanted = list.len() < WORDS_MAX && word.len() >= 2;
            if wanted && self.encode(&text, false).is_ok_and(|ids| ids == [id]) {
                let list = if word.len() < text.len() {
                    &mut self.next_words
                } else {
                    &mut self.first_words
                };
                list.push(id);
                self.words.insert(id, text.into());
            }
        }
        if self.next_words.is_empty() {
            self.next_words = fallback.iter().map(|(id, _)| *id).collect();
            self.words.extend(fallback.into_iter().map(|(id, text)| (id, text.into())));
        }
        if self.first_words.is_empty() {
            self.first_words.clone_from(&self.next_words);
        }
        if self.next_words.is_empty() { Err(TokenizerError::NoWords) } else { Ok(()) }
    }

    fn text_after_first(&self, id: u32) -> String {
        let pair = self.decode(&[id, id]);
        let single = self.decode(&[id]);
        pair.strip_prefix(single.as_str()).map_or(String::new(), str::to_owned)
    }
}

/// What turns text into token ids.
#[derive(Debug)]
enum TokenEncoder {
    ByteBpe(Box<ByteBpe>),
    #[cfg(feature = "tokenizers")]
    Library(Box<LibraryTokenizer>),
}

impl TokenEncoder {
    fn from_json(text: &str) -> Result<Self, TokenizerError> {
        match ByteBpe::from_json(text) {
            Ok(bpe) => Ok(Self::ByteBpe(Box::new(bpe))),
            #[cfg(feature = "tokenizers")]
            Err(_) => Ok(Self::Library(Box::new(LibraryTokenizer::from_json(text)?))),
            #[cfg(not(feature = "tokenizers"))]
            Err(reason) => Err(TokenizerError::NeedsLibrary(reason)),
        }
    }

    /// Added tokens that are cut out before anything else looks at the text.
    fn splitters(&self) -> Vec<(String, u32)> {
        match self {
            Self::ByteBpe(bpe) => bpe.added().to_vec(),
            #[cfg(feature = "tokenizers")]
            Self::Library(library) => library.splitters(),
        }
    }
}

/// Words that answers choose from; enough for variety, few enough to load fast.
const WORDS_MAX: usize = 256;
const BUILT_IN: &str = include_str!("../../../tests/data/tokenizer/tokenizer.json");
/// The `tokenizer_config.json` beside the small tokenizer: its chat template.
pub(crate) const BUILT_IN_CONFIG: &str =
    include_str!("../../../tests/data/tokenizer/tokenizer_config.json");

#[cfg(test)]
mod tests;
