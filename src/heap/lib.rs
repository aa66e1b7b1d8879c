//! What the allocator gives back to the system, and how soon. For programs whose allocator is
//! mimalloc.

use mimalloc as _;
use std::ffi::{c_int, c_long};

/// `mi_option_purge_delay` of mimalloc 3.
const PURGE_DELAY: c_int = 15;
/// Memory that has been free for so many milliseconds goes back. mimalloc waits a second and looks
/// only when it frees more, see [`give_back`]. After 50 ms, the buffers of long bodies would go to
/// and fro.
const PURGE_DELAY_MS: c_long = 500;

// SAFETY: as `mimalloc.h` of the linked library declares them. Both take any number, and are called
// from any thread.
unsafe extern "C" {
    safe fn mi_option_set(option: c_int, value: c_long);
    safe fn mi_collect(force: bool);
    #[cfg(test)]
    safe fn mi_option_get(option: c_int) -> c_long;
}

/// Keeps resident what is in use: freed memory goes back early, and no page is a huge page. Called
/// before threads start.
pub fn keep_small() {
    mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
    // Kernels that do not know the call have no huge pages either.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Gives back what has been free for long enough. mimalloc looks only when something is freed, and
/// after a burst that may be never. For a thread that may take its time.
pub fn give_back() {
    mi_collect(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_delay() {
        assert_eq!(mi_option_get(PURGE_DELAY), 1_000, "another option, or another default");
        keep_small();
        assert_eq!(mi_option_get(PURGE_DELAY), PURGE_DELAY_MS);
        assert!(rustix::thread::transparent_huge_pages_are_disabled().unwrap());
    }
}
