//! The search for a byte in a short text that is at hand, without the price of a call.

use crate::BLOCK_BYTES;

/// The places of a byte in a block: a bit for each byte of the block, the lowest for the first.
// In registers that each processor of the architecture has: a choice would cost more.
#[inline]
#[must_use]
pub fn find_equal(block: &[u8; BLOCK_BYTES], byte: u8) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: each processor of this architecture has SSE2, the only requirement of the function.
    return unsafe { wide::find_equal(block, byte) };
    #[cfg(not(target_arch = "x86_64"))]
    find_narrow(block, byte)
}

/// The same, byte by byte.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn find_narrow(block: &[u8; BLOCK_BYTES], byte: u8) -> u64 {
    block.iter().rev().fold(0, |found, other| found << 1 | u64::from(*other == byte))
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use crate::BLOCK_BYTES;
    use crate::load::half_vector;
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set1_epi8};

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn find_equal(block: &[u8; BLOCK_BYTES], byte: u8) -> u64 {
        let wanted = _mm_set1_epi8(byte.cast_signed());
        let parts = block.as_chunks::<16>().0.iter().rev();
        parts.fold(0, |found, part| {
            let equal = _mm_movemask_epi8(_mm_cmpeq_epi8(half_vector(part), wanted));
            found << 16 | u64::from(equal.cast_unsigned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{find_equal, find_narrow};
    use crate::BLOCK_BYTES;
    use proptest::prelude::{prop_assert_eq, proptest};
    use proptest::prop_oneof;
    use proptest::strategy::Just;

    proptest! {
        #[test]
        fn wide_places_are_narrow_places(
            block in proptest::array::uniform32((prop_oneof![Just(7_u8), 0..=255_u8], 0..9_u8)),
            byte in 0..9_u8,
        ) {
            let bytes: Vec<u8> = block.iter().flat_map(|(a, b)| [*a, *b]).collect();
            let block: &[u8; BLOCK_BYTES] = bytes.first_chunk().unwrap();
            prop_assert_eq!(find_equal(block, byte), find_narrow(block, byte));
        }
    }
}
