//! Feeds the bytes of the fuzzer to `checks/mid_stream.rs`, which says what must hold.

#![no_main]
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a target stops where it finds a fault"
)]

#[path = "../checks/mid_stream.rs"]
mod mid_stream;

libfuzzer_sys::fuzz_target!(|data: &[u8]| mid_stream::check(data));
