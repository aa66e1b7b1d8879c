//! Chunks in files, shared by recordings and snapshots: packed bytes behind a header with their
//! sizes and checksums. Sans-IO. Claimed sizes are compared with a limit and with the ratio of
//! DEFLATE before memory is reserved, so memory grows with the unpacked bytes, not with the claimed
//! size.
//!
//! ```text
//! chunk    u32 mark                      four letters
//!          u32 packed bytes
//!          u32 plain bytes
//!          u32 count                     of items
//!          u64 checksum of the packed bytes
//!          u64 checksum of the five numbers above
//!          packed bytes: raw DEFLATE (RFC 1951)
//! ```
//!
//! Numbers are little-endian, checksums are XXH3-64 without a seed, `varint` is LEB128 of at most
//! ten bytes. Lengths have a checksum of their own, so that a damaged length does not look like an
//! early end.

use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder};
use std::io::Read;
use twox_hash::XxHash3_64;

/// Length of a chunk header in bytes.
pub const CHUNK_HEADER_BYTES: usize = 32;
/// DEFLATE shrinks at most by 1032; a chunk that claims more is damaged.
const DEFLATE_RATIO_MAX: usize = 1_032;

/// Header of a chunk, before the packed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHead {
    /// Kind of the chunk.
    pub mark: [u8; 4],
    /// Number of packed bytes behind the header.
    pub packed_bytes: usize,
    /// Number of bytes after unpacking.
    pub plain_bytes: usize,
    /// Number of items in the chunk.
    pub count: usize,
    /// XXH3-64 of the packed bytes.
    pub checksum: u64,
}

impl ChunkHead {
    /// Reads a header. `None` if the checksum or the sizes are wrong, or if the chunk would have
    /// more than `plain_bytes_max` bytes.
    #[must_use]
    pub fn decode(bytes: &[u8; CHUNK_HEADER_BYTES], plain_bytes_max: usize) -> Option<Self> {
        let mut reader = NumberReader(bytes);
        let mark = reader.array::<4>()?;
        let mut size = || usize::try_from(reader.u32()?).ok();
        let packed_bytes = size()?;
        let plain_bytes = size()?;
        let count = size()?;
        let head = Self { mark, packed_bytes, plain_bytes, count, checksum: reader.u64()? };
        let covered = bytes.first_chunk::<{ CHUNK_HEADER_BYTES - 8 }>()?;
        let possible = reader.u64()? == XxHash3_64::oneshot(covered)
            && plain_bytes <= plain_bytes_max
            // Bytes that do not pack become longer by a few bytes.
            && packed_bytes <= plain_bytes_max + plain_bytes_max / 100 + 64
            && plain_bytes <= packed_bytes.saturating_mul(DEFLATE_RATIO_MAX);
        possible.then_some(head)
    }

    /// True if the packed bytes match the header.
    #[must_use]
    pub fn matches(&self, packed: &[u8]) -> bool {
        packed.len() == self.packed_bytes && XxHash3_64::oneshot(packed) == self.checksum
    }
}

/// Appends a chunk header and the packed bytes.
pub fn put_chunk(mark: [u8; 4], packed: &[u8], plain_bytes: usize, count: u32, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&mark);
    for number in [packed.len(), plain_bytes] {
        // The writers' chunk sizes and DEFLATE's small overhead bound both numbers.
        out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    }
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&XxHash3_64::oneshot(packed).to_le_bytes());
    let checksum = XxHash3_64::oneshot(out.get(start..).unwrap_or_default());
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(packed);
}

/// Replaces `out` by the packed bytes.
pub fn pack(plain: &[u8], level: Compression, out: &mut Vec<u8>) {
    out.clear();
    if DeflateEncoder::new(plain, level).read_to_end(out).is_err() {
        // Cannot happen: source and sink are memory.
        forebay_base::count_broken_invariant();
    }
}

/// Appends the unpacked bytes. False unless these have the claimed size, and all packed bytes are
/// used.
pub fn unpack(packed: &[u8], plain_bytes: usize, out: &mut Vec<u8>) -> bool {
    let mut source = packed;
    let limit = plain_bytes as u64 + 1;
    let unpacked = DeflateDecoder::new(&mut source).take(limit).read_to_end(out);
    unpacked.ok() == Some(plain_bytes) && source.is_empty()
}

/// Reads numbers from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct NumberReader<'a>(pub &'a [u8]);

impl<'a> NumberReader<'a> {
    /// Reads the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads LEB128; `None` for bits past 64.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Reads the next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Appends a number in LEB128.
pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let bits = u8::try_from(value & 0x7f).unwrap_or(0);
        value >>= 7;
        if value == 0 {
            out.push(bits);
            return;
        }
        out.push(bits | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARK: [u8; 4] = *b"TEST";

    fn chunk(plain: &[u8]) -> Vec<u8> {
        let mut packed = Vec::new();
        let mut out = Vec::new();
        pack(plain, Compression::fast(), &mut packed);
        put_chunk(MARK, &packed, plain.len(), 7, &mut out);
        out
    }

    fn read(bytes: &[u8], plain_bytes_max: usize) -> Option<Vec<u8>> {
        let (head, packed) = bytes.split_first_chunk::<CHUNK_HEADER_BYTES>()?;
        let head = ChunkHead::decode(head, plain_bytes_max)?;
        let mut plain = Vec::new();
        let whole = head.mark == MARK && head.count == 7 && head.matches(packed);
        (whole && unpack(packed, head.plain_bytes, &mut plain)).then_some(plain)
    }

    #[test]
    fn claims_are_compared_with_limits() {
        let bytes = chunk(&[5; 4_000]);
        assert_eq!(read(&bytes, 4_000), Some(vec![5; 4_000]));
        assert_eq!(read(&bytes, 3_999), None);
        // One byte cannot become two thousand.
        let mut bomb = Vec::new();
        put_chunk(MARK, &[0], 2_000, 7, &mut bomb);
        assert_eq!(read(&bomb, 4_000), None);
    }

    proptest! {
        #[test]
        fn chunks_are_read_back_and_damage_is_seen(
            plain in proptest::collection::vec(any::<u8>(), 0..300),
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let mut bytes = chunk(&plain);
            prop_assert_eq!(read(&bytes, 300), Some(plain));
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(read(&bytes, 300), None);
        }

        #[test]
        fn varints_are_read_back(value in any::<u64>()) {
            let mut out = Vec::new();
            put_varint(value, &mut out);
            prop_assert_eq!(NumberReader(&out).varint(), Some(value));
            prop_assert!(NumberReader(&out[..out.len() - 1]).varint().is_none());
        }
    }
}
