//! Rolling keys of block paths. A key names the whole path from its root: equal keys mean equal bytes from the
//! start of the prompt (up to collisions of a 64-bit keyed hash, which cost a wrong guess, never a wrong answer).

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Secret of this process. Keys are made from client text, so an unkeyed hash could be flooded.
#[derive(Clone, Copy, Debug)]
pub struct KeySeed(pub u64);

/// Key of one block path. Never 0: 0 marks an empty slot in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey(u64);

/// What separates one tree of blocks from another.
#[derive(Clone, Copy, Debug, Default)]
pub struct RootName<'a> {
    /// Model name as served.
    pub model: &'a str,
    /// Tokens per block.
    pub block_size_tokens: u32,
    /// LoRA adapter name, empty for none.
    pub lora: &'a str,
    /// Cache salt, empty for none.
    pub cache_salt: &'a str,
}

impl BlockKey {
    /// Key of the root of one tree.
    #[must_use]
    pub fn root(seed: KeySeed, name: &RootName<'_>) -> Self {
        let mut key =
            Self::non_zero(xxh3_64_with_seed(&name.block_size_tokens.to_le_bytes(), seed.0));
        for part in [name.model, name.lora, name.cache_salt] {
            key = key.child(seed, part.as_bytes());
        }
        key
    }

    /// Key of the path `self` extended by one block of these bytes.
    #[must_use]
    pub fn child(self, seed: KeySeed, block_bytes: &[u8]) -> Self {
        self.child_of_hash(xxh3_64_with_seed(block_bytes, seed.0))
    }

    /// The same from the block's own hash (`xxh3_64` of its bytes under the seed), which depends on no parent.
    #[must_use]
    pub fn child_of_hash(self, block_hash: u64) -> Self {
        // One folded 64x64 multiply: order-dependent, 1.5 ns, and both halves of the product reach the key.
        let product = u128::from(self.0 ^ 0x9e37_79b9_7f4a_7c15) * u128::from(block_hash | 1);
        let low = product as u64;
        let high = (product >> 64) as u64;
        Self::non_zero(low ^ high ^ block_hash.rotate_left(29))
    }

    /// The key as a word for an atomic slot.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// From a word of an atomic slot; `None` for the empty mark 0.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self(word)) }
    }

    const fn non_zero(word: u64) -> Self {
        Self(if word == 0 { 1 } else { word })
    }
}
