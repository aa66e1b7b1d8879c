//! Reading ahead: what is asked for early is in the caches when it is wanted.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Asks the processor for all lines of a value, and waits for none. A hint: without such an
/// instruction nothing is done.
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
