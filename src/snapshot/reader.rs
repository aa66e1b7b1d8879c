//! Reads a snapshot from front to back, chunk by chunk, and checks all checksums, counts and
//! digests.

use super::entry::SnapshotEntry;
use super::format::{
    Damage, END_MARK, ENTRIES_MARK, HEADER_BYTES, Header, LINKS_MARK, PLAIN_BYTES_MAX, RANK_MARK,
    SnapshotError,
};
use super::items::Items;
use super::link::Link;
use super::rank::RankHead;
use super::writer::{header_digest, next_digest};
use crate::framing::{CHUNK_HEADER_BYTES, ChunkHead, NumberReader, unpack};
use forebay_base::limits::RANKS_MAX;
use std::io::Read;

/// A part of a snapshot.
#[derive(Debug)]
pub enum Part<'a> {
    /// The head of a rank; its entries follow.
    Rank(RankHead),
    /// Entries of the last rank.
    Entries(Items<'a, SnapshotEntry>),
    /// Blocks that ranks may hold; no rank follows.
    Links(Items<'a, Link>),
    /// The end mark; no part follows.
    End,
}

/// Reads parts of a snapshot, with a single chunk in memory. Must not be used after an error or the
/// end.
#[derive(Debug)]
pub struct SnapshotReader<R> {
    input: R,
    /// Offset of the next part in the file.
    at: u64,
    digest: u64,
    rank_count: u32,
    /// Entries of the present rank that are still to come.
    entries_due: u64,
    has_links: bool,
    packed: Vec<u8>,
    plain: Vec<u8>,
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the header, and returns a reader of the parts.
    ///
    /// # Errors
    /// [`SnapshotError`] without a header of this version.
    pub fn open(mut input: R) -> Result<(Self, Header), SnapshotError> {
        let mut bytes = Vec::new();
        (&mut input).take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
        let header = Header::decode(&bytes)?;
        Ok((Self::resume(input, HEADER_BYTES as u64, header_digest(&bytes)), header))
    }

    /// A reader at a rank in the middle of a file, which ignores the digest of the file.
    pub(super) fn resume(input: R, at: u64, digest: u64) -> Self {
        let packed = Vec::new();
        let plain = Vec::new();
        Self { input, at, digest, rank_count: 0, entries_due: 0, has_links: false, packed, plain }
    }

    /// Offset of the next part.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Reads the next part.
    ///
    /// # Errors
    /// [`SnapshotError`] when it cannot be read or is damaged.
    pub fn next_part(&mut self) -> Result<Part<'_>, SnapshotError> {
        let digest = self.digest;
        let start = self.at;
        let head = self.chunk()?;
        let damaged = |what| SnapshotError::Damaged { at: start, what };
        match head.mark {
            RANK_MARK => {
                let rank = RankHead::decode(&self.plain).filter(|_| head.count == 1);
                let rank = rank.ok_or(damaged(Damage::Content))?;
                self.rank_count += 1;
                let too_many = usize::try_from(self.rank_count).is_ok_and(|n| n > RANKS_MAX);
                if self.entries_due > 0 || self.has_links || too_many {
                    return Err(damaged(Damage::Order));
                }
                self.entries_due = rank.entry_count;
                Ok(Part::Rank(rank))
            }
            ENTRIES_MARK => {
                let left = self.entries_due.checked_sub(head.count as u64);
                let left = left.filter(|_| !self.has_links);
                self.entries_due = left.ok_or(damaged(Damage::Order))?;
                let entries = Items::check(&self.plain, head.count);
                Ok(Part::Entries(entries.ok_or(damaged(Damage::Content))?))
            }
            LINKS_MARK if self.entries_due > 0 => Err(damaged(Damage::Order)),
            LINKS_MARK => {
                self.has_links = true;
                let links = Items::check(&self.plain, head.count);
                Ok(Part::Links(links.ok_or(damaged(Damage::Content))?))
            }
            END_MARK => {
                self.check_end(digest, head.count, start)?;
                Ok(Part::End)
            }
            _ => Err(damaged(Damage::ChunkHeader)),
        }
    }

    fn check_end(&mut self, digest: u64, count: usize, start: u64) -> Result<(), SnapshotError> {
        let mut reader = NumberReader(&self.plain);
        let end = (|| Some((reader.u32()?, reader.u64()?)))();
        let damaged = |at, what| Err(SnapshotError::Damaged { at, what });
        if count != 1 || !reader.0.is_empty() {
            return damaged(start, Damage::Content);
        }
        if end != Some((self.rank_count, digest)) || self.entries_due > 0 {
            return damaged(start, Damage::Order);
        }
        let mut rest = [0];
        match (&mut self.input).take(1).read(&mut rest)? {
            0 => Ok(()),
            _ => damaged(self.at, Damage::AfterEnd),
        }
    }

    /// Unpacks the next chunk into `plain`, and returns its header.
    fn chunk(&mut self) -> Result<ChunkHead, SnapshotError> {
        let damaged = |what| SnapshotError::Damaged { at: self.at, what };
        self.packed.clear();
        let bytes =
            (&mut self.input).take(CHUNK_HEADER_BYTES as u64).read_to_end(&mut self.packed)?;
        let cut = |bytes: usize| SnapshotError::Cut { at: self.at.saturating_add(bytes as u64) };
        let header: [u8; CHUNK_HEADER_BYTES] =
            self.packed.first_chunk().copied().ok_or_else(|| cut(bytes))?;
        let head =
            ChunkHead::decode(&header, PLAIN_BYTES_MAX).ok_or(damaged(Damage::ChunkHeader))?;
        self.packed.clear();
        let limit = head.packed_bytes as u64;
        let packed_bytes = (&mut self.input).take(limit).read_to_end(&mut self.packed)?;
        if packed_bytes < head.packed_bytes {
            return Err(cut(CHUNK_HEADER_BYTES + packed_bytes));
        }
        if !head.matches(&self.packed) {
            return Err(damaged(Damage::Checksum));
        }
        self.plain.clear();
        if !unpack(&self.packed, head.plain_bytes, &mut self.plain) {
            return Err(damaged(Damage::Packing));
        }
        self.digest = next_digest(self.digest, &header);
        self.at = self.at.saturating_add((CHUNK_HEADER_BYTES + head.packed_bytes) as u64);
        Ok(head)
    }
}
