//! Message of a shard to the owner of a slice: a routed prompt, and the rank that will hold it.

use crate::BlockKey;
use forebay_base::RankIndex;
use forebay_base::limits::{APPROXIMATE_CHUNK_BYTES, SPECULATIVE_CHUNK_BYTES};

/// Kind of a guess that a rank holds a prompt, without an event. Each kind has its own tree of the
/// index, apart from blocks that events stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuessKind {
    /// The rank has no live events: guessed from the prompts sent to it.
    Approximate,
    /// The rank has live events, which will confirm the guess soon.
    Speculative,
}

impl GuessKind {
    /// Bytes of a chunk of this kind's paths.
    #[must_use]
    pub const fn chunk_bytes(self) -> usize {
        match self {
            Self::Approximate => APPROXIMATE_CHUNK_BYTES,
            Self::Speculative => SPECULATIVE_CHUNK_BYTES,
        }
    }
}

/// A prompt and the rank that it was sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedPrompt {
    pub rank: RankIndex,
    /// Generation of the rank's cache at that time (`WorkerGeneration::cache`).
    pub generation: u32,
    pub kind: GuessKind,
    /// Root of the path.
    pub root: BlockKey,
    /// Keys of the path's chunks from the first on; at most `ROUTED_CHUNKS_MAX`, all in the same
    /// slice.
    pub chunks: Vec<BlockKey>,
}
