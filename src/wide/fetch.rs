//! Prefetching: data that is requested early is in the CPU caches when it is used.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Prefetches all cache lines of a value, without waiting. A hint: does nothing on other
/// architectures.
#[inline(always)]
pub fn fetch<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<i8>();
    for offset in (0..size_of::<T>()).step_by(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program sees, and faults at no address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, offset);
    }
}
