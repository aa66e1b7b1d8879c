//! Ranks and blocks to bytes. Sans-IO: bytes are appended to a buffer that the caller takes away.

use super::block::{Block, EngineHash};
use super::format::{BLOCKS_MARK, END_MARK, Header, RANK_MARK};
use super::rank::RankHead;
use crate::framing::{CHUNK_HEADER_BYTES, pack, put_chunk};
use flate2::Compression;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Plain bytes after which a chunk is closed: enough to pack well, and small beside what it is made from.
const CHUNK_BYTES_AIM: usize = 256 * 1024;

/// Makes a snapshot: the header at once, then rank by rank, then the end.
#[derive(Debug)]
pub struct Encoder {
    /// What is made and not yet taken away.
    out: Vec<u8>,
    plain: Vec<u8>,
    packed: Vec<u8>,
    in_chunk: u32,
    rank_count: u32,
    digest: u64,
}

impl Encoder {
    /// With the header made.
    #[must_use]
    pub fn new(header: &Header) -> Self {
        let out = header.encode();
        let digest = header_digest(&out);
        Self { out, plain: Vec::new(), packed: Vec::new(), in_chunk: 0, rank_count: 0, digest }
    }

    /// Begins a rank, which ends with the next one or the end. Exactly `head.block_count` blocks have to follow. False if a
    /// name is too long: then the rank has to be left out.
    pub fn rank(&mut self, head: &RankHead) -> bool {
        self.close_chunk(BLOCKS_MARK);
        if !head.encode(&mut self.plain) {
            return false;
        }
        self.in_chunk = 1;
        self.rank_count += 1;
        self.close_chunk(RANK_MARK);
        true
    }

    /// Adds a block of the rank, with what the engine calls it. A parent comes before its children.
    pub fn block(&mut self, block: &Block, hashes: &[EngineHash]) {
        block.encode(hashes, &mut self.plain);
        self.in_chunk += 1;
        if self.plain.len() >= CHUNK_BYTES_AIM {
            self.close_chunk(BLOCKS_MARK);
        }
    }

    /// Makes the end.
    pub fn end(&mut self) {
        self.close_chunk(BLOCKS_MARK);
        self.plain.extend_from_slice(&self.rank_count.to_le_bytes());
        self.plain.extend_from_slice(&self.digest.to_le_bytes());
        self.in_chunk = 1;
        self.close_chunk(END_MARK);
    }

    /// What was made since the last call.
    pub fn made(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn close_chunk(&mut self, mark: [u8; 4]) {
        if self.in_chunk == 0 {
            return;
        }
        // Keys and hashes do not pack; the rest does at any level.
        pack(&self.plain, Compression::fast(), &mut self.packed);
        let start = self.out.len();
        put_chunk(mark, &self.packed, self.plain.len(), self.in_chunk, &mut self.out);
        let head = self.out.get(start..start + CHUNK_HEADER_BYTES).unwrap_or_default();
        self.digest = next_digest(self.digest, head);
        self.in_chunk = 0;
        self.plain.clear();
    }
}

/// The digest before the first chunk.
pub(super) fn header_digest(header: &[u8]) -> u64 {
    xxh3_64(header)
}

/// The digest after one more chunk.
pub(super) fn next_digest(digest: u64, chunk_header: &[u8]) -> u64 {
    xxh3_64_with_seed(chunk_header, digest)
}
