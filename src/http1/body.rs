//! Chunked bodies (RFC 9112 section 7.1), decoded in place and to the letter: CR LF ends every
//! line, sizes are bare hexadecimal, extensions follow their grammar and are dropped, trailers are
//! checked and dropped.

use super::chars::{is_token, is_value};
use std::ops::Range;
use thiserror::Error;

/// Hexadecimal digits of a chunk size, leading zeros included.
const SIZE_DIGITS_MAX: u8 = 16;

/// Most digits of a size line that is parsed in a single step.
const PLAIN_DIGITS_MAX: usize = 8;

const LINE_END: &[u8] = b"\r\n";

/// The size line of a chunk with data, without an extension.
struct SizeLine {
    /// Bytes of the line, its end included.
    bytes: usize,
    /// Bytes of the chunk's data.
    size: u64,
}

impl SizeLine {
    /// The line that `rest` begins with, if it is whole.
    #[inline(always)]
    fn of(rest: &[u8]) -> Option<Self> {
        let mut size = 0;
        for (at, byte) in rest.iter().enumerate().take(PLAIN_DIGITS_MAX + 1) {
            let Some(digit) = char::from(*byte).to_digit(16) else {
                let is_whole = rest.get(at..at + 2) == Some(LINE_END) && size > 0;
                return is_whole.then_some(Self { bytes: at + 2, size });
            };
            size = size << 4 | u64::from(digit);
        }
        None
    }
}

/// Limits of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// Most data bytes, all chunks together. A chunk that would pass it is refused when its size is
    /// read: 413.
    pub body_bytes_max: u64,
    /// Most bytes of chunk extensions, all chunks together. Past it: 400.
    pub extension_bytes_max: u32,
    /// Most bytes of trailer fields. Past it: 400.
    pub trailer_bytes_max: u32,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: u64::MAX >> 1,
            extension_bytes_max: 4 * 1024,
            trailer_bytes_max: 8 * 1024,
        }
    }
}

/// Why a body was refused. After any of these the connection must not be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BodyError {
    /// Chunk size is not bare hexadecimal digits, or too many of them.
    #[error("a chunk size is malformed")]
    Size,
    /// Chunk extension breaks its grammar.
    #[error("a chunk extension is malformed")]
    Extension,
    /// Chunk extensions longer than the limit.
    #[error("the chunk extensions are too long")]
    ExtensionsTooLong,
    /// Line does not end with CR LF, or chunk data are not followed by it.
    #[error("the chunked framing is broken: CR LF expected")]
    LineEnd,
    /// Trailer field is malformed.
    #[error("a trailer field is malformed")]
    Trailer,
    /// Trailer longer than the limit.
    #[error("the trailer section is too long")]
    TrailerTooLong,
    /// Body longer than the limit.
    #[error("the body is too large")]
    TooLarge,
}

impl BodyError {
    /// Status for the client: 400 or 413. (A bad response body ends the response: it is the
    /// worker's fault.)
    #[must_use]
    pub fn status(&self) -> u16 {
        if *self == Self::TooLarge { 413 } else { 400 }
    }
}

/// Result of a decode call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeProgress {
    /// Decoded data, now at `bytes[..data_bytes]`.
    pub data_bytes: usize,
    /// Bytes read; `bytes[consumed_bytes..]` is unchanged and belongs to the next message when
    /// `done`.
    pub consumed_bytes: usize,
    /// The body has ended.
    pub done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    SizeStart,
    Size,
    /// Blanks after a size, a name or a value: only `;` (or `=` after a name) may follow.
    BlankBeforeExtension,
    ExtensionStart,
    ExtensionName,
    BlankAfterName,
    ValueStart,
    ValueToken,
    ValueQuoted,
    ValueEscaped,
    ValueEnd,
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    EndLineFeed,
    Done,
}

/// Decoder of a chunked body.
#[derive(Clone, Debug)]
pub struct ChunkedDecoder {
    state: ChunkState,
    size: u64,
    digits: u8,
    body_bytes_left: u64,
    extension_bytes_left: u32,
    trailer_bytes_left: u32,
}

impl ChunkedDecoder {
    /// A decoder before the first chunk size.
    #[must_use]
    pub fn new(limits: &BodyLimits) -> Self {
        Self {
            state: ChunkState::SizeStart,
            size: 0,
            digits: 0,
            body_bytes_left: limits.body_bytes_max.min(u64::MAX >> 1),
            extension_bytes_left: limits.extension_bytes_max,
            trailer_bytes_left: limits.trailer_bytes_max,
        }
    }

    /// Decodes available bytes: moves the data of whole and partial chunks to the front of `bytes`.
    /// Consumes everything unless the body ends first; after that it consumes nothing.
    pub fn decode(&mut self, bytes: &mut [u8]) -> Result<DecodeProgress, BodyError> {
        let mut read = 0_usize;
        let mut written = 0_usize;
        if self.state == ChunkState::SizeStart {
            while let Some(chunk) = self.whole_chunk(bytes.get(read..).unwrap_or_default()) {
                let data = read + chunk.start..read + chunk.end;
                let end = written + data.len();
                read = data.end + LINE_END.len();
                bytes.copy_within(data, written);
                written = end;
            }
            if read == bytes.len() {
                return Ok(DecodeProgress {
                    data_bytes: written,
                    consumed_bytes: read,
                    done: false,
                });
            }
        }
        self.decode_parts(bytes, read, written)
    }

    /// The same behind the first `read` bytes, for all forms of a body. A function of its own: the
    /// loop over whole chunks keeps its values in registers.
    #[inline(never)]
    fn decode_parts(
        &mut self,
        bytes: &mut [u8],
        mut read: usize,
        mut written: usize,
    ) -> Result<DecodeProgress, BodyError> {
        while self.state != ChunkState::Done {
            if self.state == ChunkState::Data {
                let available = bytes.len().saturating_sub(read);
                let step = usize::try_from(self.size).map_or(available, |size| size.min(available));
                if read != written {
                    bytes.copy_within(read..read + step, written);
                }
                read += step;
                written += step;
                self.size -= u64::try_from(step).unwrap_or(0);
                if self.size > 0 {
                    break;
                }
                self.state = ChunkState::DataReturn;
            }
            let rest = bytes.get(read..).unwrap_or_default();
            if let Some(step) = self.plain_step(rest) {
                read += step;
                continue;
            }
            let Some(byte) = rest.first() else { break };
            self.state = self.next(*byte)?;
            read += 1;
        }
        Ok(DecodeProgress {
            data_bytes: written,
            consumed_bytes: read,
            done: self.state == ChunkState::Done,
        })
    }

    /// The place of the data, if `rest` begins with a whole chunk without extensions. Engines send
    /// little else: a token is a chunk.
    #[inline(always)]
    fn whole_chunk(&mut self, rest: &[u8]) -> Option<Range<usize>> {
        let line = SizeLine::of(rest)?;
        let end = line.bytes.checked_add(usize::try_from(line.size).ok()?)?;
        if !rest.get(end..)?.starts_with(LINE_END) {
            return None;
        }
        self.body_bytes_left = self.body_bytes_left.checked_sub(line.size)?;
        Some(line.bytes..end)
    }

    /// Skips a line end after data, or a size line without extension, if `rest` contains all of it.
    /// Returns the number of skipped bytes. Byte by byte these lines cost four times as much.
    /// Everything else, and every error, is left to [`Self::next`].
    fn plain_step(&mut self, rest: &[u8]) -> Option<usize> {
        match self.state {
            ChunkState::DataReturn if rest.starts_with(LINE_END) => {
                self.state = ChunkState::SizeStart;
                Some(LINE_END.len())
            }
            ChunkState::SizeStart => {
                let line = SizeLine::of(rest)?;
                self.body_bytes_left = self.body_bytes_left.checked_sub(line.size)?;
                self.state = ChunkState::Data;
                self.size = line.size;
                Some(line.bytes)
            }
            _ => None,
        }
    }

    /// The state after a byte of framing.
    fn next(&mut self, byte: u8) -> Result<ChunkState, BodyError> {
        match self.state {
            ChunkState::SizeStart | ChunkState::Size => self.size_byte(byte),
            ChunkState::SizeLineFeed => self.size_line_feed(byte),
            ChunkState::Data | ChunkState::DataReturn => {
                expect(byte, b'\r', ChunkState::DataLineFeed)
            }
            ChunkState::DataLineFeed => expect(byte, b'\n', ChunkState::SizeStart),
            ChunkState::TrailerStart
            | ChunkState::TrailerName
            | ChunkState::TrailerValue
            | ChunkState::TrailerLineFeed
            | ChunkState::EndLineFeed => self.trailer_byte(byte),
            ChunkState::Done => Ok(ChunkState::Done),
            _ => self.extension_byte(byte),
        }
    }

    fn size_byte(&mut self, byte: u8) -> Result<ChunkState, BodyError> {
        if let Some(digit) = char::from(byte).to_digit(16) {
            if self.state == ChunkState::SizeStart {
                self.size = 0;
                self.digits = 0;
            }
            if self.digits == SIZE_DIGITS_MAX {
                return Err(BodyError::Size);
            }
            self.digits += 1;
            self.size = (self.size << 4) | u64::from(digit);
            return Ok(ChunkState::Size);
        }
        match byte {
            _ if self.state == ChunkState::SizeStart => Err(BodyError::Size),
            b'\r' => Ok(ChunkState::SizeLineFeed),
            b';' | b' ' | b'\t' => self.count_extension(if byte == b';' {
                ChunkState::ExtensionStart
            } else {
                ChunkState::BlankBeforeExtension
            }),
            b'\n' => Err(BodyError::LineEnd),
            _ => Err(BodyError::Size),
        }
    }

    fn size_line_feed(&mut self, byte: u8) -> Result<ChunkState, BodyError> {
        if self.size == 0 {
            return expect(byte, b'\n', ChunkState::TrailerStart);
        }
        self.body_bytes_left =
            self.body_bytes_left.checked_sub(self.size).ok_or(BodyError::TooLarge)?;
        expect(byte, b'\n', ChunkState::Data)
    }

    fn count_extension(&mut self, next: ChunkState) -> Result<ChunkState, BodyError> {
        self.extension_bytes_left =
            self.extension_bytes_left.checked_sub(1).ok_or(BodyError::ExtensionsTooLong)?;
        Ok(next)
    }

    /// RFC 9112 section 7.1.1: `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`.
    fn extension_byte(&mut self, byte: u8) -> Result<ChunkState, BodyError> {
        let blank = matches!(byte, b' ' | b'\t');
        let next = match (self.state, byte) {
            (ChunkState::ValueQuoted, b'"') => ChunkState::ValueEnd,
            (ChunkState::ValueQuoted, b'\\') => ChunkState::ValueEscaped,
            (ChunkState::ValueQuoted | ChunkState::ValueEscaped, _) if is_value(byte) => {
                ChunkState::ValueQuoted
            }
            (ChunkState::ExtensionName | ChunkState::ValueToken | ChunkState::ValueEnd, b'\r') => {
                return Ok(ChunkState::SizeLineFeed);
            }
            (_, b'\n') => return Err(BodyError::LineEnd),
            (
                ChunkState::BlankBeforeExtension
                | ChunkState::ExtensionName
                | ChunkState::BlankAfterName
                | ChunkState::ValueToken
                | ChunkState::ValueEnd,
                b';',
            ) => ChunkState::ExtensionStart,
            (ChunkState::ExtensionName | ChunkState::BlankAfterName, b'=') => {
                ChunkState::ValueStart
            }
            (ChunkState::ValueStart, b'"') => ChunkState::ValueQuoted,
            (
                ChunkState::ExtensionStart
                | ChunkState::ValueStart
                | ChunkState::BlankBeforeExtension
                | ChunkState::BlankAfterName,
                _,
            ) if blank => self.state,
            (ChunkState::ExtensionName, _) if blank => ChunkState::BlankAfterName,
            (ChunkState::ValueToken | ChunkState::ValueEnd, _) if blank => {
                ChunkState::BlankBeforeExtension
            }
            (ChunkState::ExtensionStart | ChunkState::ExtensionName, _) if is_token(byte) => {
                ChunkState::ExtensionName
            }
            (ChunkState::ValueStart | ChunkState::ValueToken, _) if is_token(byte) => {
                ChunkState::ValueToken
            }
            (ChunkState::BlankBeforeExtension, b'\r') => return Err(BodyError::Size),
            _ => return Err(BodyError::Extension),
        };
        self.count_extension(next)
    }

    /// RFC 9112 section 7.1.2: field lines, then an empty line.
    fn trailer_byte(&mut self, byte: u8) -> Result<ChunkState, BodyError> {
        let next = match (self.state, byte) {
            (ChunkState::EndLineFeed, _) => return expect(byte, b'\n', ChunkState::Done),
            (ChunkState::TrailerLineFeed, _) => {
                return expect(byte, b'\n', ChunkState::TrailerStart);
            }
            (ChunkState::TrailerStart, b'\r') => return Ok(ChunkState::EndLineFeed),
            (ChunkState::TrailerValue, b'\r') => ChunkState::TrailerLineFeed,
            (_, b'\n') => return Err(BodyError::LineEnd),
            (ChunkState::TrailerName, b':') => ChunkState::TrailerValue,
            (ChunkState::TrailerStart | ChunkState::TrailerName, _) if is_token(byte) => {
                ChunkState::TrailerName
            }
            (ChunkState::TrailerValue, _) if is_value(byte) => ChunkState::TrailerValue,
            _ => return Err(BodyError::Trailer),
        };
        self.trailer_bytes_left =
            self.trailer_bytes_left.checked_sub(1).ok_or(BodyError::TrailerTooLong)?;
        Ok(next)
    }
}

fn expect(byte: u8, wanted: u8, next: ChunkState) -> Result<ChunkState, BodyError> {
    if byte == wanted { Ok(next) } else { Err(BodyError::LineEnd) }
}

#[cfg(test)]
mod tests {
    use super::{BodyError, BodyLimits, ChunkedDecoder, DecodeProgress};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    fn decoded(wire: &str) -> Result<(String, usize, bool), BodyError> {
        let limits =
            BodyLimits { body_bytes_max: 100, extension_bytes_max: 20, trailer_bytes_max: 20 };
        let mut bytes = wire.as_bytes().to_vec();
        let DecodeProgress { data_bytes, consumed_bytes, done } =
            ChunkedDecoder::new(&limits).decode(&mut bytes)?;
        Ok((String::from_utf8_lossy(&bytes[..data_bytes]).into_owned(), consumed_bytes, done))
    }

    #[test]
    fn data_move_to_the_front_and_the_next_message_stays() {
        let mut bytes =
            b"3\r\nabc\r\nA;x=\"y;\\\"\" ; z\r\n0123456789\r\n0\r\nT: v\r\n\r\nGET".to_vec();
        let decoded = ChunkedDecoder::new(&BodyLimits::default()).decode(&mut bytes).unwrap();
        assert_eq!((decoded.data_bytes, decoded.done), (13, true));
        assert_eq!(&bytes[..13], b"abc0123456789");
        assert_eq!(&bytes[decoded.consumed_bytes..], b"GET");
    }

    #[test]
    fn a_finished_decoder_consumes_nothing() {
        let mut decoder = ChunkedDecoder::new(&BodyLimits::default());
        assert!(decoder.decode(&mut b"0\r\n\r\n".to_vec()).unwrap().done);
        assert_eq!(
            decoder.decode(&mut b"1\r\n".to_vec()),
            Ok(DecodeProgress { data_bytes: 0, consumed_bytes: 0, done: true })
        );
    }

    #[test]
    fn faults() {
        for (wire, wanted) in [
            ("x\r\n", BodyError::Size),
            ("\r\n", BodyError::Size),
            (" 1\r\n", BodyError::Size),
            ("1 \r\n", BodyError::Size),
            ("0x1\r\n", BodyError::Size),
            ("00000000000000001\r\n", BodyError::Size),
            ("1\n", BodyError::LineEnd),
            ("1\r\r\n", BodyError::LineEnd),
            ("1\r\nab", BodyError::LineEnd),
            ("1\r\na\n", BodyError::LineEnd),
            ("1;\r\n", BodyError::Extension),
            ("1;a=\r\n", BodyError::Extension),
            ("1;a=\"b\r\n", BodyError::Extension),
            ("1;a\0\r\n", BodyError::Extension),
            ("1 a\r\n", BodyError::Extension),
            ("1;aaaaaaaaaaaaaaaaaaaaaaaa\r\n", BodyError::ExtensionsTooLong),
            ("0\r\nnocolon\r\n", BodyError::Trailer),
            ("0\r\na : b\r\n", BodyError::Trailer),
            ("0\r\n a: b\r\n", BodyError::Trailer),
            ("0\r\na: b\n", BodyError::LineEnd),
            ("0\r\naaaaaaaa: bbbbbbbbbbbbb\r\n", BodyError::TrailerTooLong),
            ("65\r\n", BodyError::TooLarge),
            ("ffffffffffffffff\r\n", BodyError::TooLarge),
        ] {
            assert_eq!(decoded(wire), Err(wanted), "{wire:?}");
        }
        assert_eq!((BodyError::TooLarge.status(), BodyError::Size.status()), (413, 400));
        assert_eq!(decoded("64\r\n").map(|decoded| decoded.2), Ok(false));
    }

    proptest! {
        #[test]
        fn any_payload_in_any_pieces(
            payload in any::<Vec<u8>>(),
            chunk in 1..40_usize,
            extension in "(;n=1)?",
            cuts in proptest::collection::vec(1..30_usize, 1..50),
        ) {
            let mut wire = Vec::new();
            for piece in payload.chunks(chunk) {
                wire.extend(format!("{:X}{extension}\r\n", piece.len()).into_bytes());
                wire.extend(piece);
                wire.extend(b"\r\n");
            }
            wire.extend(b"0\r\nA: b\r\n\r\nrest");
            let mut decoder = ChunkedDecoder::new(&BodyLimits::default());
            let mut data = Vec::new();
            let mut at = 0;
            let mut done = false;
            for cut in cuts.iter().cycle() {
                let mut bytes = wire[at..(at + cut).min(wire.len())].to_vec();
                let decoded = decoder.decode(&mut bytes).unwrap();
                data.extend(&bytes[..decoded.data_bytes]);
                at += decoded.consumed_bytes;
                done = decoded.done;
                if done || bytes.is_empty() {
                    break;
                }
            }
            prop_assert_eq!((data, done, &wire[at..]), (payload, true, &b"rest"[..]));
        }
    }
}
