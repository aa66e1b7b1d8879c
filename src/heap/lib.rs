//! What the allocator gives back to the system, and how soon. For programs whose allocator is
//! mimalloc.

use mimalloc as _;
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;
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

/// Frees a long buffer, and gives its memory back at once. mimalloc gives back what holds nothing
/// else: of many buffers of one size, freed ones would stay beside those in use.
pub fn free_now(mut buffer: Vec<u8>) {
    buffer.clear();
    let page_bytes = page_size();
    let room = buffer.spare_capacity_mut();
    let begin = room.as_ptr().align_offset(page_bytes);
    let Some(pages) = room.get_mut(begin..) else { return };
    let bytes = pages.len() / page_bytes * page_bytes;
    // SAFETY: whole pages of the spare room of a vector, which holds no value. They belong to
    // private anonymous memory of the allocator, and read as zeros from now on.
    let _ = unsafe { madvise(pages.as_mut_ptr().cast(), bytes, Advice::LinuxDontNeed) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_buffer_can_be_taken_again() {
        for bytes in [0, 1, 5_000, 100_000, 3 << 20] {
            free_now(vec![7; bytes]);
            let again = vec![9_u8; bytes];
            assert!(again.iter().all(|byte| *byte == 9));
        }
    }

    #[test]
    fn the_option_is_the_delay() {
        assert_eq!(mi_option_get(PURGE_DELAY), 1_000, "another option, or another default");
        keep_small();
        assert_eq!(mi_option_get(PURGE_DELAY), PURGE_DELAY_MS);
        assert!(rustix::thread::transparent_huge_pages_are_disabled().unwrap());
    }
}
