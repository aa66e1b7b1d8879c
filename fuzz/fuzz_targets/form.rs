//! Feeds the bytes of the fuzzer to `checks/form.rs`, which says what must hold.

#![no_main]
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a target stops where it finds a fault"
)]

#[path = "../checks/form.rs"]
mod form;

libfuzzer_sys::fuzz_target!(|data: &[u8]| form::check(data));
