//! What a shard tells the owner of a slice about a prompt that it has just routed: which rank is
//! going to hold it.

use crate::BlockKey;
use forebay_base::RankIndex;
use forebay_base::limits::{APPROXIMATE_CHUNK_BYTES, SPECULATIVE_CHUNK_BYTES};

/// Why a rank is believed to hold a prompt that no event has told of. Each kind has its own tree of
/// the index, so that neither touches what events stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuessKind {
    /// The rank has no live events: what was sent there is all that is known.
    Approximate,
    /// The rank has events, and they will tell soon.
    Speculative,
}

impl GuessKind {
    /// Bytes of one chunk of this kind's paths.
    #[must_use]
    pub const fn chunk_bytes(self) -> usize {
        match self {
            Self::Approximate => APPROXIMATE_CHUNK_BYTES,
            Self::Speculative => SPECULATIVE_CHUNK_BYTES,
        }
    }
}

/// One prompt and where it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedPrompt {
    /// The rank that got it.
    pub rank: RankIndex,
    /// Life of the rank's cache that it was sent to (`Worker::cache_generation`).
    pub generation: u32,
    /// Which tree it belongs to.
    pub kind: GuessKind,
    /// Root of the path.
    pub root: BlockKey,
    /// Keys of the path's chunks from the first on; at most `ROUTED_CHUNKS_MAX`, all in the slice
    /// of the first.
    pub chunks: Vec<BlockKey>,
}
