//! Searches in registers of 32 bytes, where the processor has them. The program is built for all
//! processors of its kind, so the choice is made when it runs.
//!
//! Unsafe code: the call of a function that wants such a processor.

mod marks;

pub use marks::Marks;
