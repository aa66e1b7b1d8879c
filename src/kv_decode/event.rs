//! KV events as data, whichever engine and shape they came in.

use super::images::BlockImages;

/// One event of a batch; borrows the payload and the decoder's scratch space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvEvent<'a> {
    /// `BlockStored`.
    Stored(Stored<'a>),
    /// `BlockRemoved`.
    Removed(Removed<'a>),
    /// `AllBlocksCleared`: every medium and every group of the rank.
    Cleared,
    /// A type that this version does not know.
    Unknown,
    /// Bytes that are no event of a known type.
    Malformed,
}

impl KvEvent<'_> {
    /// Blocks that it names.
    #[must_use]
    pub fn block_count(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.hashes.len(),
            Self::Removed(removed) => removed.hashes.len(),
            Self::Cleared | Self::Unknown | Self::Malformed => 0,
        }
    }
}

/// Blocks that the engine now holds, in prefix order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stored<'a> {
    /// The engine's ids of the blocks: raw 64 bits, whatever their sign on the wire.
    pub hashes: &'a [u64],
    /// Id of the block before the first; `None` at the start of a sequence.
    pub parent: Option<u64>,
    /// Tokens of all blocks, concatenated; none where the group does not see whole prefixes.
    pub token_ids: &'a [u32],
    /// Tokens per block of this event.
    pub block_size_tokens: u32,
    /// Where they lie.
    pub medium: Medium,
    /// LoRA adapter, empty for none.
    pub lora_name: &'a str,
    /// Cache salt, empty for none.
    pub cache_salt: &'a str,
    /// Blocks from this one on depend on something that is not text and has no name (embeddings).
    pub opaque_from: Option<usize>,
    /// The images in each block, by name.
    pub images: BlockImages<'a>,
    /// KV-cache group of a hybrid model (vLLM 0.20).
    pub group: Option<u32>,
    /// How much of a prefix the group's layers see.
    pub attention: Attention,
    /// Held by another process than the publisher (vLLM 0.26, `locality` REMOTE).
    pub remote: bool,
}

/// Blocks that the engine no longer holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Removed<'a> {
    /// The engine's ids.
    pub hashes: &'a [u64],
    /// Where they lay.
    pub medium: Medium,
    /// KV-cache group.
    pub group: Option<u32>,
    /// See [`Stored::remote`].
    pub remote: bool,
}

impl Stored<'_> {
    /// True if the block at that place depends on something that is not text.
    #[must_use]
    pub fn is_opaque(&self, position: usize) -> bool {
        self.opaque_from.is_some_and(|opaque| position >= opaque)
    }
}

/// How much of a prefix the layers of a KV-cache group see (vLLM 0.22, `kv_cache_spec_kind`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attention {
    /// All of it; also what events without the field mean.
    #[default]
    Whole,
    /// The last so many tokens, the present one included; at least 1.
    Window(u32),
    /// One state that stands for all of it (mamba, linear attention).
    State,
    /// Part of it, by a rule that this version does not know.
    Other,
}

impl Attention {
    /// From vLLM's words, and the tokens of a window.
    #[must_use]
    pub fn from_word(word: Option<&str>, window_tokens: Option<u32>) -> Self {
        let window = window_tokens.filter(|tokens| *tokens > 0);
        match (word, window) {
            (None | Some("full_attention" | "mla_attention" | "sink_full_attention"), _) => {
                Self::Whole
            }
            (Some("sliding_window" | "sliding_window_mla"), Some(tokens)) => Self::Window(tokens),
            (Some("mamba"), _) => Self::State,
            _ => Self::Other,
        }
    }
}

/// Storage tier of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// The accelerator's memory; also what events without the field mean.
    #[default]
    Device,
    /// Memory of the host.
    Host,
    /// Disks, and stores of files or objects.
    Disk,
    /// A pool that several engines share.
    Shared,
    /// A word that this version does not know: taken for none of the above.
    Unknown,
}

impl Medium {
    /// From the engines' words: vLLM's `GPU`, `CPU`, `STORAGE`, `FS`, `OBJ`; SGLang's `GPU`,
    /// `CPU_PINNED`, `DISK`, `EXTERNAL`. Absent before vLLM 0.10.2 and SGLang 0.5.9. vLLM's
    /// connector to a Mooncake store alone writes `cpu` (0.32).
    #[must_use]
    pub fn from_word(word: Option<&str>) -> Self {
        match word {
            None | Some("GPU") => Self::Device,
            Some("CPU" | "CPU_PINNED") => Self::Host,
            Some("STORAGE" | "FS" | "OBJ" | "DISK") => Self::Disk,
            Some("EXTERNAL" | "cpu") => Self::Shared,
            Some(_) => Self::Unknown,
        }
    }
}
