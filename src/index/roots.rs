//! Where the chains of block keys begin.

use crate::{BlockKey, KeySeed, RootName, WindowedRank};

/// Where the chains of one model begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRoots {
    /// One root per distinct block size among the model's ranks.
    pub blocks: Vec<BlockRoot>,
    /// Roots of what is only believed to be held.
    pub guesses: GuessRoots,
    /// The model's ranks that can resume only behind some of their blocks, in order.
    pub windowed: Vec<WindowedRank>,
}

impl ModelRoots {
    /// Roots of guesses alone: no rank has told its block size.
    #[must_use]
    pub fn new(seed: KeySeed, model: &str) -> Self {
        let guesses = GuessRoots::new(seed, model);
        Self { blocks: Vec::new(), guesses, windowed: Vec::new() }
    }
}

/// Start of the chain of block keys for one model and one block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRoot {
    /// Tokens per block under this root.
    pub block_size_tokens: u32,
    /// Key that first blocks are chained to.
    pub key: BlockKey,
}

/// Starts of the two trees that the router's own decisions fill, see [`crate::GuessKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuessRoots {
    /// For ranks without live KV events.
    pub approximate: BlockKey,
    /// For ranks with live KV events.
    pub speculative: BlockKey,
}

impl GuessRoots {
    /// No engine has blocks of so many tokens, so these roots are no engine's.
    const APPROXIMATE_MARK: u32 = 0;
    const SPECULATIVE_MARK: u32 = u32::MAX;

    /// The roots of a model name. Adapters and other names of one model have trees of their own.
    #[must_use]
    pub fn new(seed: KeySeed, model: &str) -> Self {
        let root = |block_size_tokens| {
            BlockKey::root(seed, &RootName { model, block_size_tokens, ..RootName::default() })
        };
        Self {
            approximate: root(Self::APPROXIMATE_MARK),
            speculative: root(Self::SPECULATIVE_MARK),
        }
    }
}
