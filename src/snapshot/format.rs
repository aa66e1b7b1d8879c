//! The layout of a snapshot, version 1, and its header. `framing` documents chunks, checksums and
//! `varint`; numbers are little-endian.
//!
//! ```text
//! header   89 'F' 'S' 'N' 0D 0A 1A 0A    magic; shows a transfer that rewrote line ends
//!          u16 version = 1
//!          u16 slices                    of the index, 1 or more
//!          u32 zero
//!          u64 written                   nanoseconds since 1970
//!          u64 seed                      of the block keys: the file is a secret
//!          u64 key check                 a key from that seed: another value shows that
//!                                        keys are computed differently
//!          u64 checksum of all the above
//! rank     a chunk 'RANK' with a `RankHead`, then chunks 'HELD' with its entries:
//!          u64 id                        the engine's hash and group, mixed with the seed
//!          u64 key                       of the path with the block
//!          varint * 3                    stores by device, host and disk
//! links    after all ranks chunks 'LINK', with every block that a rank may hold:
//!          u64 parent                    key of the path before the block
//!          u64 key                       of the path with the block
//!          varint bytes                  of its text
//!          varint slice                  that the path belongs to
//! end      a chunk 'DONE': u32 ranks, u64 digest of all chunk headers before; no bytes follow
//! ```
//!
//! The digest is `d = XXH3-64(chunk header, seed d)`, from the header's checksum on. It detects
//! valid chunks that are lost, doubled or in another order. A file that ends early is refused,
//! because this program only moves whole files into place.

use crate::framing::NumberReader;
use forebay_index::{BlockKey, KeySeed, RootName};
use std::fmt;
use std::io;
use thiserror::Error;
use twox_hash::XxHash3_64;

/// Version that is written; other versions are not read.
pub const VERSION: u16 = 1;
/// Bytes of a snapshot's header.
pub const HEADER_BYTES: usize = 48;
/// Most plain bytes of a chunk.
pub(super) const PLAIN_BYTES_MAX: usize = 1024 * 1024;

pub(super) const RANK_MARK: [u8; 4] = *b"RANK";
pub(super) const ENTRIES_MARK: [u8; 4] = *b"HELD";
pub(super) const LINKS_MARK: [u8; 4] = *b"LINK";
pub(super) const END_MARK: [u8; 4] = *b"DONE";

const MAGIC: [u8; 8] = *b"\x89FSN\r\n\x1a\n";
const CHECKSUM_BYTES: usize = 8;

/// Header of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Time of the snapshot, in nanoseconds since 1970.
    pub written_unix_ns: u64,
    /// Seed of all keys in the snapshot.
    pub seed: KeySeed,
    /// Slices of the index at that time.
    pub slice_count: u16,
}

/// Why bytes are not a usable snapshot.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The operating system reported an error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A file of another kind.
    #[error("not a snapshot: it does not begin with the magic bytes 89 46 53 4e 0d 0a 1a 0a")]
    Foreign,
    /// A snapshot of another version.
    #[error("a snapshot of version {0}; this program reads version {VERSION}")]
    Version(u16),
    /// The writer computed keys differently.
    #[error("this program makes its keys in another way than the one that wrote the snapshot")]
    Keys,
    /// The file ends before its end mark.
    #[error("cut off at byte {at}")]
    Cut {
        /// Bytes of the file.
        at: u64,
    },
    /// The bytes have changed since they were written.
    #[error("damaged at byte {at}: {what}")]
    Damaged {
        /// Offset in the file.
        at: u64,
        what: Damage,
    },
}

/// The damaged part of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The header's checksum, or bytes under it.
    Header,
    /// A chunk header's checksum, mark or sizes.
    ChunkHeader,
    /// The checksum of a chunk's bytes.
    Checksum,
    /// Bytes that are no DEFLATE, or do not have the size in the chunk header.
    Packing,
    /// A rank, entry or link that does not follow the format.
    Content,
    /// Chunks that are missing, doubled or in another order.
    Order,
    /// There are bytes after the end.
    AfterEnd,
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Header => "the header does not match its checksum",
            Self::ChunkHeader => "no valid chunk begins here",
            Self::Checksum => "the chunk does not match its checksum",
            Self::Packing => "the chunk cannot be unpacked to the size that it names",
            Self::Content => "the chunk holds something that does not follow the format",
            Self::Order => "the chunks are not those that were written, or not in their order",
            Self::AfterEnd => "there are bytes after the end",
        })
    }
}

impl Header {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.slice_count.to_le_bytes());
        out.extend_from_slice(&0_u32.to_le_bytes());
        for word in [self.written_unix_ns, self.seed.0, key_check(self.seed)] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&XxHash3_64::oneshot(&out).to_le_bytes());
        out
    }

    /// Reads the header from the beginning of a file; `bytes` are at most [`HEADER_BYTES`], fewer
    /// if the file is that short.
    ///
    /// # Errors
    /// [`SnapshotError`] when this is not a header of this version, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        if bytes.is_empty() || !MAGIC.iter().zip(bytes).all(|(wanted, byte)| wanted == byte) {
            return Err(SnapshotError::Foreign);
        }
        let cut = || SnapshotError::Cut { at: bytes.len() as u64 };
        let damaged = SnapshotError::Damaged { at: 0, what: Damage::Header };
        let mut reader = NumberReader(bytes.get(MAGIC.len()..).ok_or_else(cut)?);
        let version = reader.u16().ok_or_else(cut)?;
        let covered = bytes.get(..HEADER_BYTES - CHECKSUM_BYTES);
        let mut read = || {
            Some((
                reader.u16()?,
                reader.u32()?,
                reader.u64()?,
                reader.u64()?,
                reader.u64()?,
                reader.u64()?,
            ))
        };
        let (slice_count, zero, written_unix_ns, seed, check, checksum) =
            match (version == VERSION, read()) {
                (false, _) => return Err(SnapshotError::Version(version)),
                (true, None) => return Err(cut()),
                (true, Some(fields)) => fields,
            };
        if covered.map(XxHash3_64::oneshot) != Some(checksum) || slice_count == 0 || zero != 0 {
            return Err(damaged);
        }
        if check != key_check(KeySeed(seed)) {
            return Err(SnapshotError::Keys);
        }
        Ok(Self { written_unix_ns, seed: KeySeed(seed), slice_count })
    }
}

/// A key that depends on every step of the computation: root, salt and blocks, which are hashed in
/// another way at each of these lengths.
fn key_check(seed: KeySeed) -> u64 {
    let name = RootName { model: "model", block_size_tokens: 16, lora: "lora", cache_salt: "salt" };
    let blocks = [&[b'a'; 4][..], &[b'b'; 400], &[b'c'; 4_000]];
    blocks.iter().fold(BlockKey::root(seed, &name), |key, block| key.child(seed, block)).to_word()
}
