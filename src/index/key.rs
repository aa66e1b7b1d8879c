//! Rolling keys of block paths. A key names the whole path from its root: equal keys mean equal
//! bytes from the start of the prompt (up to collisions of a 64-bit keyed hash, which cost a wrong
//! guess, never a wrong answer).

use super::rows::block_hash;
use forebay_base::ShardIndex;
use twox_hash::XxHash3_64;

/// Secret of this process. Keys are made from client text, so an unkeyed hash could be flooded.
#[derive(Clone, Copy, Debug)]
pub struct KeySeed(pub u64);

/// Key of a block path. Never 0: 0 marks an empty slot in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey(u64);

/// Identifies a tree of blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct RootName<'a> {
    /// Model name as served.
    pub model: &'a str,
    pub block_size_tokens: u32,
    /// LoRA adapter name, empty for none.
    pub lora: &'a str,
    /// Cache salt, empty for none.
    pub cache_salt: &'a str,
}

impl BlockKey {
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// Key of the root of a tree.
    #[must_use]
    pub fn root(seed: KeySeed, name: &RootName<'_>) -> Self {
        let mut key = Self::non_zero(XxHash3_64::oneshot_with_seed(
            seed.0,
            &name.block_size_tokens.to_le_bytes(),
        ));
        // Each part is hashed by itself: different parts could join to the same text.
        for part in [name.model, name.lora] {
            key = key.child(seed, part.as_bytes());
        }
        key.salted(seed, name.cache_salt)
    }

    /// The root for requests with that cache salt, from the root without. An empty salt changes
    /// nothing.
    #[must_use]
    pub fn salted(self, seed: KeySeed, cache_salt: &str) -> Self {
        if cache_salt.is_empty() { self } else { self.child(seed, cache_salt.as_bytes()) }
    }

    /// Key of the path `self` extended by a block of these bytes.
    #[must_use]
    pub fn child(self, seed: KeySeed, block_bytes: &[u8]) -> Self {
        self.child_of_hash(block_hash(seed.0, block_bytes))
    }

    /// Key of a path of guesses: takes less than half of the instructions of [`BlockKey::child`],
    /// and gives a different key. A client that chooses the bytes can make two chunks collide: a
    /// guess is then wrong, an answer never.
    #[must_use]
    pub fn guessed_child<const BYTES: usize>(self, seed: KeySeed, chunk: &[u8; BYTES]) -> Self {
        self.child_of_hash(quick_hash(seed, chunk))
    }

    /// [`BlockKey::child`] from the block's own hash under the seed, which depends on no parent.
    #[must_use]
    pub fn child_of_hash(self, block_hash: u64) -> Self {
        // A folded 64x64 multiply: order-dependent, 1.5 ns, and both halves of the product reach
        // the key.
        let product = u128::from(self.0 ^ 0x9e37_79b9_7f4a_7c15) * u128::from(block_hash | 1);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the low half; the high half is used too"
        )]
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

/// Two instructions per word, in four independent lanes. A multiplication carries differences only
/// to higher bits; the rotations bring them back. Between two rotations, changes that are limited
/// to the last bytes of two words of a lane cancel each other with probability 1/256.
fn quick_hash<const BYTES: usize>(seed: KeySeed, chunk: &[u8; BYTES]) -> u64 {
    const { assert!(BYTES.is_multiple_of(64), "a chunk is a number of parts") };
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    const TURN: u32 = 29;
    let mut lanes = [1, 2, 3, 4].map(|lane: u64| seed.0 ^ lane.wrapping_mul(FACTOR));
    for part in chunk.as_chunks::<64>().0 {
        for row in part.as_chunks::<8>().0.as_chunks::<4>().0 {
            for (lane, &word) in lanes.iter_mut().zip(row) {
                *lane = lane.wrapping_mul(FACTOR).wrapping_add(u64::from_le_bytes(word));
            }
        }
        lanes = lanes.map(|lane| lane.rotate_left(TURN));
    }
    lanes.into_iter().fold(0, |hash, lane| {
        let product = u128::from(hash ^ lane) * u128::from(FACTOR);
        #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
        let folded = (product >> 64) as u64 ^ product as u64;
        folded.rotate_left(TURN)
    })
}

/// The shard that owns a path, by the key of the path's first block.
#[must_use]
pub fn slice_of(first_block: BlockKey, shard_count: usize) -> ShardIndex {
    // The high bits choose the slice, as a fraction of the whole; the table uses the low bits.
    let scaled = u128::from(first_block.to_word()) * (shard_count.max(1) as u128);
    debug_assert!(scaled >> 64 < shard_count.max(1) as u128, "no such slice");
    ShardIndex(u16::try_from(scaled >> 64).unwrap_or(0))
}

/// Does that slice have the paths of the first block with that word? As [`slice_of`].
#[inline(always)]
pub(super) const fn is_in_slice(first_block: u64, slice: usize, shard_count: usize) -> bool {
    (first_block as u128 * shard_count as u128) >> 64 == slice as u128
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::limits::APPROXIMATE_CHUNK_BYTES;

    #[test]
    fn every_part_of_the_name_and_every_block_counts() {
        let seed = KeySeed(1);
        let name = |model, lora, cache_salt, block_size_tokens| {
            BlockKey::root(seed, &RootName { model, block_size_tokens, lora, cache_salt })
        };
        let base = name("m", "", "", 16);
        let all = [
            base,
            name("n", "", "", 16),
            name("m", "", "", 32),
            name("m", "x", "", 16),
            name("m", "", "x", 16),
            BlockKey::root(KeySeed(2), &RootName { model: "m", ..RootName::default() }),
            base.child(seed, b"a"),
            base.child(seed, b"a").child(seed, b"b"),
            base.child(seed, b"b").child(seed, b"a"),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(base.salted(seed, "x"), name("m", "", "x", 16));
    }

    #[test]
    fn a_guessed_key_changes_with_each_byte_and_each_pair_of_them() {
        let root = BlockKey::root(KeySeed(1), &RootName::default());
        let key = |chunk: &_| root.guessed_child(KeySeed(1), chunk);
        let mut chunk = [b' '; APPROXIMATE_CHUNK_BYTES];
        let mut seen = std::collections::HashSet::from([key(&chunk)]);
        assert!(seen.insert(root.guessed_child(KeySeed(2), &chunk)), "another seed");
        for one in 0..chunk.len() {
            for other in one..chunk.len() {
                chunk[one] = b'1';
                chunk[other] = b'2';
                assert!(seen.insert(key(&chunk)), "{one} and {other}");
                chunk[one] = b' ';
                chunk[other] = b' ';
            }
        }
    }
}
