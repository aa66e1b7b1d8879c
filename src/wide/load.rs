//! Loads of text into registers.

use std::arch::x86_64::{__m128i, __m256i, _mm_loadu_si128, _mm256_loadu_si256};

// Not composed of words: the compiler makes five instructions of four words.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn vector(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is to 32 bytes, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sse2")]
pub(crate) fn half_vector(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is to 16 bytes, and the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
