//! Sets of ASCII bytes, and the search for their members in a block of text.

/// Bytes of a block: a word of bits.
pub const BLOCK_BYTES: usize = 64;
type TextBlock = [u8; BLOCK_BYTES];

/// A set of bytes below 0x80.
#[derive(Clone, Copy, Debug)]
pub struct AsciiSet {
    /// For each low half of a byte, a bit for each high half.
    rows: [u8; 16],
}

impl AsciiSet {
    /// The set of these bytes, a bit for each, the lowest for the byte 0.
    #[must_use]
    pub const fn new(members: u128) -> Self {
        let mut rows = [0_u8; 16];
        let mut rest: &mut [u8] = &mut rows;
        let mut low = 0;
        while let [row, tail @ ..] = rest {
            let mut high = 0;
            while high < 8 {
                if members >> (high * 16 + low) & 1 == 1 {
                    *row |= 1 << high;
                }
                high += 1;
            }
            low += 1;
            rest = tail;
        }
        Self { rows }
    }

    /// Is the byte a member?
    #[inline]
    #[must_use]
    pub fn has(&self, byte: u8) -> bool {
        let row = self.rows.get(usize::from(byte & 0xf)).copied().unwrap_or(0);
        byte < 0x80 && row >> (byte >> 4) & 1 == 1
    }

    fn members(&self, block: &TextBlock) -> u64 {
        block.iter().rev().fold(0, |found, byte| found << 1 | u64::from(self.has(*byte)))
    }
}

/// The members of each set in a block: a bit for each byte, the lowest for the first.
#[must_use]
pub fn find_members(block: &TextBlock, sets: &[AsciiSet; 2]) -> [u64; 2] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, the only requirement of the function beside its types.
        return unsafe { wide::find_members(block, sets) };
    }
    sets.map(|set| set.members(block))
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{AsciiSet, TextBlock};
    use crate::load::{half_vector, vector};
    use std::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8,
        _mm256_movemask_epi8, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
        _mm256_srli_epi16,
    };

    /// The bit of each high half of a byte below 0x80.
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 0, 0, 0, 0, 0, 0, 0, 0];

    #[target_feature(enable = "avx2")]
    pub(super) fn find_members(block: &TextBlock, sets: &[AsciiSet; 2]) -> [u64; 2] {
        let [low, high] = block.as_chunks::<32>().0 else { return [0; 2] };
        let tables = [doubled(&sets[0].rows), doubled(&sets[1].rows)];
        let low = half(low, tables);
        let high = half(high, tables);
        [0, 1].map(|set: usize| {
            let [low, high] = [low, high].map(|half| half.get(set).copied().unwrap_or(0));
            u64::from(high) << 32 | u64::from(low)
        })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn half(bytes: &[u8; 32], tables: [__m256i; 2]) -> [u32; 2] {
        let bytes = vector(bytes);
        let nibbles = _mm256_set1_epi8(0xf);
        let low = _mm256_and_si256(bytes, nibbles);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibbles);
        let bits = _mm256_shuffle_epi8(doubled(&BITS), high);
        let [first, second] = tables;
        [members(first, low, bits), members(second, low, bits)]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn members(table: __m256i, low: __m256i, bits: __m256i) -> u32 {
        let found = _mm256_and_si256(_mm256_shuffle_epi8(table, low), bits);
        let others = _mm256_cmpeq_epi8(found, _mm256_setzero_si256());
        !_mm256_movemask_epi8(others).cast_unsigned()
    }

    /// The table in both halves of a register.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn doubled(table: &[u8; 16]) -> __m256i {
        _mm256_broadcastsi128_si256(half_vector(table))
    }
}

#[cfg(test)]
mod tests {
    use super::{AsciiSet, BLOCK_BYTES, find_members};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn a_set_has_its_members(members in any::<u128>()) {
            let set = AsciiSet::new(members);
            for byte in 0..=u8::MAX {
                let is_member = byte < 0x80 && members >> byte & 1 == 1;
                prop_assert_eq!(set.has(byte), is_member, "{:#x}", byte);
            }
        }

        #[test]
        fn wide_searches_are_narrow_searches(
            block in any::<[u8; BLOCK_BYTES]>(),
            first in any::<u128>(),
            second in any::<u128>(),
        ) {
            let sets = [AsciiSet::new(first), AsciiSet::new(second)];
            let expected = sets.map(|set| set.members(&block));
            prop_assert_eq!(find_members(&block, &sets), expected);
        }
    }
}
