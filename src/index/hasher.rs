//! Keys of the blocks of a prompt, by the hash of [`BlockKey::child`], xxh3 of 64 bits. For usual
//! lengths the seed is mixed into the secret only once, not for each block.

use super::key::{BlockKey, KeySeed};

/// The first 128 bytes of the secret of xxh3, as pairs of words for a row from the front and a row
/// from the back.
const SECRET: [[[u64; 2]; 2]; 4] = [
    [
        [0xbe4b_a423_396c_feb8, 0x1cad_21f7_2c81_017c],
        [0xdb97_9083_e96d_d4de, 0x1f67_b3b7_a4a4_4072],
    ],
    [
        [0x78e5_c0cc_4ee6_79cb, 0x2172_ffcc_7dd0_5a82],
        [0x8e24_43f7_7446_08b8, 0x4c26_3a81_e690_35e0],
    ],
    [
        [0xcb00_c391_bb52_283c, 0xa32e_531b_8b65_d088],
        [0x4ef9_0da2_9748_6471, 0xd8ac_dea9_46ef_1938],
    ],
    [
        [0x3f34_9ce3_3f76_faa8, 0x1d4f_0bc7_c7bb_dcf9],
        [0x3159_b4cd_4be0_518a, 0x6473_78d9_c97e_9fc8],
    ],
];
const LENGTH_FACTOR: u64 = 0x9e37_79b1_85eb_ca87;
const LAST_FACTOR: u64 = 0x1656_6791_9e37_79f9;
/// Bytes of a row.
const ROW: usize = 16;

/// Hashes blocks under a fixed seed.
#[derive(Clone, Debug)]
pub(super) struct BlockHasher {
    pub(super) seed: KeySeed,
    secret: [[[u64; 2]; 2]; 4],
}

impl BlockHasher {
    pub(super) fn new(seed: KeySeed) -> Self {
        let seeded = |[low, high]: [u64; 2]| [low.wrapping_add(seed.0), high.wrapping_sub(seed.0)];
        Self { seed, secret: SECRET.map(|rows| rows.map(seeded)) }
    }

    /// Returns the same key as [`BlockKey::child`].
    #[inline(always)]
    pub(super) fn child(&self, parent: BlockKey, block: &[u8]) -> BlockKey {
        match block.len() {
            33..=128 => parent.child_of_hash(self.hash(block)),
            _ => parent.child(self.seed, block),
        }
    }

    /// Hash of 33 to 128 bytes: two to four rows from the front and as many from the back, which
    /// may overlap in the middle.
    #[inline(always)]
    fn hash(&self, block: &[u8]) -> u64 {
        let [first, second, third, fourth] = &self.secret;
        let mut hash = (block.len() as u64).wrapping_mul(LENGTH_FACTOR);
        hash = hash.wrapping_add(ends::<ROW>(block, first));
        hash = hash.wrapping_add(ends::<{ 2 * ROW }>(block, second));
        // Without a branch: 16 tokens of English are as often longer than four rows as not, and a
        // wrong prediction costs more than both rows.
        let has_third = 0_u64.wrapping_sub(u64::from(block.len() > 4 * ROW));
        hash = hash.wrapping_add(has_third & ends::<{ 3 * ROW }>(block, third));
        if block.len() > 6 * ROW {
            hash = hash.wrapping_add(ends::<{ 4 * ROW }>(block, fourth));
        }
        hash ^= hash >> 37;
        hash = hash.wrapping_mul(LAST_FACTOR);
        hash ^ hash >> 32
    }
}

/// The last row of the first `BYTES` bytes, and the first row of the last `BYTES` bytes.
#[inline(always)]
fn ends<const BYTES: usize>(block: &[u8], [first, last]: &[[u64; 2]; 2]) -> u64 {
    let front = block.first_chunk::<BYTES>().and_then(|front| front.last_chunk::<ROW>());
    let back = block.last_chunk::<BYTES>().and_then(|back| back.first_chunk::<ROW>());
    let (Some(front), Some(back)) = (front, back) else { return 0 };
    mix(front, first).wrapping_add(mix(back, last))
}

#[inline(always)]
fn mix(row: &[u8; ROW], [low_secret, high_secret]: &[u64; 2]) -> u64 {
    let word = |index: usize| {
        u64::from_le_bytes(row.as_chunks::<8>().0.get(index).copied().unwrap_or_default())
    };
    let product = u128::from(word(0) ^ low_secret) * u128::from(word(1) ^ high_secret);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let folded = product as u64 ^ (product >> 64) as u64;
    folded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RootName;

    #[test]
    fn keys_are_those_of_the_library() {
        let text: Vec<u8> = (0..400_u32).map(|at| (at * at % 251) as u8).collect();
        for seed in [KeySeed(0), KeySeed(7), KeySeed(u64::MAX)] {
            let hasher = BlockHasher::new(seed);
            let root = BlockKey::root(seed, &RootName::default());
            for bytes in 0..300 {
                for from in [0, 1, 99] {
                    let block = &text[from..from + bytes];
                    assert_eq!(hasher.child(root, block), root.child(seed, block), "{bytes}");
                }
            }
        }
    }
}
