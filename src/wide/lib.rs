//! Searches and hashes in 32-byte registers, and prefetches, where the processor has them. The
//! binary is built for all processors of its architecture, so it selects the code at run time.
//!
//! Unsafe code: the call of a function that requires such a processor, loads and prefetches.

mod ascii_set;
mod equal;
mod fetch;
#[cfg(target_arch = "x86_64")]
mod load;
mod marks;

pub use ascii_set::{AsciiSet, BLOCK_BYTES, find_members};
pub use equal::find_equal;
pub use fetch::fetch;
pub use marks::Marks;
