//! Feeds the bytes of the fuzzer to `checks/http_body.rs`, which says what must hold.

#![no_main]
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a target stops where it finds a fault"
)]

#[path = "../checks/http_body.rs"]
mod http_body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http_body::check(data));
