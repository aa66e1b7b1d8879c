//! Prompts as paths of chunks of a fixed length: how guesses are written into the index, and found
//! again. Any shard.

use super::walk::follow_path;
use super::{IndexReader, Overlaps, slice_of};
use crate::{BlockKey, GuessKind};
use forebay_base::ShardIndex;
use forebay_base::limits::{
    APPROXIMATE_CHUNK_BYTES, NOTE_PART_BYTES, NOTE_PARTS_MAX, ROUTED_CHUNKS_MAX,
    SPECULATIVE_CHUNK_BYTES,
};

impl IndexReader {
    /// Writes the keys of the whole chunks of `text` under `root` to `path`. A partial chunk at the
    /// end, and chunks behind `ROUTED_CHUNKS_MAX`, are left out.
    pub fn chunk_path(
        &self,
        root: BlockKey,
        text: &[u8],
        kind: GuessKind,
        path: &mut Vec<BlockKey>,
    ) {
        debug_assert!(u16::try_from(kind.chunk_bytes()).is_ok(), "a chunk is a block");
        path.clear();
        match kind {
            GuessKind::Approximate => self.extend_path::<APPROXIMATE_CHUNK_BYTES>(root, text, path),
            GuessKind::Speculative => self.extend_path::<SPECULATIVE_CHUNK_BYTES>(root, text, path),
        }
    }

    /// Adds the keys of the whole parts of `text` under `root`, for use outside of the index: even
    /// a client that chooses the bytes cannot make two texts collide. Each part has
    /// `NOTE_PART_BYTES` bytes, and there are at most `NOTE_PARTS_MAX` keys.
    pub fn part_keys(&self, root: BlockKey, text: &[u8], keys: &mut Vec<u64>) {
        let mut key = root;
        let parts = text.as_chunks::<NOTE_PART_BYTES>().0.iter();
        keys.extend(parts.take(NOTE_PARTS_MAX).map(|part| {
            key = key.child(self.hasher.seed, part);
            key.to_word()
        }));
    }

    fn extend_path<const BYTES: usize>(
        &self,
        root: BlockKey,
        text: &[u8],
        path: &mut Vec<BlockKey>,
    ) {
        let mut key = root;
        let chunks = text.as_chunks::<BYTES>().0.iter();
        path.extend(chunks.take(ROUTED_CHUNKS_MAX).map(|chunk| {
            key = key.guessed_child(self.hasher.seed, chunk);
            key
        }));
    }

    /// The shard that owns a path of chunks; `None` for an empty path.
    #[must_use]
    pub fn owner_of_path(&self, path: &[BlockKey]) -> Option<ShardIndex> {
        Some(slice_of(*path.first()?, self.slices.len()))
    }

    /// Finds the overlap of each rank with a path and adds it to `out`. Hashes nothing and reads a
    /// single slice.
    pub fn overlap_of_path(&self, path: &[BlockKey], kind: GuessKind, out: &mut Overlaps) {
        let owner = self.owner_of_path(path);
        if let Some(table) = owner.and_then(|owner| self.slices.get(owner.index())) {
            follow_path(table, path, kind.chunk_bytes(), out);
        }
    }
}
