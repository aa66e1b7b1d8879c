//! Hash of a block, by rows of 32 bytes. Each row has a secret of its own, so rows are hashed in
//! any order and added. All rows but the last are counted from the front: blocks of different
//! lengths that begin at the same byte share them, see [`RowSums`].

use twox_hash::XxHash3_64;

/// Bytes of a row.
const ROW: usize = 32;
/// Rows of a block, at most.
const ROWS_MAX: usize = 16;
/// The place of the secret for the last 32 bytes of a block, which may overlap the row before.
const LAST: usize = ROWS_MAX - 1;
/// Shortest and longest block that is hashed by rows. Shorter blocks have no whole row, and for
/// longer blocks xxh3 reads in wider registers.
const BYTES_LEAST: usize = ROW + 1;
const BYTES_MAX: usize = ROWS_MAX * ROW;

const LENGTH_FACTOR: u64 = 0x9e37_79b1_85eb_ca87;

/// A secret for each word of a row.
type RowSecret = [u64; 4];

/// Secrets before the seed is mixed in.
const SECRETS: [RowSecret; ROWS_MAX] = {
    let mut secrets = [[0; 4]; ROWS_MAX];
    let mut rest = secrets.as_mut_slice();
    let mut number = 0;
    while let [secret, others @ ..] = rest {
        let [a, b, c, d] = [number, number + 1, number + 2, number + 3];
        *secret = [splitmix(a), splitmix(b), splitmix(c), splitmix(d)];
        number += 4;
        rest = others;
    }
    secrets
};

/// Hashes blocks under a fixed seed, which is mixed into the secrets only once.
#[derive(Clone, Debug)]
pub(super) struct RowHasher {
    seed: u64,
    secrets: [RowSecret; ROWS_MAX],
}

/// Sums of the rows of a text from its start on, which blocks of all lengths share that begin
/// there.
#[derive(Debug, Default)]
pub(super) struct RowSums {
    /// The sum of so many rows.
    sums: [u64; ROWS_MAX],
    /// Number of rows summed so far.
    row_count: usize,
}

impl RowHasher {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, secrets: SECRETS.map(|secret| seeded(secret, seed)) }
    }

    /// Returns the same as [`block_hash`].
    #[inline(always)]
    pub(super) fn hash(&self, block: &[u8]) -> u64 {
        match block.len() {
            BYTES_LEAST..=BYTES_MAX => hash(block, |row| self.secret(row)),
            _ => other_hash(self.seed, block),
        }
    }

    /// Returns the same as [`Self::hash`]. `sums` are of blocks that begin at the same byte.
    #[inline(always)]
    pub(super) fn front_hash(&self, block: &[u8], sums: &mut RowSums) -> u64 {
        let bytes = block.len();
        if !(BYTES_LEAST..=BYTES_MAX).contains(&bytes) {
            return other_hash(self.seed, block);
        }
        let row_count = (bytes - 1) / ROW;
        if sums.row_count < row_count {
            sums.extend(block, row_count, self);
        }
        let sum = sums.sums.get(row_count).copied().unwrap_or_default();
        let last = block.last_chunk().map_or(0, |last| mix(last, self.secret(LAST)));
        finish(bytes, sum.wrapping_add(last))
    }

    #[inline(always)]
    fn secret(&self, row: usize) -> RowSecret {
        self.secrets.get(row).copied().unwrap_or_default()
    }
}

impl RowSums {
    /// Begins blocks at another byte.
    #[inline]
    pub(super) fn clear(&mut self) {
        // The sum of no rows stays 0.
        self.row_count = 0;
    }

    // Not inlined: few lengths of a fork need further rows.
    #[inline(never)]
    fn extend(&mut self, block: &[u8], row_count: usize, hasher: &RowHasher) {
        let rows = block.as_chunks::<ROW>().0;
        let mut sum = self.sums.get(self.row_count).copied().unwrap_or_default();
        while self.row_count < row_count {
            let Some(row) = rows.get(self.row_count) else { return };
            sum = sum.wrapping_add(mix(row, hasher.secret(self.row_count)));
            self.row_count += 1;
            if let Some(to) = self.sums.get_mut(self.row_count) {
                *to = sum;
            }
        }
    }
}

/// Hash of a block under a seed.
pub(super) fn block_hash(seed: u64, block: &[u8]) -> u64 {
    match block.len() {
        BYTES_LEAST..=BYTES_MAX => {
            hash(block, |row| seeded(SECRETS.get(row).copied().unwrap_or_default(), seed))
        }
        _ => other_hash(seed, block),
    }
}

/// Hash of a block of `BYTES_LEAST` to `BYTES_MAX` bytes.
#[inline(always)]
fn hash(block: &[u8], secret: impl Fn(usize) -> RowSecret) -> u64 {
    let bytes = block.len();
    let rows = block.as_chunks::<ROW>().0;
    let ends = block.first_chunk().zip(block.last_chunk());
    let Some((first, last)) = ends else { return 0 };
    let row = |row: usize| mix(rows.get(row).unwrap_or(last), secret(row));
    // Without a branch: 16 tokens of English are as often longer than two rows as not, and a wrong
    // prediction costs more than a row.
    let has_second = 0_u64.wrapping_sub(u64::from(bytes > 2 * ROW));
    let ends = mix(first, secret(0)).wrapping_add(mix(last, secret(LAST)));
    let mut sum = ends.wrapping_add(has_second & row(1));
    if bytes > 3 * ROW {
        sum = (2..(bytes - 1) / ROW).map(row).fold(sum, u64::wrapping_add);
    }
    finish(bytes, sum)
}

/// The last step of xxh3 is left out: a key multiplies the hash by the key before it.
#[inline(always)]
const fn finish(bytes: usize, sum: u64) -> u64 {
    sum.wrapping_add((bytes as u64).wrapping_mul(LENGTH_FACTOR))
}

/// Hash of any other block.
// Not inlined, and no common case: the loops over blocks keep their values in registers.
#[cold]
#[inline(never)]
fn other_hash(seed: u64, block: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, block)
}

#[inline(always)]
fn mix(row: &[u8; ROW], [a, b, c, d]: RowSecret) -> u64 {
    let word = |index: usize| {
        u64::from_le_bytes(row.as_chunks::<8>().0.get(index).copied().unwrap_or_default())
    };
    folded(word(0) ^ a, word(1) ^ b).wrapping_add(folded(word(2) ^ c, word(3) ^ d))
}

/// Both halves of a product.
#[inline(always)]
fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let folded = product as u64 ^ (product >> 64) as u64;
    folded
}

#[inline(always)]
const fn seeded([a, b, c, d]: RowSecret, seed: u64) -> RowSecret {
    [a.wrapping_add(seed), b.wrapping_sub(seed), c.wrapping_add(seed), d.wrapping_sub(seed)]
}

/// A number of the generator `splitmix64`.
const fn splitmix(number: u64) -> u64 {
    let state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1);
    let mut word = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockKey, KeySeed};
    use std::collections::HashSet;

    const SEEDS: [u64; 3] = [0, 7, u64::MAX];

    #[test]
    fn each_way_to_a_hash_gives_the_same() {
        let text: Vec<u8> = (0..900_u32).map(|at| (at * at % 251) as u8).collect();
        for seed in SEEDS {
            let hasher = RowHasher::new(seed);
            for from in [0, 1, 99] {
                let text = &text[from..];
                let mut sums = RowSums::default();
                // In no order, as a fork lists its lengths.
                for bytes in (0..700).map(|number| number * 389 % 700) {
                    let hash = block_hash(seed, &text[..bytes]);
                    assert_eq!(hasher.hash(&text[..bytes]), hash, "{bytes}");
                    assert_eq!(hasher.front_hash(&text[..bytes], &mut sums), hash, "{bytes}");
                }
            }
        }
    }

    /// Also where words are equal, or exchanged.
    #[test]
    fn a_hash_changes_with_length_and_each_bit() {
        for seed in SEEDS {
            let mut seen = HashSet::new();
            for bytes in 1..700 {
                assert!(seen.insert(block_hash(seed, &vec![b'x'; bytes])), "{seed} {bytes}");
            }
            for bytes in [1, 16, 17, 31, 32, 33, 48, 49, 64, 65, 80, 81, 97, 511, 512, 513] {
                let mut block = vec![b'\n'; bytes];
                for at in 0..bytes {
                    for bit in 0..8 {
                        block[at] ^= 1 << bit;
                        assert!(seen.insert(block_hash(seed, &block)), "{bytes}: {at} {bit}");
                        block[at] ^= 1 << bit;
                    }
                }
            }
            let halves = [[b'a'; ROW / 2], [b'b'; ROW / 2], [b'c'; ROW / 2], [b'd'; ROW / 2]];
            for order in [[0, 1, 2, 3], [1, 0, 2, 3], [0, 2, 1, 3], [0, 1, 3, 2], [3, 1, 2, 0]] {
                let block = order.map(|half: usize| halves[half]).concat();
                assert!(seen.insert(block_hash(seed, &block)), "{order:?}");
            }
        }
    }

    /// A changed bit changes each bit of the key as often as not.
    #[test]
    fn a_changed_bit_changes_half_of_the_key() {
        const ROUNDS: u32 = 2_000;
        let mut random = fastrand::Rng::with_seed(5);
        for bytes in [1, 33, 40, 64, 70, 100, 300] {
            let mut changed = [0_u32; 64];
            for _ in 0..ROUNDS {
                let parent = BlockKey::from_word(random.u64(1..)).unwrap();
                let mut block: Vec<u8> = (0..bytes).map(|_| random.u8(b' '..=b'~')).collect();
                let before = parent.child(KeySeed(3), &block).to_word();
                block[random.usize(..bytes)] ^= 1 << random.u32(..8);
                let difference = before ^ parent.child(KeySeed(3), &block).to_word();
                for (bit, count) in changed.iter_mut().enumerate() {
                    *count += u32::from(difference >> bit & 1 == 1);
                }
            }
            let fair = ROUNDS * 9 / 20..ROUNDS * 11 / 20;
            assert!(changed.iter().all(|count| fair.contains(count)), "{bytes}: {changed:?}");
        }
    }

    /// Blocks that differ little, of each length: repeated bytes, a changed bit at each place, and
    /// numbers at three places.
    fn similar_blocks(bytes: usize, mut each: impl FnMut(&[u8])) {
        (0..=u8::MAX).for_each(|byte| each(&vec![byte; bytes]));
        let mut block = vec![b' '; bytes];
        for at in 0..bytes {
            let bit = 1 << ((at + bytes) % 8);
            block[at] ^= bit;
            each(&block);
            block[at] ^= bit;
        }
        for number in 1..100 {
            let digits = format!("{number:02}");
            for at in [0, bytes / 2, bytes.saturating_sub(2)] {
                let mut block = vec![b'0'; bytes];
                block.iter_mut().skip(at).zip(digits.bytes()).for_each(|(to, digit)| *to = digit);
                each(&block);
            }
        }
    }

    /// Number of pairs of equal numbers among sorted neighbors.
    fn equal_pairs(mut numbers: Vec<u64>) -> usize {
        numbers.sort_unstable();
        numbers.windows(2).filter(|pair| pair[0] == pair[1]).count()
    }

    /// Hashes leave the last step of xxh3 to the key. So the keys of similar blocks must collide no
    /// more often than random numbers do, in the bits that choose segment, slot, tag and slice too.
    #[test]
    fn keys_of_similar_blocks_are_as_good_as_random_numbers() {
        const SEED: u64 = 7;
        let hasher = RowHasher::new(SEED);
        let parent = BlockKey::from_word(SEED << 40).unwrap();
        let mut hashes = Vec::new();
        for bytes in 1..=600 {
            // Short blocks of two kinds may be the same block.
            let mut seen = HashSet::new();
            similar_blocks(bytes, |block| {
                if bytes >= 8 || seen.insert(block.to_vec()) {
                    hashes.push(hasher.hash(block));
                }
            });
        }
        let child = |hash: &u64| parent.child_of_hash(*hash).to_word();
        let keys: Vec<u64> = hashes.iter().map(child).collect();
        assert!(keys.len() > 400_000, "{} blocks", keys.len());
        assert_eq!((equal_pairs(hashes), equal_pairs(keys.clone())), (0, 0));
        let count = keys.len() as f64;
        let expected = count * count / 2.0 / 2_f64.powi(32);
        // Six standard deviations of a Poisson distribution.
        let most = expected + 6.0 * expected.sqrt();
        for shift in [0, 8, 32] {
            let found = equal_pairs(keys.iter().map(|key| key >> shift & 0xffff_ffff).collect());
            assert!((found as f64) < most, "{shift}: {found} pairs, {expected} expected");
        }
    }
}
