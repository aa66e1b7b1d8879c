//! KV events as data, the same for all engines and wire forms.

use super::images::BlockImages;

/// An event of a batch; borrows the payload and the decoder's scratch space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvEvent<'a> {
    Stored(BlockStored<'a>),
    Removed(BlockRemoved<'a>),
    /// `AllBlocksCleared`: every medium and every group of the rank. Also an event of an unknown
    /// type that clears blocks.
    Cleared,
    /// An event type that this version does not support.
    Unknown,
    /// An event that cannot be decoded; later events of the batch are decoded.
    Malformed,
}

impl KvEvent<'_> {
    /// Number of blocks in the event.
    #[must_use]
    pub fn block_count(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.hashes.len(),
            Self::Removed(removed) => removed.hashes.len(),
            Self::Cleared | Self::Unknown | Self::Malformed => 0,
        }
    }
}

/// Blocks that the engine now holds, in prefix order: vLLM's and SGLang's event of this name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockStored<'a> {
    /// The engine's ids of the blocks: raw 64 bits, whatever their sign on the wire.
    pub hashes: &'a [u64],
    /// Id of the block before the first; `None` at the start of a sequence.
    pub parent: Option<u64>,
    /// Tokens of all blocks, concatenated; empty where the group does not keep whole prefixes.
    pub token_ids: &'a [u32],
    /// Tokens per block of this event.
    pub block_size_tokens: u32,
    pub medium: Medium,
    pub extra_keys: ExtraKeys<'a>,
    /// KV-cache group of a hybrid model (vLLM 0.20).
    pub group: Option<u32>,
    pub attention: Attention,
}

/// Input of blocks besides tokens: what vLLM hashes as extra keys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExtraKeys<'a> {
    /// LoRA adapter, empty without an adapter.
    pub lora_name: &'a str,
    /// Cache salt, empty without a salt.
    pub cache_salt: &'a str,
    /// Blocks from this position on depend on input that is not text and has no name: embeddings,
    /// an adapter with a number alone.
    pub opaque_from: Option<usize>,
    /// The images in each block, by name.
    pub images: BlockImages<'a>,
}

/// Blocks that the engine no longer holds: vLLM's and SGLang's event of this name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockRemoved<'a> {
    /// The engine's ids of the blocks, as in [`BlockStored::hashes`].
    pub hashes: &'a [u64],
    pub medium: Medium,
    /// KV-cache group, as in [`BlockStored::group`].
    pub group: Option<u32>,
}

impl ExtraKeys<'_> {
    /// True if the block at that position depends on input that is not text.
    #[must_use]
    pub fn is_opaque(&self, position: usize) -> bool {
        self.opaque_from.is_some_and(|opaque| position >= opaque)
    }
}

/// Part of a prefix that the layers of a KV-cache group see (vLLM 0.22, `kv_cache_spec_kind`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attention {
    /// The whole prefix; also the meaning of an absent field.
    #[default]
    Whole,
    /// The last tokens, with the present token; at least 1.
    Window(u32),
    /// A single state of the whole prefix (Mamba, linear attention).
    State,
    /// Part of the prefix, by a rule that this version does not support.
    Other,
}

impl Attention {
    /// Parses vLLM's word, with the tokens of a window.
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
    /// The memory of the accelerator; also the meaning of an absent field.
    #[default]
    Device,
    /// The memory of the host.
    Host,
    /// Disks, and stores of files or objects.
    Disk,
    /// A pool that several engines share.
    Shared,
    /// A word that this version does not support.
    Unknown,
}

impl Medium {
    /// Parses the engines' words: vLLM's `GPU`, `CPU`, `STORAGE`, `FS`, `OBJ`; SGLang's `GPU`,
    /// `CPU_PINNED`, `DISK`, `EXTERNAL`. Absent before vLLM 0.10.2 and SGLang 0.5.9. Only vLLM's
    /// connector to a Mooncake store writes `cpu` (0.32).
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

    /// Medium of blocks in another process than the publisher (vLLM 0.26, `locality` REMOTE). Any
    /// lower tier is then a store that several engines share.
    #[must_use]
    pub const fn in_other_process(self) -> Self {
        match self {
            Self::Host | Self::Disk | Self::Shared => Self::Shared,
            Self::Device | Self::Unknown => Self::Unknown,
        }
    }
}
