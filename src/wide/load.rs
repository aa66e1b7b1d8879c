//! Loads of text into registers.

use std::arch::x86_64::{__m256i, _mm256_loadu_si256};

// Not composed of words: the compiler makes five instructions of four words.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn vector(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is to 32 bytes, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}
