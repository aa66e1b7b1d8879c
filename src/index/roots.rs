//! Roots of the chains of block keys.

use crate::{BlockKey, KeySeed, RootName, WindowedRank};

/// Roots of a model's chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRoots {
    /// A root per distinct block size among the model's ranks.
    pub blocks: Vec<BlockRoot>,
    pub guesses: GuessRoots,
    /// The model's ranks that can resume only behind some of their blocks, in rank order.
    pub windowed: Vec<WindowedRank>,
}

impl ModelRoots {
    /// Roots of guesses alone: no rank has reported its block size.
    #[must_use]
    pub fn new(seed: KeySeed, model: &str) -> Self {
        let guesses = GuessRoots::new(seed, model);
        Self { blocks: Vec::new(), guesses, windowed: Vec::new() }
    }
}

/// Root of the block keys for a model and a block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRoot {
    /// Tokens per block under this root.
    pub block_size_tokens: u32,
    /// Key that first blocks are chained to.
    pub key: BlockKey,
}

/// Roots of the two trees that the router fills by its own decisions, see [`crate::GuessKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuessRoots {
    /// For ranks without live KV events.
    pub approximate: BlockKey,
    /// For ranks with live KV events.
    pub speculative: BlockKey,
}

impl GuessRoots {
    /// Block sizes that no engine has, so that these roots differ from all engines' roots.
    const APPROXIMATE_MARK: u32 = 0;
    const SPECULATIVE_MARK: u32 = u32::MAX;

    /// The roots of a model name. Adapters and aliases of a model have trees of their own.
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
