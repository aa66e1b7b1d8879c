//! Token texts in a single array of bytes with offsets: 2 to 6 bytes of text and 4 bytes of offset
//! a token.

use super::error::{TOKEN_IDS_MAX, VocabularyError};
use super::file::{Pieces, TokenizerFile};
use super::lossless::{SPACE_MARK, Spelling};
use std::collections::HashMap;

/// INVARIANT: `ends[i] & OFFSET` never falls, and the last offset is `bytes.len()`.
#[derive(Debug)]
pub(super) struct Arena {
    bytes: Box<[u8]>,
    /// `ends[id]` is the end of token `id - 1` and the start of token `id`; with [`ABSENT`] set,
    /// `id - 1` does not exist.
    ends: Box<[u32]>,
}

impl Arena {
    /// Bytes of a token, `None` for an unknown id.
    pub(super) fn bytes(&self, token_id: u32) -> Option<&[u8]> {
        let index = usize::try_from(token_id).ok()?;
        let start = *self.ends.get(index)? & OFFSET;
        let end = *self.ends.get(index.checked_add(1)?)?;
        if end & ABSENT != 0 {
            return None;
        }
        self.bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    /// The highest id plus 1.
    pub(super) fn token_count(&self) -> usize {
        self.ends.len().saturating_sub(1)
    }

    pub(super) fn try_new(tokens: &[Option<Vec<u8>>]) -> Result<Self, VocabularyError> {
        let mut bytes = Vec::with_capacity(tokens.iter().flatten().map(Vec::len).sum());
        let mut ends = Vec::with_capacity(tokens.len() + 1);
        ends.push(0);
        for (id, token) in tokens.iter().enumerate() {
            bytes.extend_from_slice(token.as_deref().unwrap_or_default());
            let end = u32::try_from(bytes.len()).ok().filter(|end| end & ABSENT == 0);
            let Some(end) = end else {
                return Err(VocabularyError::TooLarge(u32::try_from(id).unwrap_or(u32::MAX)));
            };
            ends.push(if token.is_some() { end } else { end | ABSENT });
        }
        Ok(Self { bytes: bytes.into_boxed_slice(), ends: ends.into_boxed_slice() })
    }
}

/// Reads the vocabulary and the added tokens of a file.
pub(super) fn build(file: &TokenizerFile, style: Spelling) -> Result<Arena, VocabularyError> {
    let mut tokens = Vec::new();
    let speller = Speller::new(style, file.model.byte_fallback);
    match &file.model.vocab {
        Pieces::Ids(ids) => {
            for (piece, id) in ids {
                place(&mut tokens, *id, speller.bytes(piece))?;
            }
        }
        Pieces::Scores(pieces) => {
            for (id, (piece, _)) in pieces.iter().enumerate() {
                place(&mut tokens, u32::try_from(id).unwrap_or(u32::MAX), speller.bytes(piece))?;
            }
        }
    }
    for token in &file.added_tokens {
        place(&mut tokens, token.id, literal(&token.content, style))?;
    }
    Arena::try_new(&tokens)
}

/// Bytes of an added token, which is literal text. SentencePiece files also list runs of their
/// space mark, which mean spaces.
fn literal(content: &str, style: Spelling) -> Vec<u8> {
    match style {
        Spelling::Spaced => content.replace(SPACE_MARK, " ").into_bytes(),
        Spelling::ByteLevel | Spelling::Plain => content.as_bytes().to_vec(),
    }
}

pub(super) fn place(
    tokens: &mut Vec<Option<Vec<u8>>>,
    id: u32,
    bytes: Vec<u8>,
) -> Result<(), VocabularyError> {
    let index = usize::try_from(id).unwrap_or(usize::MAX);
    if id >= TOKEN_IDS_MAX {
        return Err(VocabularyError::TooLarge(id));
    }
    if index >= tokens.len() {
        tokens.resize(index + 1, None);
    }
    if let Some(slot) = tokens.get_mut(index) {
        *slot = Some(bytes);
    }
    Ok(())
}

/// Turns the spelling of a piece into its bytes.
struct Speller {
    style: Spelling,
    byte_fallback: bool,
    byte_of: HashMap<char, u8>,
}

impl Speller {
    fn new(style: Spelling, byte_fallback: bool) -> Self {
        Self { style, byte_fallback, byte_of: byte_level_table() }
    }

    fn bytes(&self, piece: &str) -> Vec<u8> {
        match self.style {
            Spelling::ByteLevel => {
                // A piece with a character outside the table is literal text, as in the reference
                // decoder.
                let bytes: Option<Vec<u8>> =
                    piece.chars().map(|character| self.byte_of.get(&character).copied()).collect();
                bytes.unwrap_or_else(|| piece.as_bytes().to_vec())
            }
            Spelling::Spaced | Spelling::Plain => match fallback_byte(piece) {
                Some(byte) if self.byte_fallback => vec![byte],
                _ => literal(piece, self.style),
            },
        }
    }
}

/// The byte of a piece with the spelling `<0xHH>`.
fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's table: printable Latin-1 maps to itself, the other 68 bytes to U+0100 and up in order.
fn byte_level_table() -> HashMap<char, u8> {
    let mut table = HashMap::with_capacity(256);
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        if printable {
            table.insert(char::from(byte), byte);
        } else {
            table.insert(char::from_u32(next).unwrap_or_default(), byte);
            next += 1;
        }
    }
    table
}

const ABSENT: u32 = 1 << 31;
const OFFSET: u32 = ABSENT - 1;
