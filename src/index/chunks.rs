//! Prompts as paths of chunks of one length: how the router's own decisions are written into the index. Any shard.

use super::{IndexReader, slice_of};
use crate::base::ShardIndex;
use crate::base::limits::ROUTED_CHUNKS_MAX;
use crate::block::BlockKey;

impl IndexReader {
    /// The shard that owns the path of `text` under `root`, and the keys of its whole chunks; `None` when there is none.
    /// What is left over at the end is no chunk, and what comes behind `ROUTED_CHUNKS_MAX` is left out.
    #[must_use]
    pub fn chunk_path(
        &self,
        root: BlockKey,
        text: &[u8],
        chunk_bytes: usize,
    ) -> Option<(ShardIndex, Vec<BlockKey>)> {
        let chunks = text.chunks_exact(chunk_bytes.max(1)).take(ROUTED_CHUNKS_MAX);
        let mut path = Vec::with_capacity(chunks.len());
        let mut key = root;
        for chunk in chunks {
            key = key.child(self.seed, chunk);
            path.push(key);
        }
        let owner = slice_of(*path.first()?, self.slices.len());
        Some((owner, path))
    }
}
