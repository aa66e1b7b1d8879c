//! The allocator of the programs, mimalloc: what memory it returns to the system, and how soon.

use mimalloc::MiMalloc;
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long, c_void};

/// mimalloc, without its path of aligned allocations where each allocation is aligned enough.
///
/// Above 1 KB that path makes the block larger by the alignment, and searches for an aligned place
/// in it.
#[derive(Debug)]
pub struct Heap;

/// Alignment of each block that has this many bytes (`MI_MAX_ALIGN_SIZE`). Smaller blocks are
/// aligned to their size, a power of two.
const ALIGNED_TO: usize = 16;

// SAFETY: mimalloc upholds the contract of an allocator. Blocks of both ways are freed and resized
// alike.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_aligned_anyway(layout) {
            return mi_malloc(layout.size()).cast();
        }
        // SAFETY: the caller upholds the same contract.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_aligned_anyway(layout) {
            return mi_zalloc(layout.size()).cast();
        }
        // SAFETY: the caller upholds the same contract.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller upholds the same contract.
        unsafe { MiMalloc.realloc(block, layout, bytes) }
    }
}

const fn is_aligned_anyway(layout: Layout) -> bool {
    layout.align() <= ALIGNED_TO && layout.align() <= layout.size()
}

/// `mi_option_purge_delay` of mimalloc 3.
const PURGE_DELAY: c_int = 15;
/// Memory that has been free for this many milliseconds is returned. mimalloc's default is a
/// second, and it checks only when it frees more memory, see [`give_back`]. With 50 ms, the buffers
/// of long bodies would be returned and taken again all the time.
const PURGE_DELAY_MS: c_long = 500;

// SAFETY: as `mimalloc.h` of the linked library declares them. The functions take any number, and
// are called from any thread.
unsafe extern "C" {
    safe fn mi_malloc(bytes: usize) -> *mut c_void;
    safe fn mi_zalloc(bytes: usize) -> *mut c_void;
    safe fn mi_option_set(option: c_int, value: c_long);
    safe fn mi_collect(force: bool);
    #[cfg(test)]
    safe fn mi_option_get(option: c_int) -> c_long;
}

/// Keeps the resident memory small: freed memory is returned early, and no page is a huge page.
/// Called before threads start.
pub fn keep_small() {
    mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
    // Kernels without this call have no huge pages either.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Returns memory that has been free for long enough. mimalloc checks only when memory is freed,
/// and after a burst that may be never. For a thread without latency limits.
pub fn give_back() {
    mi_collect(false);
}

/// Frees a long buffer, and returns its memory at once. mimalloc returns only empty regions: of
/// many buffers of a size, freed buffers would stay beside buffers in use.
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

    #[global_allocator]
    static HEAP: Heap = Heap;

    #[test]
    fn each_block_is_aligned_as_its_layout_asks() {
        for align in [1, 2, 4, 8, 16, 32, 64, 4_096] {
            for bytes in (1..200).chain([1_000, 1_025, 1_400, 5_000, 100_000, 3 << 20]) {
                let layout = Layout::from_size_align(bytes, align).unwrap();
                // Several, since the first of a page is aligned by chance.
                let blocks: Vec<*mut u8> = (0..3)
                    .flat_map(|_| {
                        // SAFETY: a layout of a byte at least.
                        let plain = unsafe { HEAP.alloc(layout) };
                        // SAFETY: as above.
                        let zeroed = unsafe { HEAP.alloc_zeroed(layout) };
                        [plain, zeroed]
                    })
                    .collect();
                for block in blocks {
                    assert_eq!(block.addr() % align, 0, "{bytes} bytes, {align}");
                    // SAFETY: of that layout, and freed once.
                    unsafe { HEAP.dealloc(block, layout) };
                }
            }
        }
    }

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
