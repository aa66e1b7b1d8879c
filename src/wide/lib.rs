//! Searches in 32-byte registers and prefetches, where the processor has them. The binary is built
//! for all processors of its architecture, so it selects the code at run time.
//!
//! Unsafe code: the call of a function that requires such a processor, and prefetches.

mod fetch;
mod marks;

pub use fetch::fetch;
pub use marks::Marks;
