//! Encodes ranks, entries and links. Sans-IO: appends bytes to a buffer that the caller empties.

use super::entry::SnapshotEntry;
use super::format::{END_MARK, ENTRIES_MARK, Header, LINKS_MARK, RANK_MARK};
use super::link::Link;
use super::rank::RankHead;
use crate::framing::{CHUNK_HEADER_BYTES, pack, put_chunk};
use flate2::Compression;
use twox_hash::XxHash3_64;

/// Plain bytes after which a chunk is closed: enough to pack well, and little memory.
const CHUNK_BYTES_AIM: usize = 256 * 1024;

/// Encodes a snapshot: the header at once, then rank by rank, then the links, then the end.
#[derive(Debug)]
pub struct Encoder {
    /// Encoded bytes that the caller has not taken yet.
    out: Vec<u8>,
    plain: Vec<u8>,
    packed: Vec<u8>,
    /// Kind of the open chunk.
    mark: [u8; 4],
    in_chunk: u32,
    rank_count: u32,
    digest: u64,
}

impl Encoder {
    /// An encoder with the header encoded.
    #[must_use]
    pub fn new(header: &Header) -> Self {
        let out = header.encode();
        let digest = header_digest(&out);
        let plain = Vec::new();
        let packed = Vec::new();
        let mark = ENTRIES_MARK;
        Self { out, plain, packed, mark, in_chunk: 0, rank_count: 0, digest }
    }

    /// Begins a rank, which ends with the next rank, the links or the end. Exactly
    /// `head.entry_count` entries must follow. False if a name is too long, and the caller must
    /// leave the rank out.
    pub fn rank(&mut self, head: &RankHead) -> bool {
        self.close_chunk();
        if !head.encode(&mut self.plain) {
            return false;
        }
        self.rank_count += 1;
        self.added(RANK_MARK);
        self.close_chunk();
        true
    }

    /// Adds an entry of the rank.
    pub fn entry(&mut self, entry: &SnapshotEntry) {
        entry.encode(&mut self.plain);
        self.added(ENTRIES_MARK);
    }

    /// Adds a block, after all ranks.
    pub fn link(&mut self, link: &Link) {
        if self.mark != LINKS_MARK {
            self.close_chunk();
        }
        link.encode(&mut self.plain);
        self.added(LINKS_MARK);
    }

    /// Encodes the end mark.
    pub fn end(&mut self) {
        self.close_chunk();
        self.plain.extend_from_slice(&self.rank_count.to_le_bytes());
        self.plain.extend_from_slice(&self.digest.to_le_bytes());
        self.added(END_MARK);
        self.close_chunk();
    }

    /// The encoded bytes, which the caller empties.
    pub fn made(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn added(&mut self, mark: [u8; 4]) {
        self.mark = mark;
        self.in_chunk += 1;
        if self.plain.len() >= CHUNK_BYTES_AIM {
            self.close_chunk();
        }
    }

    fn close_chunk(&mut self) {
        if self.in_chunk == 0 {
            return;
        }
        // Keys and hashes do not pack, and the other bytes pack at any level.
        pack(&self.plain, Compression::fast(), &mut self.packed);
        let start = self.out.len();
        put_chunk(self.mark, &self.packed, self.plain.len(), self.in_chunk, &mut self.out);
        let head = self.out.get(start..start + CHUNK_HEADER_BYTES).unwrap_or_default();
        self.digest = next_digest(self.digest, head);
        self.in_chunk = 0;
        self.plain.clear();
    }
}

/// The digest before the first chunk.
pub(super) fn header_digest(header: &[u8]) -> u64 {
    XxHash3_64::oneshot(header)
}

/// The digest after a further chunk.
pub(super) fn next_digest(digest: u64, chunk_header: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(digest, chunk_header)
}
