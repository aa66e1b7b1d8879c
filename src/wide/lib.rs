//! Searches in registers of 32 bytes, where the processor has them, and reading ahead. The program
//! is built for all processors of its kind, so the choice is made when it runs.
//!
//! Unsafe code: the call of a function that wants such a processor, and prefetches.

mod fetch;
mod marks;

pub use fetch::fetch;
pub use marks::Marks;
