//! A hash of a text that grows by rows, with a digest after each addition: keys of the prefixes of
//! a prompt at the price of a single pass.
//!
//! The accumulation is that of xxh3: each lane adds the product of the halves of a keyed word, and
//! its neighbor's word. All processors get the same digests.

/// Bytes of a row: texts are added in whole rows.
pub const ROW_BYTES: usize = 512;

/// Words that are added together.
const LANES: usize = 8;
/// Each stripe of a row begins at another key, and the digest at the last of these.
const KEYS: usize = STRIPES + LANES;
/// Stripes of a row. A stripe has a word for each lane.
const STRIPES: usize = ROW_BYTES / (8 * LANES);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const SCRAMBLE: u64 = 0x9e37_79b1;

type Lanes = [u64; LANES];
type Keys = [u64; KEYS];
/// Text of a row.
type HashRow = [u8; ROW_BYTES];

/// The hash of the text so far.
#[derive(Clone, Debug)]
pub struct PrefixHash {
    lanes: Lanes,
    keys: Keys,
}

impl PrefixHash {
    /// Of an empty text. Digests under different seeds have nothing in common.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(GOLDEN);
            mixed(state)
        });
        Self { lanes: [seed; LANES], keys }
    }

    /// Appends the whole rows of `text`, and returns the digest of all rows so far.
    pub fn add(&mut self, text: &[u8]) -> u64 {
        let (rows, rest) = text.as_chunks::<ROW_BYTES>();
        debug_assert!(rest.is_empty(), "{} bytes are no row", rest.len());
        add_rows(&mut self.lanes, &self.keys, rows);
        self.digest()
    }

    fn digest(&self) -> u64 {
        let keys = self.keys.last_chunk::<LANES>().copied().unwrap_or_default();
        let keyed = self.lanes.as_chunks::<2>().0.iter().zip(keys.as_chunks::<2>().0);
        mixed(keyed.fold(0, |sum: u64, ([a, b], [c, d])| {
            let product = u128::from(a ^ c) * u128::from(b ^ d);
            #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
            let folded = product as u64 ^ (product >> 64) as u64;
            sum.wrapping_add(folded)
        }))
    }
}

/// Distributes the bits of a word over the whole word (splitmix64).
const fn mixed(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn add_rows(lanes: &mut Lanes, keys: &Keys, rows: &[HashRow]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, the only requirement of the function beside its types.
        unsafe { wide::add_rows(lanes, keys, rows) };
        return;
    }
    for row in rows {
        add_row(lanes, keys, row);
    }
}

/// Appends a row, word by word.
fn add_row(lanes: &mut Lanes, keys: &Keys, row: &HashRow) {
    const LOW: u64 = 0xffff_ffff;
    let (stripes, _) = row.as_chunks::<{ 8 * LANES }>();
    for (stripe, keys) in stripes.iter().zip(keys.windows(LANES)) {
        let words = stripe.as_chunks::<8>().0;
        let neighbors = words.as_chunks::<2>().0.iter().flat_map(|[a, b]| [b, a]);
        for (((lane, word), neighbor), key) in lanes.iter_mut().zip(words).zip(neighbors).zip(keys)
        {
            let keyed = u64::from_le_bytes(*word) ^ key;
            let product = (keyed & LOW) * (keyed >> 32);
            *lane = lane.wrapping_add(product).wrapping_add(u64::from_le_bytes(*neighbor));
        }
    }
    for (lane, key) in lanes.iter_mut().zip(keys) {
        *lane = (*lane ^ *lane >> 47 ^ key).wrapping_mul(SCRAMBLE);
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{HashRow, Keys, LANES, Lanes, SCRAMBLE};
    use crate::load::{vector, word_vector};
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_extract_epi64, _mm256_mul_epu32, _mm256_set1_epi64x,
        _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_xor_si256,
    };

    /// Swaps the words of each pair.
    const SWAPPED: i32 = 0b01_00_11_10;

    #[target_feature(enable = "avx2")]
    pub(super) fn add_rows(lanes: &mut Lanes, keys: &Keys, rows: &[HashRow]) {
        let [low, high] = lanes.as_chunks_mut::<4>().0 else { return };
        let mut sums = [word_vector(low), word_vector(high)];
        for row in rows {
            let stripes = row.as_chunks::<{ 8 * LANES }>().0;
            for (stripe, keys) in stripes.iter().zip(keys.windows(LANES)) {
                let parts = stripe.as_chunks::<32>().0;
                for ((sum, part), keys) in sums.iter_mut().zip(parts).zip(keys.as_chunks().0) {
                    let words = vector(part);
                    let keyed = _mm256_xor_si256(words, word_vector(keys));
                    let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
                    let neighbors = _mm256_shuffle_epi32::<SWAPPED>(words);
                    *sum = _mm256_add_epi64(*sum, _mm256_add_epi64(product, neighbors));
                }
            }
            for (sum, keys) in sums.iter_mut().zip(keys.as_chunks().0) {
                *sum = scrambled(*sum, word_vector(keys));
            }
        }
        let [first, second] = sums;
        *low = words(first);
        *high = words(second);
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn scrambled(sum: __m256i, keys: __m256i) -> __m256i {
        let factor = _mm256_set1_epi64x(SCRAMBLE.cast_signed());
        let sum = _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64::<47>(sum)), keys);
        // A product of 64 by 32 bits, from two of 32 bits.
        let low = _mm256_mul_epu32(sum, factor);
        let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(sum), factor);
        _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn words(vector: __m256i) -> [u64; 4] {
        [
            _mm256_extract_epi64::<0>(vector),
            _mm256_extract_epi64::<1>(vector),
            _mm256_extract_epi64::<2>(vector),
            _mm256_extract_epi64::<3>(vector),
        ]
        .map(i64::cast_unsigned)
    }
}

#[cfg(test)]
mod tests {
    use super::{PrefixHash, ROW_BYTES, add_row, add_rows};
    use proptest::prelude::{any, prop, prop_assert_eq, prop_assert_ne, proptest};

    fn text(rows: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let words = std::iter::repeat_with(|| {
            state = super::mixed(state.wrapping_add(super::GOLDEN));
            state.to_le_bytes()
        });
        words.flatten().take(rows * ROW_BYTES).collect()
    }

    proptest! {
        #[test]
        fn wide_lanes_are_narrow_lanes(seed in any::<u64>(), rows in 0..5_usize) {
            let text = text(rows, seed ^ 1);
            let PrefixHash { mut lanes, keys } = PrefixHash::new(seed);
            let mut wide = lanes;
            add_rows(&mut wide, &keys, text.as_chunks().0);
            text.as_chunks().0.iter().for_each(|row| add_row(&mut lanes, &keys, row));
            prop_assert_eq!(wide, lanes);
        }

        /// The parts in which a text is added make no difference.
        #[test]
        fn a_digest_is_of_the_whole_prefix(parts in prop::collection::vec(0..4_usize, 0..6)) {
            let text = text(parts.iter().sum(), 3);
            let mut hash = PrefixHash::new(5);
            let mut rest = text.as_slice();
            let mut last = hash.add(&[]);
            for part in parts {
                let (head, tail) = rest.split_at(part * ROW_BYTES);
                last = hash.add(head);
                rest = tail;
            }
            prop_assert_eq!(last, PrefixHash::new(5).add(&text));
        }

        #[test]
        fn each_bit_and_the_seed_change_the_digest(
            rows in 1..4_usize,
            place in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let mut text = text(rows, 9);
            let before = PrefixHash::new(1).add(&text);
            prop_assert_ne!(before, PrefixHash::new(2).add(&text));
            let place = place.index(text.len());
            text[place] ^= 1 << bit;
            prop_assert_ne!(before, PrefixHash::new(1).add(&text));
        }
    }

    /// Rows of the same bytes, in which an order or a count of rows could get lost.
    #[test]
    fn equal_rows_count() {
        let texts = (0..40).map(|rows| vec![0; rows * ROW_BYTES]);
        let mut digests: Vec<u64> = texts.map(|text| PrefixHash::new(0).add(&text)).collect();
        let swapped = [vec![0; ROW_BYTES], vec![1; ROW_BYTES]];
        digests.push(PrefixHash::new(0).add(&swapped.concat()));
        digests.push(PrefixHash::new(0).add(&[&*swapped[1], &*swapped[0]].concat()));
        let count = digests.len();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), count);
    }
}
